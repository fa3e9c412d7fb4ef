#include "hooks/op_call.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include "hooks/details.h"
#include "hooks/forward_map.h"
#include "hooks/module_hook.h"
#include "hooks/node_hook.h"
#include "hooks/op_tensors.h"
#include "hooks/source_line.h"

namespace nanscan {
namespace {

void append_statistics(Session& session, const RunningCall& call, const at::Tensor& t, Record rec, uint32_t site, uint16_t flags,
                       uint32_t index) {
  rec.site = site;
  rec.call = call.call;
  rec.flags |= flags | kFlagOp;
  rec.output_index = static_cast<uint16_t>(index);
  rec.phase = call.phase;
  rec.device = -1;
  rec.shape = session.shapes.id_of(t.sizes());
  session.append(rec);
}

bool is_late(const RunningCall& call, const std::vector<CallOutput>& outputs) {
  for (const auto& in : call.inputs) {
    if (in.bits & kValueLate) return true;
  }
  for (const auto& out : outputs) {
    if (out.record.flags & kFlagLate) return true;
  }
  return false;
}

CallRecord header_of(const RunningCall& call, size_t n_outputs) {
  CallRecord rec{};
  rec.call = call.call;
  rec.site = call.site;
  rec.bits = call.bits;
  rec.flags = kFlagCall;
  rec.op = call.op;
  rec.line = call.line;
  rec.kind = call.kind;
  rec.n_outputs = static_cast<uint8_t>(n_outputs);
  rec.thread = static_cast<uint32_t>(at::RecordFunction::currentThreadId());
  rec.output = call.call;
  rec.device = -1;
  rec.phase = call.phase;
  if (call.kind == kCallNode) rec.inputs[kMaxCallInputs - 1] = call.forward;
  return rec;
}

uint32_t room_for_inputs(const RunningCall& call) { return call.kind == kCallNode ? kMaxCallInputs - 1 : kMaxCallInputs; }

void add_input(const Session& session, CallRecord& rec, const CallInput& in) {
  const uint8_t param = in.bits && session.watched_storage(in.tensor) != kNoSite ? kValueParam : 0;
  rec.inputs[rec.n_inputs++] = in.value << 8 | in.bits | param;
}

// Its results' statistics first, so that they are there when LateCalls comes to the call itself.
void write_late_call(Session& session, RunningCall& call, const std::vector<CallOutput>& outputs) {
  CallRecord rec = header_of(call, outputs.size());
  rec.flags |= kFlagLate;
  for (const auto& out : outputs) {
    const uint32_t owner = session.watched_storage(out.tensor);
    Record header{};
    header.site = owner != kNoSite ? owner : call.site;
    header.call = call.call;
    header.flags = kFlagLate | kFlagOp | (out.legal ? kFlagKnown : 0);
    header.output_index = static_cast<uint16_t>(out.index);
    header.phase = call.phase;
    if (out.record.flags & kFlagLate) session.record(out.tensor, header);
    else if (!out.legal) rec.output_bits |= bits_of(out.record);  // handed to the CPU
  }
  for (const auto& in : call.inputs) {
    if (rec.n_inputs < room_for_inputs(call)) add_input(session, rec, in);
  }
  session.append(reinterpret_cast<Record&>(rec));
  for (const auto& out : outputs) {
    if (!(out.record.flags & kFlagLate) && bits_of(out.record)) {
      append_statistics(session, call, out.tensor, out.record, call.site, 0, out.index);
    }
  }
}

Phase phase_now(const Session& session) {
  if (in_graph_task()) return kPhaseBackward;
  if (session.in_optimizer.load(std::memory_order_relaxed)) return kPhaseOptimizer;
  if (current_module_site(session) != kNoSite) return kPhaseForward;
  if (session.after_backward.load(std::memory_order_relaxed)) return kPhaseOptimizer;
  return session.forward_seen.load(std::memory_order_relaxed) || !session.has_model.load(std::memory_order_relaxed) ? kPhaseForward
                                                                                                                   : kPhaseData;
}

}  // namespace

OpThread& op_thread() {
  static thread_local OpThread state;
  return state;
}

void begin_call(Session& session, OpThread& thread, uint32_t op) {
  RunningCall& call = thread.call;
  thread.running = true;
  call.clear();
  call.call = session.next_id();
  call.op = op;
  call.kind = kCallOp;
  call.site = current_module_site(session);
  call.phase = phase_now(session);
}

void end_call(Session& session, OpThread& thread, int64_t first_node) {
  RunningCall& call = thread.call;
  bool bad = call.bad_input();
  for (const auto& out : thread.outputs) bad = bad || (bits_of(out.record) && !out.legal);
  // The line is wanted by the node it made, should that go bad, and by whoever reads the memory after a write that nobody
  // saw. An optimizer's own code is no use to either.
  const auto node = static_cast<int64_t>(at::sequence_number::peek());
  if (bad || call.phase != kPhaseOptimizer) call.line = capture_line();
  if (node > first_node) note_forward(first_node, node, {call.site, call.line, call.op, call.call});
  record_outcome(session, call, thread.outputs, bad);
}

void record_outcome(Session& session, RunningCall& call, const std::vector<CallOutput>& outputs, bool bad) {
  const bool late = is_late(call, outputs);
  for (const auto& t : call.written) {
    if ((bad || late) && session.watched_storage(t) != kNoSite) call.bits |= kCallWritesParam;
  }
  if ((call.bits & kCallWritesParam) && call.phase != kPhaseBackward) call.phase = kPhaseOptimizer;
  for (const auto& out : outputs) {
    if (!(out.record.flags & kFlagLate)) {
      session.storages.write(out.tensor, call.call, bits_of(out.record), call.site, call.line);
      if (!bad) session.history.note({call.site, call.op, call.line}, session.step.load(std::memory_order_relaxed), out.record);
    } else if (const uint64_t rest = session.storages.write_late(out.tensor, call.call, call.site, call.line)) {
      call.inputs.push_back({at::Tensor(), rest | kRestOfStorage, kValueLate, true, false});
    }
  }
  if (late) write_late_call(session, call, outputs);
  else if (bad) write_call(session, call, outputs);
}

const CallOutput* born_in(const RunningCall& call, const std::vector<CallOutput>& outputs) {
  uint8_t given = 0, made = 0;
  for (const auto& in : call.inputs) given |= in.bits & kBadBits;
  for (const auto& out : outputs) made |= out.legal ? 0 : bits_of(out.record);
  const bool new_nan = (made & kHasNan) && !(given & kHasNan);
  if (!new_nan && (made == 0 || given != 0)) return nullptr;
  for (const auto& out : outputs) {
    if (!out.legal && (bits_of(out.record) & (new_nan ? kHasNan : kBadBits))) return &out;
  }
  return nullptr;
}

void note_change(Session& session, CallInput& in, uint8_t now) {
  in.value = session.next_id();
  in.bits = now | kValueChanged | kValueOutside;
  session.storages.set_changed(in.tensor, in.value, now);
}

void write_call(Session& session, RunningCall& call, const std::vector<CallOutput>& outputs) {
  uint8_t out_bits = 0;
  for (const auto& out : outputs) {
    if (!out.legal) out_bits |= bits_of(out.record);
  }
  const bool bad = (out_bits & kBadBits) != 0;
  std::vector<Record> input_records(call.inputs.size());
  if (bad) {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      CallInput& in = call.inputs[i];
      if (in.written || !scanned(scan_tensor(in.tensor, input_records[i]))) continue;
      const uint8_t now = bits_of(input_records[i]);
      if (now != 0 && !(in.bits & kBadBits)) note_change(session, in, now);
    }
  }
  if (call.line == 0 && call.kind != kCallNode && call.kind != kCallLeaf) call.line = capture_line();
  CallRecord rec = header_of(call, outputs.size());
  rec.output_bits = out_bits;
  // Bad inputs first: they are what the analysis is about.
  for (int wanted = 1; wanted >= 0; --wanted) {
    for (const auto& in : call.inputs) {
      if (((in.bits & kBadBits) != 0) == (wanted != 0) && rec.n_inputs < room_for_inputs(call)) add_input(session, rec, in);
    }
  }
  session.append(reinterpret_cast<Record&>(rec));
  const CallOutput* born = bad ? born_in(call, outputs) : nullptr;
  if (born != nullptr) {
    if (call.kind == kCallOp) describe_arguments(session, call, *born, call.details);
    describe_past(session, call, call.details);
    for (Record& detail : call.details) {
      detail.call = call.call;
      detail.phase = call.phase;
      session.append(detail);
    }
  }
  if (bad) session.note_bad_call(call.call);
  if (bad) {
    for (const auto& out : outputs) {
      if (!bits_of(out.record)) continue;
      const uint32_t owner = session.watched_storage(out.tensor);
      Record made = out.record;
      if (&out == born) made.first_bad = first_bad(out);
      append_statistics(session, call, out.tensor, made, owner != kNoSite ? owner : call.site, 0, out.index);
    }
  }
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    CallInput& in = call.inputs[i];
    if (!bad && !(in.bits & kBadBits)) continue;
    if (input_records[i].dtype == 0 && (in.written || !scanned(scan_tensor(in.tensor, input_records[i])))) continue;
    const uint32_t owner = session.watched_storage(in.tensor);
    uint16_t flags = kFlagInput;
    if (in.bits & kValueChanged) flags |= kFlagChanged;
    append_statistics(session, call, in.tensor, input_records[i], owner != kNoSite ? owner : call.site, flags, static_cast<uint32_t>(i));
    if ((in.bits & kValueChanged) != 0) {
      Record link{};
      uint32_t site = kNoSite, line = 0;
      session.storages.last_seen(in.tensor, site, line);
      link.flags = kFlagLink;
      link.phase = call.phase;
      link.call = call.call;
      link.site = site;
      link.n = kLinkProducerOfInput;
      link.n_zero = line;
      link.output_index = static_cast<uint16_t>(i);
      session.append(link);
    }
  }
  session.n_bad.fetch_add(1, std::memory_order_release);
}

bool observe_escape(Session& session, const at::Tensor& t, CallKind kind, uint32_t site, Phase phase) {
  if (!t.defined() || !scannable(session, t)) return false;
  RunningCall call;
  call.call = session.next_id();
  call.kind = kind;
  call.site = site;
  call.phase = phase;
  const ValueState state = session.state_of(t);
  if (!(state.bits & (kBadBits | kValueLate))) return false;
  call.inputs.push_back({t, state.value, state.bits, false, state.scanned_now});
  if (state.bits & kValueLate) {
    if (kind != kCallLeaf) call.line = capture_line();
    write_late_call(session, call, {});
    return false;
  }
  write_call(session, call, {});
  return true;
}

}  // namespace nanscan
