#include "hooks/op_call.h"

#include <ATen/record_function.h>

#include "hooks/op_tensors.h"
#include "hooks/source_line.h"

namespace nanscan {
namespace {

void append_statistics(Session& session, const RunningCall& call, const at::Tensor& t, Record rec, uint32_t site, uint16_t flags,
                       uint32_t index) {
  rec.site = site;
  rec.call = call.call;
  rec.flags |= flags;
  rec.output_index = static_cast<uint16_t>(index);
  rec.phase = call.phase;
  rec.device = -1;
  rec.shape = session.shapes.id_of(t.sizes());
  session.append(rec);
}

}  // namespace

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
      if (now != 0 && !(in.bits & kBadBits)) {
        in.value = session.next_call.fetch_add(1, std::memory_order_relaxed) + 1;
        in.bits = now | kValueChanged | kValueOutside;
        session.storages.set_changed(in.tensor, in.value, now);
      }
    }
  }
  CallRecord rec{};
  rec.call = call.call;
  rec.site = call.site;
  rec.bits = call.bits;
  rec.flags = kFlagCall;
  rec.op = call.op;
  rec.line = call.line != 0 ? call.line : (call.kind == kCallNode || call.kind == kCallLeaf ? 0 : capture_line());
  rec.kind = call.kind;
  rec.n_outputs = static_cast<uint8_t>(outputs.size());
  rec.output_bits = out_bits;
  rec.thread = static_cast<uint32_t>(at::RecordFunction::currentThreadId());
  rec.output = call.call;
  rec.device = -1;
  rec.phase = call.phase;
  const bool node = call.kind == kCallNode;
  if (node) rec.inputs[kMaxCallInputs - 1] = call.forward;
  const uint32_t room = node ? kMaxCallInputs - 1 : kMaxCallInputs;
  // Bad inputs first: they are what the analysis is about.
  for (int wanted = 1; wanted >= 0; --wanted) {
    for (const auto& in : call.inputs) {
      if (((in.bits & kBadBits) != 0) != (wanted != 0) || rec.n_inputs >= room) continue;
      const uint8_t param = in.bits && session.watched_storage(in.tensor) != kNoSite ? kValueParam : 0;
      rec.inputs[rec.n_inputs++] = in.value << 8 | in.bits | param;
    }
  }
  session.append(reinterpret_cast<Record&>(rec));
  if (bad) session.note_bad_call(call.call);
  if (bad) {
    for (const auto& out : outputs) {
      if (!bits_of(out.record)) continue;
      const uint32_t owner = session.watched_storage(out.tensor);
      append_statistics(session, call, out.tensor, out.record, owner != kNoSite ? owner : call.site, 0, out.index);
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
  if (!t.defined() || !scannable(t)) return false;
  RunningCall call;
  call.call = session.next_call.fetch_add(1, std::memory_order_relaxed) + 1;
  call.kind = kind;
  call.site = site;
  call.phase = phase;
  const ValueState state = session.storages.read(t, session.next_call.fetch_add(1, std::memory_order_relaxed) + 1);
  if (!(state.bits & kBadBits)) return false;
  call.inputs.push_back({t, state.value, state.bits, false, state.scanned_now});
  write_call(session, call, {});
  return true;
}

}  // namespace nanscan
