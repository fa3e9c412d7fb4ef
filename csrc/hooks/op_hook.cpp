#include "hooks/op_hook.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <atomic>
#include <cmath>
#include <mutex>

#include "hooks/details.h"
#include "hooks/forward_map.h"
#include "hooks/guard.h"
#include "hooks/module_hook.h"
#include "hooks/node_hook.h"
#include "hooks/op_call.h"
#include "hooks/op_table.h"
#include "hooks/op_tensors.h"
#include "hooks/source_line.h"

namespace nanscan {
namespace {

std::mutex mutex;
std::shared_ptr<Session> watched_session;        // guarded by `mutex`
std::atomic<Session*> current{nullptr};          // the same, for the callbacks
at::CallbackHandle handles[2] = {at::INVALID_CALLBACK_HANDLE, at::INVALID_CALLBACK_HANDLE};

// How an op is followed until it ends.
enum class Follow {
  kAll,   // what it reads and makes
  kNode,  // inside a Python backward: only where the first bad value came from
  kLook,  // on wrapped tensors: only which autograd node it made; the op inside is followed itself
  kMade,  // inside a node, with gradients on (double backward, a forward run again): the same
};

struct Tracked : at::ObserverContext {
  const OpInfo* info = nullptr;
  int64_t seq = -1;
  Follow follow = Follow::kAll;
};

bool wraps_any(const at::RecordFunction& fn) {
  bool found = false;
  for (const auto& v : fn.inputs()) {
    for_each_tensor(v, [&](const at::Tensor& t) { found = found || wraps_another(t); });
  }
  return found;
}

void take_wrapped_number(const at::Tensor& t, uint16_t argument, RunningCall& call) {
  if (!t.device().is_cpu() || !t.has_storage()) return;
  double number = 0.0;
  if (t.scalar_type() == at::kDouble) number = *t.const_data_ptr<double>();
  else if (t.scalar_type() == at::kLong) number = static_cast<double>(*t.const_data_ptr<int64_t>());
  else return;
  if (!std::isfinite(number)) call.bits |= kCallConstant;
  call.scalars.push_back({argument, false, number});
}

// Batch norm in training: what its running statistics hold at the end is its own doing.
void note_updated(const OpInfo& info, RunningCall& call) {
  const auto training = [&] {
    for (const Scalar& s : call.scalars) {
      if (s.argument == info.training_argument) return s.value != 0;
    }
    return false;
  };
  if (!training()) return;
  for (CallInput& in : call.inputs) {
    if (!(in.argument < 64 && (info.updated >> in.argument & 1))) continue;
    in.written = true;
    call.updated.push_back(in.tensor);
  }
}

void take_inputs(Session& session, const at::RecordFunction& fn, const OpInfo& info, RunningCall& call, bool inside_node) {
  bool any_tensor = false;
  const auto inputs = fn.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].isDouble() && !std::isfinite(inputs[i].toDouble())) call.bits |= kCallConstant;
    const bool written = i < 64 && (info.written >> i & 1);
    const bool read = !(i < 64 && (info.overwritten >> i & 1));
    const auto argument = static_cast<uint16_t>(i);
    const bool listed = inputs[i].isList();
    uint16_t item = 0;
    if (!inputs[i].isTensor()) take_scalars(inputs[i], argument, call.scalars);
    for_each_tensor(inputs[i], [&](const at::Tensor& t) {
      const uint16_t place = item++;
      if (t.unsafeGetTensorImpl()->is_wrapped_number()) {  // a Python number in a tensor's clothes: x * nan
        take_wrapped_number(t, argument, call);
        return;
      }
      if (!scannable(session, t)) {
        if (counts(t)) call.counts.push_back({t, argument, place, listed});
        return;
      }
      any_tensor = true;
      if (written) call.written.push_back(t);
      if (!read || (info.rules & kOpUninit)) return;
      if (inside_node) {
        call.inputs.push_back({t, 0, 0, written, false, argument, place, listed});
        return;
      }
      const ValueState state = session.state_of(t);
      call.inputs.push_back({t, state.value, state.bits, written, state.scanned_now, argument, place, listed});
    });
  }
  if (!any_tensor) call.bits |= kCallNoTensors;
  if (info.updated != 0) note_updated(info, call);
}

std::unique_ptr<at::ObserverContext> op_begins(Session* session, OpThread& thread, const at::RecordFunction& fn) {
  const bool in_node = inside_node();
  const bool makes_nodes = in_node && c10::GradMode::is_enabled();
  if (in_node && !makes_nodes && !node_wants_line()) return nullptr;
  InsideHook inside;
  if (inside.reentered()) return nullptr;
  const OpInfo* info = op_info(fn);
  if (info == nullptr) {
    // A Python autograd.Function's apply: its node takes the next sequence number, outside every op.
    if (fn.seqNr() >= 0) {
      note_forward(fn.seqNr(), fn.seqNr() + 1,
                   in_node ? made_inside_node(*session, 0) : ForwardOp{current_module_site(*session), capture_line()});
    }
    return nullptr;
  }
  if (info->rules & kOpFilled) {
    for (const auto& v : fn.inputs()) for_each_tensor(v, [&](const at::Tensor& t) { session->storages.forget(t); });
  }
  if ((info->rules & kOpTransparent) || ((info->rules & kOpLook) && !(info->rules & kOpHost))) return nullptr;
  auto tracked = std::make_unique<Tracked>();
  tracked->info = info;
  tracked->seq = static_cast<int64_t>(at::sequence_number::peek());
  if (in_dispatch_mode() || wraps_any(fn)) {
    tracked->follow = Follow::kLook;
    return tracked;
  }
  if (in_node && !node_wants_line()) {
    tracked->follow = Follow::kMade;
    return tracked;
  }
  begin_call(*session, thread, info->id);
  RunningCall& call = thread.call;
  call.info = info;
  if (session->in_scale.load(std::memory_order_relaxed)) call.bits |= kCallScales;
  if (info->rules & kOpSelects) call.bits |= kCallSelects;
  if (info->rules & kOpHost) call.bits |= kCallHost;
  if (info->rules & kOpConstant) call.bits |= kCallConstant | kCallSelects;  // a constant is picked, not computed
  if (in_node) tracked->follow = Follow::kNode;
  take_inputs(*session, fn, *info, call, in_node);
  return tracked;
}

// A tensor of a kind we do not know may throw where others answer. torch swallows what a callback throws, and calls no end
// callback then: without this the op would seem to run for ever, and hide all that follow.
template <typename F>
void survive(Session& session, OpThread& thread, const F& f) {
  try {
    f();
  } catch (...) {
    session.n_unreadable_calls.fetch_add(1, std::memory_order_relaxed);
    thread.clear();
  }
}

std::unique_ptr<at::ObserverContext> op_starts(const at::RecordFunction& fn) {
  Session* session = current.load(std::memory_order_acquire);
  if (session == nullptr || process_inert().load(std::memory_order_relaxed) || !session->watching()) return nullptr;
  OpThread& thread = op_thread();
  std::unique_ptr<at::ObserverContext> context;
  if (!thread.running) survive(*session, thread, [&] { context = op_begins(session, thread, fn); });
  return context;
}

void see_output(Session& session, OpThread& thread, const OpInfo& info, const at::Tensor& t, uint32_t index, bool written) {
  RunningCall& call = thread.call;
  if ((info.rules & kOpUninit) && !scannable(session, t)) return;
  if (info.rules & kOpUninit) {
    session.storages.mark_uninitialised(t, call.call, call.site, 0);
    return;
  }
  if (!written) {
    for (const auto& in : call.inputs) {  // handed through: not made here
      if (shares_memory(in.tensor, t)) return;
    }
  }
  CallOutput out;
  out.tensor = t;
  out.index = index;
  out.item = static_cast<uint16_t>(index);
  out.legal = index < 64 && (info.legal >> index & 1);
  if (!scan_result(session, t, out.record)) return;
  thread.outputs.push_back(std::move(out));
}

void see_outputs(Session& session, OpThread& thread, const OpInfo& info, const at::RecordFunction& fn) {
  const RunningCall& call = thread.call;
  thread.outputs.clear();
  uint32_t index = 0;
  for (const auto& v : fn.outputs()) {
    for_each_tensor(v, [&](const at::Tensor& t) {
      bool is_written = false;
      for (const auto& w : call.written) is_written = is_written || w.is_same(t);
      if (!is_written) see_output(session, thread, info, t, index, false);
      ++index;
    });
  }
  uint16_t item = 0;
  for (const auto& t : call.written) {
    const size_t n = thread.outputs.size();
    see_output(session, thread, info, t, 0, true);
    if (thread.outputs.size() > n) thread.outputs.back().item = item;
    ++item;
  }
}

void note_made_inside(const Session& session, const Tracked& tracked) {
  const auto seq = static_cast<int64_t>(at::sequence_number::peek());
  if (seq > tracked.seq) note_forward(tracked.seq, seq, made_inside_node(session, tracked.info->id));
}

// An op inside a Python backward: the node is judged, not the op, but the line is the op's.
void end_in_node(Session& session, OpThread& thread, const Tracked& tracked, const at::RecordFunction& fn) {
  note_made_inside(session, tracked);
  if (tracked.info->rules & kOpUninit) return;
  see_outputs(session, thread, *tracked.info, fn);
  bool bad = false;
  for (const auto& out : thread.outputs) bad = bad || (bits_of(out.record) && !out.legal);
  RunningCall& call = thread.call;
  if (!bad || ((call.bits & kCallConstant) && (call.bits & kCallSelects))) return;  // a mask's -inf is meant here too
  for (CallInput& in : call.inputs) {
    Record rec{};
    if (!in.written && scanned(scan_tensor(in.tensor, rec))) in.bits = bits_of(rec);
  }
  const CallOutput* born = born_in(call, thread.outputs);
  if (born == nullptr) return;  // it only carries
  if (RunningCall* node = node_without_details()) {
    describe_inner(tracked.info->id, *born, node->details);
    describe_arguments(session, call, *born, node->details);
  }
  set_node_line(capture_line());
}

void end_all(Session& session, OpThread& thread, const Tracked& tracked, const at::RecordFunction& fn) {
  see_outputs(session, thread, *tracked.info, fn);
  for (const at::Tensor& t : thread.call.updated) {
    Record rec{};
    if (scanned(scan_tensor(t, rec))) {
      session.storages.write(t, thread.call.call, bits_of(rec), thread.call.site, thread.call.line);
    }
  }
  end_call(session, thread, tracked.seq);
}

void op_ends(const at::RecordFunction& fn, at::ObserverContext* context) {
  const auto* tracked = static_cast<const Tracked*>(context);
  if (tracked == nullptr) return;
  Session* session = current.load(std::memory_order_acquire);
  if (tracked->follow == Follow::kMade || (tracked->follow == Follow::kLook && inside_node())) {
    if (session != nullptr && inside_node()) note_made_inside(*session, *tracked);
    return;
  }
  if (tracked->follow == Follow::kLook) {
    const auto seq = static_cast<int64_t>(at::sequence_number::peek());
    if (session == nullptr || seq <= tracked->seq) return;
    note_forward(tracked->seq, seq, {current_module_site(*session), capture_line(), tracked->info->id, 0});
    return;
  }
  OpThread& thread = op_thread();
  thread.running = false;
  if (session != nullptr && session->watching()) {
    InsideHook inside;
    survive(*session, thread, [&] { (tracked->follow == Follow::kNode ? end_in_node : end_all)(*session, thread, *tracked, fn); });
  }
  thread.clear();
}

std::unique_ptr<at::ObserverContext> node_starts(const at::RecordFunction& fn) {
  Session* session = current.load(std::memory_order_acquire);
  if (session == nullptr || process_inert().load(std::memory_order_relaxed)) return nullptr;
  return begin_node(*session, fn);
}

void node_ends(const at::RecordFunction& fn, at::ObserverContext* context) {
  if (context != nullptr) end_node();
}

}  // namespace

bool start_observing(const std::shared_ptr<Session>& session) {
  std::lock_guard<std::mutex> lock(mutex);
  if (watched_session == session) return true;
  if (watched_session != nullptr) return false;
  watched_session = session;
  current.store(session.get(), std::memory_order_release);
  handles[0] = at::addGlobalCallback(
      at::RecordFunctionCallback(op_starts, op_ends).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  handles[1] = at::addGlobalCallback(
      at::RecordFunctionCallback(node_starts, node_ends).needsInputs(true).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  return true;
}

void stop_observing(const Session& session) {
  std::lock_guard<std::mutex> lock(mutex);
  if (watched_session.get() != &session) return;
  for (auto& handle : handles) {
    if (handle != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
  }
  current.store(nullptr, std::memory_order_release);
  watched_session->storages.clear();
  watched_session.reset();
}

bool observing(const Session& session) { return current.load(std::memory_order_acquire) == &session; }

}  // namespace nanscan
