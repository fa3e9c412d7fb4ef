#include "hooks/extension.h"

#include <ATen/SequenceNumber.h>

#include <cstring>

#include "hooks/node_hook.h"
#include "hooks/op_call.h"
#include "hooks/op_hook.h"
#include "hooks/op_tensors.h"
#include "hooks/source_line.h"

namespace nanscan {
namespace {

// What the running extension adds to op_thread(): the call there is its own.
struct ExtensionThread {
  uint64_t call = 0;  // 0: none runs
  int64_t first_node = 0;
  std::vector<Record> before;  // [call.inputs]
};

ExtensionThread& extension_thread() {
  static thread_local ExtensionThread state;
  return state;
}

void take_input(Session& session, OpThread& thread, std::vector<Record>& before, const at::Tensor& t) {
  Record rec{};
  if (!scannable(session, t)) return;
  const bool late = session.is_late(t);
  if (!late && !scanned(scan_tensor(t, rec))) return;
  const ValueState state = session.state_of(t);
  CallInput in{t, state.value, state.bits, false, true};
  // What is known of the memory may be out of date: another call, one that nobody wrapped, may have written there.
  const uint8_t now = bits_of(rec);
  if (now != 0 && !(in.bits & kBadBits)) note_change(session, in, now);
  if (in.bits & kValueUninit) in.bits = 0;  // unfilled memory is handed over to be filled, not to be read
  thread.call.inputs.push_back(std::move(in));
  before.push_back(rec);
}

void see_results(Session& session, OpThread& thread, const std::vector<at::Tensor>& results) {
  uint32_t index = 0;
  for (const at::Tensor& t : results) {
    CallOutput out;
    out.index = index++;
    if (!scan_result(session, t, out.record)) continue;
    bool handed_through = false;
    for (const auto& in : thread.call.inputs) {
      handed_through = handed_through || (shares_memory(in.tensor, t) && !(bits_of(out.record) & ~in.bits));
    }
    out.tensor = t;
    if (!handed_through) thread.outputs.push_back(std::move(out));
  }
}

// What it wrote of what it was given: results as well, numbered after those it returned.
void see_written(Session& session, OpThread& thread, const std::vector<Record>& before, size_t n_returned) {
  for (size_t i = 0; i < thread.call.inputs.size(); ++i) {
    CallInput& in = thread.call.inputs[i];
    CallOutput out;
    if (!scan_result(session, in.tensor, out.record)) continue;
    // On a device nobody knows yet: it may have written anything. A bad value that it only read stays bad, and is handed on.
    if (!session.is_late(in.tensor) && same_content(before[i], out.record)) continue;
    in.written = true;
    thread.call.written.push_back(in.tensor);
    bool returned = false;
    for (const auto& other : thread.outputs) returned = returned || other.tensor.is_same(in.tensor);
    if (returned) continue;
    out.tensor = in.tensor;
    out.index = static_cast<uint32_t>(n_returned++);
    thread.outputs.push_back(std::move(out));
  }
}

}  // namespace

bool same_content(const Record& a, const Record& b) {
  const auto same = [](const double& x, const double& y) { return std::memcmp(&x, &y, sizeof(double)) == 0; };
  return a.n_nan == b.n_nan && a.n_posinf == b.n_posinf && a.n_neginf == b.n_neginf && a.first_bad == b.first_bad &&
         a.n_zero == b.n_zero && a.n_subnormal == b.n_subnormal && same(a.min, b.min) && same(a.max, b.max) &&
         same(a.mean, b.mean) && same(a.m2, b.m2);
}

uint64_t begin_extension(Session& session, uint32_t op, const std::vector<at::Tensor>& given) {
  OpThread& thread = op_thread();
  if (thread.running || !observing(session) || (inside_node() && !node_wants_line())) return 0;
  begin_call(session, thread, op);
  ExtensionThread& extension = extension_thread();
  extension.call = thread.call.call;
  extension.first_node = static_cast<int64_t>(at::sequence_number::peek());
  extension.before.clear();
  for (const at::Tensor& t : given) take_input(session, thread, extension.before, t);
  return extension.call;
}

void end_extension(Session& session, uint64_t call, const std::vector<at::Tensor>& results) {
  ExtensionThread& extension = extension_thread();
  if (call == 0 || extension.call != call) return;
  OpThread& thread = op_thread();
  thread.running = false;
  thread.outputs.clear();
  see_results(session, thread, results);
  see_written(session, thread, extension.before, results.size());
  if (inside_node()) {  // a Python backward: the node is judged, and the line is this call's
    for (const auto& out : thread.outputs) {
      if (bits_of(out.record)) set_node_line(capture_line());
    }
  } else {
    end_call(session, thread, extension.first_node);
  }
  drop_extension(call);
}

void drop_extension(uint64_t call) {
  ExtensionThread& extension = extension_thread();
  if (extension.call == 0 || (call != 0 && extension.call != call)) return;
  extension.call = 0;
  op_thread().clear();
}

}  // namespace nanscan
