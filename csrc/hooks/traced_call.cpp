// A module call inside a compiled graph: there is no frame and no enter, only the op that carries inputs and outputs.
// Writes the same records as leave() does, with call ids kept by site.
#include "hooks/traced_call.h"

#include "hooks/guard.h"
#include "hooks/module_hook.h"

namespace nanscan {

void traced_begin(Session& session, uint32_t site, const std::vector<at::Tensor>& inputs) {
  if (process_inert().load(std::memory_order_relaxed)) return;
  if (current_module_site(session) == site) return;  // the hooks of the compiled model's own call have seen it begin
  const uint64_t batch = session.batch.fetch_add(1, std::memory_order_relaxed);
  if (!session.watching()) return;
  InsideHook inside;
  Record enter{};
  enter.site = site;
  enter.call = session.next_call.fetch_add(1, std::memory_order_relaxed) + 1;
  enter.flags = kFlagEnter;
  enter.phase = kPhaseForward;
  enter.n = batch;
  session.set_traced_call_id(site, enter.call);
  session.append(enter);
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
  const uint64_t call = session.traced_call_id(site);
  bool bad = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Record rec{};
    rec.site = site;
    rec.call = call;
    rec.output_index = static_cast<uint16_t>(i);
    rec.phase = kPhaseForward;
    rec.flags = root ? kFlagTop : 0;
    if (session.record(outputs[i], rec)) bad |= (rec.flags & kFlagBad) != 0;
  }
  if (!bad) return false;
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
  return true;
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
