// Long because enter() and leave() share one frame layout. The C++ half of a module's forward hooks.
#include "hooks/module_hook.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/python_variable.h>

#include "hooks/autograd_hook.h"
#include "hooks/guard.h"
#include "hooks/node_hook.h"
#include "hooks/op_call.h"
#include "hooks/thread_state.h"
#include "hooks/tree.h"

namespace nanscan {

ThreadState& thread_state() {
  // Never destroyed for the main thread: its destructor would run after the interpreter is gone. Worker threads end
  // while it is alive, and theirs is freed.
  static thread_local std::unique_ptr<ThreadState> owned;
  static thread_local ThreadState* state = nullptr;
  static std::atomic<bool> first{true};
  if (state == nullptr) {
    state = new ThreadState();
    if (!first.exchange(false)) owned.reset(state);
  }
  return *state;
}

namespace {

constexpr int64_t kReleaseGilFrom = 1 << 16;  // elements; below, handing the GIL over costs more than the scan

struct ModuleTap {
  PyObject_HEAD
  std::shared_ptr<Session>* session;
  TapOptions options;
};

bool record_value(Session& session, const at::Tensor& t, Record& rec) {
  if (t.numel() < kReleaseGilFrom) return session.record(t, rec);
  PyThreadState* saved = PyEval_SaveThread();
  const bool ok = session.record(t, rec);
  PyEval_RestoreThread(saved);
  return ok;
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

// The value is read by the module of `frame`: take note of its state, and watch its gradient.
void see_input(const ModuleTap& tap, ThreadState& state, Frame& frame, const at::Tensor& t, uint32_t ordinal) {
  Session& session = **tap.session;
  const bool inference = t.unsafeGetTensorImpl()->is_inference();  // no version counter: nothing tells two values apart
  SeenValue* seen = inference ? nullptr : state.values.find(t, &session);
  const bool scan_now = tap.options.root || (tap.options.eager_inputs && (seen == nullptr || !seen->scanned));
  Record rec{};
  bool recorded = false;
  if (scan_now) {
    rec.site = tap.options.site + kInputSite;
    rec.call = frame.call;
    rec.flags = kFlagInput;
    rec.output_index = static_cast<uint16_t>(ordinal);
    rec.phase = tap.options.root ? kPhaseData : kPhaseForward;
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
  if (frame.n_inputs < kMaxInputs) {
    SeenInput& input = frame.inputs[frame.n_inputs++];
    input = SeenInput{};
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
  }
  if (!wants_gradient(t)) return;
  if (seen == nullptr) seen = &state.values.put(t, &session);
  if (t.is_leaf()) {
    std::shared_ptr<void> keep;
    seen->tap = tap_leaf(t, *tap.session, keep);
    frame.kept.push_back(std::move(keep));
  } else if (!seen->tap) {
    seen->tap = tap_gradient(t, *tap.session);
  }
  if (seen->tap) seen->tap->add_reader(party_of(frame, tap.options.site + kInputSite));
}

PyObject* enter(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  auto& tap = *reinterpret_cast<ModuleTap*>(self);
  Session& session = **tap.session;
  if (nargs != 2) return PyErr_Format(PyExc_TypeError, "enter(args, kwargs) takes 2 arguments, got %zd", nargs);
  if (process_inert().load(std::memory_order_relaxed)) Py_RETURN_NONE;
  if (!session.watching()) {
    // Batches are numbered whether or not this step is scanned.
    if (tap.options.root && !session.closed.load(std::memory_order_relaxed) && !in_graph_task()) session.batch.fetch_add(1);
    Py_RETURN_NONE;
  }
  InsideHook inside;
  if (inside.reentered()) Py_RETURN_NONE;
  ThreadState& state = thread_state();
  const Frame* parent = state.top(&session);
  const uint64_t parent_call = parent != nullptr ? parent->call : 0;
  const uint32_t parent_site = parent != nullptr ? parent->site : kNoSite;
  Frame& frame = state.push();
  frame.session = session.number;
  frame.site = tap.options.site;
  frame.call = session.next_call.fetch_add(1, std::memory_order_relaxed) + 1;
  frame.parent_call = parent_call;
  frame.parent_site = parent_site;
  frame.n_inputs = 0;
  frame.kept.clear();
  if (tap.options.root && parent_call == 0 && !in_graph_task()) {
    Record rec{};
    rec.site = tap.options.site;
    rec.call = frame.call;
    rec.flags = kFlagEnter;
    rec.phase = kPhaseForward;
    rec.n = session.batch.fetch_add(1, std::memory_order_relaxed);
    session.append(rec);
    // A compiled model's inner modules report from inside the graph and name the root's call.
    session.set_traced_call_id(tap.options.site, frame.call);
  }
  if (tap.options.root) {
    session.forward_seen.store(true, std::memory_order_relaxed);
    session.after_backward.store(false, std::memory_order_relaxed);
  }
  if (session.op_level.load(std::memory_order_relaxed)) Py_RETURN_NONE;  // the ops inside are seen themselves
  collect_tensors(args[0], state.tensors);
  if (args[1] != Py_None) collect_tensors(args[1], state.tensors);
  for (size_t i = 0; i < state.tensors.size(); ++i) see_input(tap, state, frame, state.tensors[i], static_cast<uint32_t>(i));
  state.tensors.clear();
  Py_RETURN_NONE;
}

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

// The same on a device, where nobody knows yet whether the call went bad: said of every call, and read only if it did.
// A value that some hook has seen is not read again.
void explain_late_input(const ModuleTap& tap, ThreadState& state, const Frame& frame, const at::Tensor& t, uint32_t ordinal) {
  Session& session = **tap.session;
  const SeenInput* before = nullptr;
  for (uint32_t i = 0; i < frame.n_inputs && before == nullptr; ++i) {
    if (frame.inputs[i].impl == t.unsafeGetTensorImpl()) before = &frame.inputs[i];
  }
  Record rec{};
  rec.site = tap.options.site + kInputSite;
  rec.call = frame.call;
  rec.flags = kFlagInput;
  rec.output_index = static_cast<uint16_t>(ordinal);
  rec.phase = kPhaseForward;
  if (before != nullptr && before->known) rec.flags |= kFlagKnown;
  if (before != nullptr && before->late != 0) {
    session.record_again(t, before->late, rec);
  } else if (record_value(session, t, rec) && !t.unsafeGetTensorImpl()->is_inference()) {
    SeenValue* seen = state.values.find(t, &session);
    if (seen == nullptr) seen = &state.values.put(t, &session);
    if (!seen->scanned) remember(*seen, rec);  // for the next module that reads it
  }
  if (before != nullptr && before->site != kNoSite) {
    append_link(session, frame.call, kLinkProducerOfInput, before->site, before->call, ordinal);
  }
}

// The call went bad: say in what state its inputs were. On the healthy path none of this is looked at.
void explain_input(const ModuleTap& tap, const Frame& frame, const at::Tensor& t, uint32_t ordinal) {
  Session& session = **tap.session;
  const SeenInput* before = nullptr;
  for (uint32_t i = 0; i < frame.n_inputs && before == nullptr; ++i) {
    if (frame.inputs[i].impl == t.unsafeGetTensorImpl()) before = &frame.inputs[i];
  }
  Record rec{};
  rec.site = tap.options.site + kInputSite;
  rec.call = frame.call;
  rec.flags = kFlagInput;
  rec.output_index = static_cast<uint16_t>(ordinal);
  rec.phase = kPhaseForward;
  const bool known = before != nullptr && before->known;
  if (known) rec.flags |= kFlagKnown;
  const bool was_bad = before != nullptr && (before->n_nan | before->n_posinf | before->n_neginf) != 0;
  const bool inference = t.unsafeGetTensorImpl()->is_inference();
  if (before != nullptr && (before->version != version_of(t) || (inference && before->counted))) {
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

// Parameters and buffers the module owns itself, when bad: a bad parameter explains a bad output.
void explain_own_tensors(const ModuleTap& tap, const Frame& frame, PyObject* module, const char* attribute) {
  Session& session = **tap.session;
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
    if (on_device(t) && session.device.any()) {
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

// One output tensor. Returns true when it is bad, or when that is not known yet.
bool see_output(const ModuleTap& tap, ThreadState& state, const Frame& frame, const at::Tensor& t, uint32_t ordinal,
                bool top, bool recompute) {
  Session& session = **tap.session;
  const bool inference = t.unsafeGetTensorImpl()->is_inference();  // no version counter: nothing tells two values apart
  SeenValue* seen = inference ? nullptr : state.values.find(t, &session);
  bool bad = false;
  if (seen != nullptr && seen->scanned && !seen->bad() && seen->late == 0) {
    // The same value a child (or the caller) handed over: scanned once.
  } else {
    Record rec{};
    rec.site = tap.options.site;
    rec.call = frame.call;
    rec.output_index = static_cast<uint16_t>(ordinal);
    rec.phase = kPhaseForward;
    rec.flags = (top ? kFlagTop : 0) | (recompute ? kFlagRecompute : 0);
    const bool again = seen != nullptr && seen->scanned && seen->late != 0;
    if (again ? session.record_again(t, seen->late, rec) : record_value(session, t, rec)) {
      bad = (rec.flags & kFlagBad) != 0 || rec.seq != 0;
      const bool alias = seen != nullptr && seen->scanned;  // keeps its first maker: that is who gets named
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
  if (!seen->tap) seen->tap = tap_gradient(t, *tap.session);
  if (seen->tap) seen->tap->add_maker(party_of(frame, tap.options.site));
  return bad;
}

// The call of `frame` returned args[3]: see what it made and, if that is bad, what explains it.
void finish_call(const ModuleTap& tap, ThreadState& state, const Frame& frame, PyObject* const* args, bool top, bool recompute) {
  Session& session = **tap.session;
  auto& tensors = state.tensors;
  bool bad = false;
  const bool ops = session.op_level.load(std::memory_order_relaxed);
  if (ops && !top) return;
  collect_tensors(args[3], tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (ops) observe_escape(session, tensors[i], kCallTop, tap.options.site, kPhaseForward);
    else bad |= see_output(tap, state, frame, tensors[i], static_cast<uint32_t>(i), top, recompute);
  }
  tensors.clear();
  if (!bad) return;
  collect_tensors(args[1], tensors);
  if (args[2] != Py_None) collect_tensors(args[2], tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto ordinal = static_cast<uint32_t>(i);
    if (session.device.any() && on_device(tensors[i])) explain_late_input(tap, state, frame, tensors[i], ordinal);
    else explain_input(tap, frame, tensors[i], ordinal);
  }
  tensors.clear();
  explain_own_tensors(tap, frame, args[0], "_parameters");
  explain_own_tensors(tap, frame, args[0], "_buffers");
  append_link(session, frame.call, kLinkParent, frame.parent_site, frame.parent_call, 0);
}

PyObject* leave(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  auto& tap = *reinterpret_cast<ModuleTap*>(self);
  Session& session = **tap.session;
  if (nargs != 4) return PyErr_Format(PyExc_TypeError, "leave(module, args, kwargs, output) takes 4 arguments, got %zd", nargs);
  if (process_inert().load(std::memory_order_relaxed)) return PyLong_FromLong(0);
  InsideHook inside;
  if (inside.reentered()) return PyLong_FromLong(0);
  ThreadState& state = thread_state();
  // Frames above ours belong to calls that an exception ended; ours may be missing when scanning began mid-call.
  size_t i = state.depth;
  while (i > 0 && (state.stack[i - 1].session != session.number || state.stack[i - 1].site != tap.options.site)) --i;
  if (i == 0) return PyLong_FromLong(0);
  const Frame& frame = state.stack[i - 1];  // stays put: inside a hook no frame is pushed
  const bool recompute = in_graph_task();
  const bool top = frame.parent_call == 0 && !recompute;
  if (session.watching() && args[3] != Py_None) finish_call(tap, state, frame, args, top, recompute);
  state.remove(&session, i - 1);
  if (top) session.poll_device();
  long attend = 0;
  if (top && session.n_bad.load(std::memory_order_acquire) != session.n_bad_drained.load(std::memory_order_relaxed)) {
    attend |= kAttendBad;
  }
  if (session.ring.size() * 2 > session.ring.capacity()) attend |= kAttendFull;
  return PyLong_FromLong(attend);
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<ModuleTap*>(self)->session;
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"enter", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(enter)), METH_FASTCALL,
     "enter(args, kwargs): before the module's forward"},
    {"leave", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(leave)), METH_FASTCALL,
     "leave(module, args, kwargs, output) -> int: after the module's forward; output is None when it raised"},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject* tap_type() {
  static PyTypeObject* type = [] {
    static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(dealloc)}, {Py_tp_methods, methods}, {0, nullptr}};
    static PyType_Spec spec = {"nanscan._C.ModuleTap", sizeof(ModuleTap), 0,
                               Py_TPFLAGS_DEFAULT, slots};
    return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  }();
  return type;
}

}  // namespace

PyObject* new_module_tap(std::shared_ptr<Session> session, const TapOptions& options) {
  PyTypeObject* type = tap_type();
  if (type == nullptr) return nullptr;
  PyObject* object = type->tp_alloc(type, 0);
  if (object == nullptr) return nullptr;
  auto* tap = reinterpret_cast<ModuleTap*>(object);
  tap->session = new std::shared_ptr<Session>(std::move(session));
  tap->options = options;
  return object;
}

void clear_thread_state() {
  thread_state().stack.clear();
  thread_state().depth = 0;
  thread_state().values.clear();
}

void forget_values(const Session& session) { thread_state().values.forget(session); }

size_t module_depth() { return thread_state().depth; }

uint32_t current_module_site(const Session& session) {
  const Frame* frame = thread_state().top(&session);
  return frame != nullptr ? frame->site : kNoSite;
}

uint64_t current_call(const Session& session) {
  const Frame* frame = thread_state().top(&session);
  return frame != nullptr ? frame->call : 0;
}

void reset_stack(const Session& session) {
  thread_state().remove(&session, 0);
}

}  // namespace nanscan
