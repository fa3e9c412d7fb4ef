// A module call inside a compiled graph: there is no frame and no enter, only the op that carries inputs and outputs.
// Writes the same records as leave() does, with call ids kept by site.
#include "hooks/traced_call.h"

#include "hooks/guard.h"
#include "hooks/module_hook.h"
#include "hooks/op_call.h"
#include "hooks/op_tensors.h"

namespace nanscan {
namespace {

// Op level: no op inside a compiled graph is dispatched, so a module there is the smallest thing that is seen, and it is
// judged as an op would be.
bool traced_op(Session& session, uint32_t site, uint32_t parent_site, const std::vector<at::Tensor>& inputs,
               const std::vector<at::Tensor>& outputs) {
  RunningCall call;
  call.call = session.traced_call_id(site);
  call.op = name_id("torch.compile");
  call.site = site;
  call.phase = kPhaseForward;
  for (const at::Tensor& t : inputs) {
    if (!scannable(session, t)) continue;
    const ValueState state = session.state_of(t);
    call.inputs.push_back({t, state.value, state.bits, false, state.scanned_now});
  }
  // What a module inside this one made is an input too: else each module around the first bad one would look like another.
  const TracedChild child = session.traced_child(site);
  if (child.bits != 0) call.inputs.push_back({at::Tensor(), child.call, child.bits, true, false});
  std::vector<CallOutput> made;
  uint8_t bits = 0;
  bool late = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    CallOutput out;
    out.tensor = outputs[i];
    out.index = static_cast<uint32_t>(i);
    if (!scannable(session, out.tensor)) continue;
    if (session.is_late(out.tensor)) {
      if (session.storages.knows(out.tensor)) continue;  // by the op that made it
      out.record.flags |= kFlagLate;
      made.push_back(std::move(out));
      late = true;
      continue;
    }
    const ValueState before = session.storages.read(out.tensor, session.next_id());
    if (!scan_result(session, out.tensor, out.record)) continue;
    // A backend that runs the graph op by op (aot_eager): its ops were seen, and the one that made this is known.
    const bool known = (before.bits & kBadBits) && !(before.bits & (kValueOutside | kValueChanged));
    if (known && bits_of(out.record)) continue;
    bits |= bits_of(out.record);
    made.push_back(std::move(out));
  }
  const uint8_t handed_up = late ? static_cast<uint8_t>(kValueLate) : bits;
  if (handed_up != 0 && parent_site != kNoSite) session.set_traced_child(parent_site, {call.call, handed_up});
  record_outcome(session, call, made, bits != 0 || call.bad_input());
  return bits != 0;
}

}  // namespace

void traced_begin(Session& session, uint32_t site, const std::vector<at::Tensor>& inputs) {
  if (process_inert().load(std::memory_order_relaxed)) return;
  if (current_module_site(session) == site) return;  // the hooks of the compiled model's own call have seen it begin
  const uint64_t batch = session.batch.fetch_add(1, std::memory_order_relaxed);
  if (!session.watching()) return;
  InsideHook inside;
  Record enter{};
  enter.site = site;
  enter.call = session.next_id();
  enter.flags = kFlagEnter;
  enter.phase = kPhaseForward;
  enter.n = batch;
  session.set_traced_call_id(site, enter.call);
  session.append(enter);
  if (session.op_level.load(std::memory_order_relaxed)) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Record rec{};
    rec.site = site + kInputSite;
    rec.call = enter.call;
    rec.flags = kFlagInput;
    rec.output_index = static_cast<uint16_t>(i);
    rec.phase = kPhaseData;
    session.record(inputs[i], rec);
  }
}

bool traced_call(Session& session, uint32_t site, uint32_t parent_site, bool root, const std::vector<at::Tensor>& inputs,
                 const std::vector<at::Tensor>& outputs) {
  if (process_inert().load(std::memory_order_relaxed) || !session.watching()) return false;
  if (root && current_module_site(session) == site) return false;  // and will see it end
  InsideHook inside;
  if (session.op_level.load(std::memory_order_relaxed)) {
    const bool bad = traced_op(session, site, parent_site, inputs, outputs);
    for (const at::Tensor& t : outputs) {
      if (root && bad) observe_escape(session, t, kCallTop, site, kPhaseForward);
    }
    return bad;
  }
  const uint64_t call = session.traced_call_id(site);
  bool bad = false, late = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Record rec{};
    rec.site = site;
    rec.call = call;
    rec.output_index = static_cast<uint16_t>(i);
    rec.phase = kPhaseForward;
    rec.flags = root ? kFlagTop : 0;
    if (!session.record(outputs[i], rec)) continue;
    bad |= (rec.flags & kFlagBad) != 0;
    late |= rec.seq != 0;
  }
  if (root) session.poll_device();
  if (!bad && !late) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Record rec{};
    rec.site = site + kInputSite;
    rec.call = call;
    // The root's inputs were seen when its forward began.
    rec.flags = root ? kFlagInput | kFlagKnown : kFlagInput;
    rec.output_index = static_cast<uint16_t>(i);
    rec.phase = kPhaseForward;
    session.record(inputs[i], rec);
  }
  Record link{};
  link.flags = kFlagLink;
  link.phase = kPhaseForward;
  link.call = call;
  link.site = parent_site;
  link.n = kLinkParent;
  link.n_nan = parent_site == kNoSite ? 0 : session.traced_call_id(parent_site);
  session.append(link);
  return bad;
}

void traced_parameter(Session& session, const at::Tensor& t, uint32_t site, uint32_t module_site) {
  Record rec{};
  if (!scanned(scan_tensor(t, rec)) || !(rec.flags & kFlagBad)) return;
  rec.flags |= kFlagParam;
  rec.site = site;
  rec.call = session.traced_call_id(module_site);
  rec.phase = kPhaseForward;
  rec.device = -1;
  rec.shape = session.shapes.id_of(t.sizes());
  session.append(rec);
}

}  // namespace nanscan
