#include "hooks/call_values.h"

#include <c10/core/GradMode.h>

#include "hooks/autograd_hook.h"
#include "hooks/extension.h"
#include "hooks/tree.h"

namespace nanscan {
namespace {

bool record_value(Session& session, const at::Tensor& t, Record& rec) {
  ReleaseGil release(t.numel());
  return session.record(t, rec);
}

// A look that leaves no record.
bool look_at(const at::Tensor& t, Record& rec) {
  ReleaseGil release(t.numel());
  return scanned(scan_tensor(t, rec));
}

void remember(SeenValue& seen, const Record& rec) {
  seen.site = rec.site;
  seen.call = rec.call;
  seen.scanned = true;
  seen.late = rec.seq;
  seen.n_nan = rec.n_nan;
  seen.n_posinf = rec.n_posinf;
  seen.n_neginf = rec.n_neginf;
}

bool wants_gradient(const at::Tensor& t) { return c10::GradMode::is_enabled() && t.requires_grad(); }

Party party_of(const Frame& frame, uint32_t site) { return Party{site, frame.call, frame.parent_call, frame.parent_site}; }

// What an extension is given is read whatever is known of it: such code writes without raising a version.
void take_state(Frame& frame, SeenInput& input, const at::Tensor& t) {
  Record& before = frame.before.emplace_back();
  if (!look_at(t, before)) return;
  const bool was_clean = input.counted && (input.n_nan | input.n_posinf | input.n_neginf) == 0;
  input.changed = input.known && was_clean && (before.flags & kFlagBad);
  input.counted = true;
  input.n_nan = before.n_nan;
  input.n_posinf = before.n_posinf;
  input.n_neginf = before.n_neginf;
}

Record input_header(const Tap& tap, const Frame& frame, uint32_t ordinal) {
  Record rec{};
  rec.site = tap.options.site + kInputSite;
  rec.call = frame.call;
  rec.flags = kFlagInput;
  rec.output_index = static_cast<uint16_t>(ordinal);
  rec.phase = kPhaseForward;
  return rec;
}

const SeenInput* input_of(const Frame& frame, const at::Tensor& t) {
  for (const SeenInput& input : frame.inputs) {
    if (input.impl == t.unsafeGetTensorImpl()) return &input;
  }
  return nullptr;
}

}  // namespace

void append_link(Session& session, uint64_t call, uint64_t code, uint32_t site, uint64_t other_call, uint32_t ordinal) {
  Record link{};
  link.flags = kFlagLink;
  link.phase = kPhaseForward;
  link.call = call;
  link.site = site;
  link.n = code;
  link.n_nan = other_call;
  link.output_index = static_cast<uint16_t>(ordinal);
  session.append(link);
}

void see_input(const Tap& tap, ThreadState& state, Frame& frame, const at::Tensor& t, uint32_t ordinal) {
  Session& session = *tap.session;
  const bool inference = t.unsafeGetTensorImpl()->is_inference();  // no version counter: nothing tells two values apart
  SeenValue* seen = inference ? nullptr : state.values.find(t, &session);
  const bool scan_now = tap.options.root || (tap.options.eager_inputs && (seen == nullptr || !seen->scanned));
  Record rec{};
  bool recorded = false;
  if (scan_now) {
    rec = input_header(tap, frame, ordinal);
    if (tap.options.root) rec.phase = kPhaseData;
    const bool known = seen != nullptr && seen->scanned;
    recorded = record_value(session, t, rec);
    if (recorded && !inference) {
      if (!known) {
        std::shared_ptr<GradTap> grad = seen != nullptr ? seen->tap : nullptr;
        seen = &state.values.put(t, &session);
        seen->tap = std::move(grad);
      }
      if (!known || seen->site == rec.site) {
        remember(*seen, rec);
      } else {  // it keeps its maker; a buffer that is refilled step after step has other numbers by now
        seen->n_nan = rec.n_nan;
        seen->n_posinf = rec.n_posinf;
        seen->n_neginf = rec.n_neginf;
        seen->late = rec.seq;
      }
    }
  }
  if (tap.options.extension || frame.inputs.size() < kMaxInputs) {
    SeenInput& input = frame.inputs.emplace_back();
    input.impl = t.unsafeGetTensorImpl();
    input.version = version_of(t);
    if (seen != nullptr && seen->scanned) {
      // Seen first as this very call's own input says nothing about who made it.
      input.known = seen->call != frame.call || tap.options.root;
      input.counted = true;
      input.late = seen->late;
      input.site = seen->site;
      input.call = seen->call;
      input.n_nan = seen->n_nan;
      input.n_posinf = seen->n_posinf;
      input.n_neginf = seen->n_neginf;
    } else if (recorded) {
      input.known = tap.options.root;
      input.counted = true;
      input.late = rec.seq;
      input.site = rec.site;
      input.call = rec.call;
      input.n_nan = rec.n_nan;
      input.n_posinf = rec.n_posinf;
      input.n_neginf = rec.n_neginf;
    }
    if (tap.options.extension) take_state(frame, input, t);
  }
  if (!wants_gradient(t)) return;
  if (seen == nullptr) seen = &state.values.put(t, &session);
  if (t.is_leaf()) {
    std::shared_ptr<void> keep;
    seen->tap = tap_leaf(t, tap.session, keep);
    frame.kept.push_back(std::move(keep));
  } else if (!seen->tap) {
    seen->tap = tap_gradient(t, tap.session);
  }
  if (seen->tap) seen->tap->add_reader(party_of(frame, tap.options.site + kInputSite));
}

// Which of the tensors it was given an extension has written: they are its results, after those it returned.
void add_written(Frame& frame, PyObject* given, std::vector<at::Tensor>& results) {
  std::vector<at::Tensor> inputs;
  collect_tensors(given, inputs);
  for (size_t i = 0; i < inputs.size() && i < frame.inputs.size(); ++i) {
    Record now{};
    SeenInput& input = frame.inputs[i];
    if (!input.counted || !look_at(inputs[i], now) || same_content(frame.before[i], now)) continue;
    input.written = true;
    bool returned = false;
    for (const at::Tensor& t : results) returned = returned || t.is_same(inputs[i]);
    if (!returned) results.push_back(inputs[i]);
  }
}

// The call went bad: say in what state its inputs were. On the healthy path none of this is looked at.
void explain_input(const Tap& tap, const Frame& frame, const at::Tensor& t, uint32_t ordinal) {
  Session& session = *tap.session;
  const SeenInput* before = input_of(frame, t);
  Record rec = input_header(tap, frame, ordinal);
  const bool known = before != nullptr && before->known;
  if (known) rec.flags |= kFlagKnown;
  if (before != nullptr && before->changed) rec.flags |= kFlagChanged;
  const bool was_bad = before != nullptr && (before->n_nan | before->n_posinf | before->n_neginf) != 0;
  const bool inference = t.unsafeGetTensorImpl()->is_inference();
  if (before != nullptr && before->written) {
    Record known = frame.before[static_cast<size_t>(before - frame.inputs.data())];
    known.site = rec.site;
    known.call = rec.call;
    known.flags |= rec.flags;
    known.output_index = rec.output_index;
    known.phase = rec.phase;
    known.device = -1;
    known.shape = was_bad ? session.shapes.id_of(t.sizes()) : 0;
    session.append(known);
  } else if (before != nullptr && (before->version != version_of(t) || (inference && before->counted))) {
    // The module wrote its input in place, so what it read is gone: the counts taken before are all that is left.
    // An inference tensor has no version to tell; it was counted by this very call if at all.
    if (!before->counted) return;
    Record now{};
    scan_tensor(t, now);  // for the element type only
    rec.dtype = now.dtype;
    rec.device = -1;
    rec.n = static_cast<uint64_t>(t.numel());
    rec.n_nan = before->n_nan;
    rec.n_posinf = before->n_posinf;
    rec.n_neginf = before->n_neginf;
    rec.first_bad = -1;
    rec.min = INFINITY;
    rec.max = -INFINITY;
    if (was_bad) rec.flags |= kFlagBad;
    session.append(rec);
  } else {
    // CHANGED must be in the record when it is published, and is only known after the scan: scan first, append after.
    Record probe = rec;
    if (!scanned(scan_tensor(t, probe))) return;
    if ((probe.flags & kFlagBad) && known && !was_bad) probe.flags |= kFlagChanged;
    probe.device = -1;
    probe.shape = (probe.flags & kFlagBad) ? session.shapes.id_of(t.sizes()) : 0;
    session.append(probe);
  }
  if (before != nullptr && before->site != kNoSite) {
    append_link(session, frame.call, kLinkProducerOfInput, before->site, before->call, ordinal);
  }
}

void explain_late_input(const Tap& tap, ThreadState& state, const Frame& frame, const at::Tensor& t, uint32_t ordinal) {
  Session& session = *tap.session;
  const SeenInput* before = input_of(frame, t);
  Record rec = input_header(tap, frame, ordinal);
  if (before != nullptr && before->known) rec.flags |= kFlagKnown;
  if (before != nullptr && before->late != 0) {
    session.record_again(t, before->late, rec);
  } else if (session.record(t, rec) && !t.unsafeGetTensorImpl()->is_inference()) {
    SeenValue* seen = state.values.find(t, &session);
    if (seen == nullptr) seen = &state.values.put(t, &session);
    if (!seen->scanned) remember(*seen, rec);  // for the next module that reads it
  }
  if (before != nullptr && before->site != kNoSite) {
    append_link(session, frame.call, kLinkProducerOfInput, before->site, before->call, ordinal);
  }
}

// Parameters and buffers the module owns itself, when bad: a bad parameter explains a bad output.
void explain_own_tensors(const Tap& tap, const Frame& frame, PyObject* module, const char* attribute) {
  Session& session = *tap.session;
  PyObject* table = PyObject_GetAttrString(module, attribute);
  if (table == nullptr) {
    PyErr_Clear();
    return;
  }
  std::vector<at::Tensor> tensors;
  collect_tensors(table, tensors);
  for (const at::Tensor& t : tensors) {
    Record rec{};
    rec.site = session.watched_site(t);
    if (rec.site == kNoSite) continue;
    if (session.is_late(t) && session.written_since_scanned(t)) {  // by hand: no optimizer's step has shown it
      rec.flags = kFlagParam;
      rec.call = frame.call;
      rec.phase = kPhaseForward;
      session.record(t, rec);
      continue;
    }
    if (session.is_late(t)) {
      if (!session.bad_value(rec.site, rec)) continue;
    } else {
      if (!scanned(scan_tensor(t, rec)) || !(rec.flags & kFlagBad)) continue;
      rec.device = -1;
      rec.shape = session.shapes.id_of(t.sizes());
    }
    rec.flags |= kFlagParam;
    rec.call = frame.call;
    rec.phase = kPhaseForward;
    session.append(rec);
  }
  Py_DECREF(table);
}

// One output tensor. Returns true when it is bad.
bool see_output(const Tap& tap, ThreadState& state, const Frame& frame, const at::Tensor& t, uint32_t ordinal,
                bool top, bool recompute) {
  Session& session = *tap.session;
  // An extension made all it returns and did not just hand through, however long the tensor has been known.
  const SeenInput* input = tap.options.extension ? input_of(frame, t) : nullptr;
  const bool made_here = tap.options.extension && (input == nullptr || input->written);
  const bool inference = t.unsafeGetTensorImpl()->is_inference();  // no version counter: nothing tells two values apart
  SeenValue* seen = inference ? nullptr : state.values.find(t, &session);
  bool bad = false;
  if (!made_here && seen != nullptr && seen->scanned && !seen->bad() && seen->late == 0) {
    // The same value a child (or the caller) handed over: scanned once.
  } else {
    Record rec{};
    rec.site = tap.options.site;
    rec.call = frame.call;
    rec.output_index = static_cast<uint16_t>(ordinal);
    rec.phase = kPhaseForward;
    rec.flags = (top ? kFlagTop : 0) | (recompute ? kFlagRecompute : 0);
    const bool again = !made_here && seen != nullptr && seen->scanned && seen->late != 0;
    if (again ? session.record_again(t, seen->late, rec) : record_value(session, t, rec)) {
      bad = (rec.flags & kFlagBad) != 0 || rec.seq != 0;
      const bool alias = !made_here && seen != nullptr && seen->scanned;  // keeps its first maker: that is who gets named
      if (!alias && !inference) {
        std::shared_ptr<GradTap> grad = seen != nullptr ? seen->tap : nullptr;
        seen = &state.values.put(t, &session);
        seen->tap = std::move(grad);
        remember(*seen, rec);
      }
    } else if (seen == nullptr) {
      return false;
    }
  }
  if (seen == nullptr || !wants_gradient(t) || t.is_leaf()) return bad;  // a returned leaf was not made here
  if (!seen->tap) seen->tap = tap_gradient(t, tap.session);
  if (seen->tap) seen->tap->add_maker(party_of(frame, tap.options.site));
  return bad;
}

}  // namespace nanscan
