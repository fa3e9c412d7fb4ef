#include "hooks/module_hook.h"


#include "hooks/call_values.h"
#include "hooks/extension.h"
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

struct ModuleTap {
  PyObject_HEAD
  Tap* tap;
};

int64_t total_numel(const std::vector<at::Tensor>& tensors) {
  int64_t n = 0;
  for (const at::Tensor& t : tensors) n += t.numel();
  return n;
}


PyObject* enter(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  const Tap& tap = *reinterpret_cast<ModuleTap*>(self)->tap;
  Session& session = *tap.session;
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
  const bool ops = session.op_level.load(std::memory_order_relaxed);
  uint64_t own_call = 0;
  if (ops && tap.options.extension) {  // before its frame is there: it runs in the module around it
    collect_tensors(args[0], state.tensors);
    ReleaseGil release(total_numel(state.tensors));
    own_call = begin_extension(session, tap.options.op, state.tensors);
  }
  state.tensors.clear();
  const Frame* parent = state.top(&session);
  const uint64_t parent_call = parent != nullptr ? parent->call : 0;
  const uint32_t parent_site = parent != nullptr ? parent->site : kNoSite;
  Frame& frame = state.push();
  frame.session = session.number;
  frame.site = tap.options.site;
  frame.call = own_call != 0 ? own_call : session.next_id();
  frame.parent_call = parent_call;
  frame.parent_site = parent_site;
  frame.inputs.clear();
  frame.before.clear();
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
  if (ops) Py_RETURN_NONE;  // the ops inside are seen themselves
  collect_tensors(args[0], state.tensors);
  if (args[1] != Py_None) collect_tensors(args[1], state.tensors);
  for (size_t i = 0; i < state.tensors.size(); ++i) see_input(tap, state, frame, state.tensors[i], static_cast<uint32_t>(i));
  state.tensors.clear();
  Py_RETURN_NONE;
}

// The call of `frame` returned args[3]: see what it made and, if that is bad, what explains it.
void finish_call(const Tap& tap, ThreadState& state, Frame& frame, PyObject* const* args, bool top, bool recompute) {
  Session& session = *tap.session;
  auto& tensors = state.tensors;
  bool bad = false;
  const bool ops = session.op_level.load(std::memory_order_relaxed);
  if (ops && !top && !tap.options.extension) return;
  collect_tensors(args[3], tensors);
  if (ops && tap.options.extension) {
    {
      ReleaseGil release(total_numel(tensors));
      end_extension(session, frame.call, tensors);
    }
    tensors.clear();
    return;
  }
  if (tap.options.extension) add_written(frame, args[1], tensors);
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
    if (session.is_late(tensors[i])) explain_late_input(tap, state, frame, tensors[i], ordinal);
    else explain_input(tap, frame, tensors[i], ordinal);
  }
  tensors.clear();
  explain_own_tensors(tap, frame, args[0], "_parameters");
  explain_own_tensors(tap, frame, args[0], "_buffers");
  append_link(session, frame.call, kLinkParent, frame.parent_site, frame.parent_call, 0);
}

PyObject* leave(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  const Tap& tap = *reinterpret_cast<ModuleTap*>(self)->tap;
  Session& session = *tap.session;
  if (nargs != 4) return PyErr_Format(PyExc_TypeError, "leave(module, args, kwargs, output) takes 4 arguments, got %zd", nargs);
  if (process_inert().load(std::memory_order_relaxed)) return PyLong_FromLong(0);
  InsideHook inside;
  if (inside.reentered()) return PyLong_FromLong(0);
  ThreadState& state = thread_state();
  // Frames above ours belong to calls that an exception ended; ours may be missing when scanning began mid-call.
  size_t i = state.depth;
  while (i > 0 && (state.stack[i - 1].session != session.number || state.stack[i - 1].site != tap.options.site)) --i;
  if (i == 0) return PyLong_FromLong(0);
  Frame& frame = state.stack[i - 1];  // stays put: inside a hook no frame is pushed
  const bool recompute = in_graph_task();
  const bool top = frame.parent_call == 0 && !recompute;
  if (session.watching() && args[3] != Py_None) finish_call(tap, state, frame, args, top, recompute);
  if (tap.options.extension) drop_extension(frame.call);  // it raised
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
  delete reinterpret_cast<ModuleTap*>(self)->tap;
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
  reinterpret_cast<ModuleTap*>(object)->tap = new Tap{std::move(session), options};
  return object;
}

void clear_thread_state() {
  thread_state().stack.clear();
  thread_state().depth = 0;
  thread_state().values.clear();
}

at::Tensor known_value_at(const Session& session, const void* address) {
  return thread_state().values.containing(address, &session);
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
  drop_extension(0);  // the same goes for one of those
  thread_state().remove(&session, 0);
}

}  // namespace nanscan
