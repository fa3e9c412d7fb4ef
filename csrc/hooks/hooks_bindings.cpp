// The hooks area's part of nanscan._C: Session and what the Python half needs around it.
#include "hooks/hooks_bindings.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include "hooks/autograd_hook.h"
#include "hooks/guard.h"
#include "hooks/kernel_call.h"
#include "hooks/module_hook.h"
#include "hooks/op_call.h"
#include "hooks/op_hook.h"
#include "hooks/op_table.h"
#include "hooks/source_line.h"
#include "hooks/session.h"
#include "hooks/torch_device.h"
#include "hooks/torch_scan.h"
#include "hooks/traced_call.h"

namespace nanscan {
namespace {

const at::Tensor& unpack(const py::handle& object, const char* argument) {
  if (!THPVariable_Check(object.ptr())) {
    throw py::type_error(std::string(argument) + " must be a torch.Tensor, got " + Py_TYPE(object.ptr())->tp_name);
  }
  return THPVariable_Unpack(object.ptr());
}

// [n * 128] bytes in sequence order; one copy out of the ring.
py::bytes drain(Session& session) {
  session.n_bad_drained.store(session.n_bad.load(std::memory_order_acquire), std::memory_order_relaxed);
  const size_t expected = session.ring.size();
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(expected * sizeof(Record)));
  if (bytes == nullptr) throw py::error_already_set();
  size_t n = 0;
  if (expected > 0) n = session.ring.drain(reinterpret_cast<Record*>(PyBytes_AS_STRING(bytes)), expected);
  if (n > 0 && session.device.any()) {
    std::vector<Record> resolved;
    session.late_calls.resolve(reinterpret_cast<const Record*>(PyBytes_AS_STRING(bytes)), n, resolved);
    Py_DECREF(bytes);
    return py::bytes(reinterpret_cast<const char*>(resolved.data()), resolved.size() * sizeof(Record));
  }
  if (n != expected && _PyBytes_Resize(&bytes, static_cast<Py_ssize_t>(n * sizeof(Record))) != 0) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::bytes>(bytes);
}

py::dict counters(const Session& session) {
  py::dict unscanned;
  for (size_t i = 0; i < session.unscanned.size(); ++i) {
    const uint64_t n = session.unscanned[i].load(std::memory_order_relaxed);
    if (n > 0) unscanned[reason(static_cast<ScanStatus>(i))] = n;
  }
  const uint64_t calls = session.n_unreadable_calls.load(std::memory_order_relaxed);
  if (calls > 0) unscanned["a call with a tensor of an unknown kind"] = calls;
  py::dict out;
  out["records"] = session.ring.appended();
  out["dropped"] = session.ring.dropped() + session.device.dropped();
  out["scans"] = session.n_scans.load(std::memory_order_relaxed);
  out["bad"] = session.n_bad.load(std::memory_order_relaxed);
  out["batches"] = session.batch.load(std::memory_order_relaxed);
  out["unscanned"] = unscanned;
  return out;
}

std::vector<at::Tensor> unpack_all(const py::list& tensors) {
  std::vector<at::Tensor> out;
  out.reserve(tensors.size());
  for (const auto& t : tensors) out.push_back(unpack(t, "tensors"));
  return out;
}

// For tests: the operators as anybody may observe them, on any device.
py::object reduce_alone(const py::handle& tensor, int dtype, const py::handle& rows) {
  int64_t i = 0;
  for_pieces(unpack(tensor, "tensor"), false, [&](const at::Tensor& part, Piece) {
    reduce(readable(part), static_cast<DType>(dtype), unpack(rows, "rows").select(0, i++));
  });
  return py::int_(i);
}

bool scan_at(Session& session, const py::handle& tensor, uint32_t site, int phase) {
  if (process_inert().load() || !session.watching()) return false;
  InsideHook inside;
  Record rec{};
  rec.site = site;
  rec.phase = static_cast<uint8_t>(phase);
  rec.call = current_call(session);
  const at::Tensor t = unpack(tensor, "tensor");
  py::gil_scoped_release release;
  if (session.op_level.load(std::memory_order_relaxed)) {
    observe_escape(session, t, kCallCheck, site, static_cast<Phase>(phase));
    return true;
  }
  return session.record(t, rec);
}

py::object tensor_at(Session& session, uint64_t address) {
  const auto* pointer = reinterpret_cast<const void*>(address);
  const at::Tensor t = session.op_level.load(std::memory_order_relaxed) ? session.storages.containing(pointer)
                                                                        : known_value_at(session, pointer);
  if (!t.defined()) return py::none();
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(t));
}

void run_backward_end(Session& session) {
  if (session.backward_end.load() == nullptr) return;
  py::gil_scoped_acquire gil;
  auto* callback = static_cast<PyObject*>(session.backward_end.load());
  if (callback == nullptr) return;
  // What it raises is what the user asked for (on_anomaly="raise"): the engine carries it out of backward().
  py::reinterpret_borrow<py::object>(callback)();
}

void set_backward_end(Session& session, const py::object& callback) {
  void* fresh = callback.is_none() ? nullptr : callback.inc_ref().ptr();
  auto* old = static_cast<PyObject*>(session.backward_end.exchange(fresh));
  Py_XDECREF(old);
}

void set_op_level(const std::shared_ptr<Session>& session, bool on) {
  if (on && !start_observing(session)) throw py::value_error("ops are being observed for another scanner already");
  if (!on) stop_observing(*session);
  session->op_level.store(on, std::memory_order_relaxed);
}

void end_step(Session& session, uint64_t next) {
  session.step.store(next);
  session.forward_seen.store(false, std::memory_order_relaxed);
  session.after_backward.store(false, std::memory_order_relaxed);
  if (session.op_level.load(std::memory_order_relaxed)) session.storages.sweep();
}

void close(Session& session) {
  stop_observing(session);
  session.op_level.store(false);
  session.closed.store(true);
  set_backward_end(session, py::none());
  session.clear_watched();
  reset_stack(session);
  forget_values(session);
}

}  // namespace

void bind_hooks(py::module_& m) {
  set_backward_end_callback(run_backward_end);
  m.attr("ATTEND_BAD") = kAttendBad;
  m.attr("ATTEND_FULL") = kAttendFull;
  m.attr("STAND_IN_CAPTURING") = kCapturing;
  m.def("set_inert", [](bool inert) { process_inert().store(inert); }, "Make every hook of this process return at once.");
  m.def("clear_thread_state", clear_thread_state, "Forget what the calling thread's hooks remember.");
  m.def("load_device_library", load_device_library, py::arg("path"), py::arg("stand_in") = false,
        "Kernels for other devices. RuntimeError with the reason if they cannot be had.");
  m.def("use_torch_device", [](const py::object& launch, bool only, bool stand_in) { use_torch_device(launch.ptr(), only, stand_in); },
        py::arg("launch"), py::arg("only_kernel") = false, py::arg("stand_in") = false,
        "Devices without kernels here: by launch(part, row, dtype), else by torch's operators. RuntimeError with the reason.");
  m.def("kernel_failure", [] { return kernel().failure(); }, "Why that launch was given up; empty if it was not.");
  m.def("release_stand_in", release_stand_in, py::arg("n"));
  m.def("reduce", reduce_alone, py::arg("tensor"), py::arg("dtype"), py::arg("rows"));
  m.def("set_stand_in_stream", [](uintptr_t stream) { set_stand_in_stream(reinterpret_cast<void*>(stream)); }, py::arg("stream"));
  m.def("set_op_rules", set_op_rules, py::arg("rules"), py::arg("legal"), "Rules by op name, and outputs that may be non-finite.");
  m.def("op_name", name_of, py::arg("id"));
  m.def("line_text", line_text, py::arg("id"), "path:line behind a line id");
  m.def("set_library_folders", set_library_folders, py::arg("folders"));
  m.def("module_depth", module_depth, "Watched module calls now running on the calling thread.");
  py::class_<Session, std::shared_ptr<Session>>(m, "Session")
      .def(py::init<size_t>(), py::arg("capacity"))
      .def("tap",
           [](const std::shared_ptr<Session>& session, uint32_t site, bool root, bool eager_inputs, const std::string& extension) {
             const uint32_t op = extension.empty() ? 0 : name_id(extension.c_str());
             PyObject* tap = new_module_tap(session, TapOptions{site, root, eager_inputs, !extension.empty(), op});
             if (tap == nullptr) throw py::error_already_set();
             return py::reinterpret_steal<py::object>(tap);
           },
           py::arg("site"), py::arg("root") = false, py::arg("eager_inputs") = false, py::arg("extension") = "")
      .def("tensor_at", tensor_at, py::arg("address"))
      .def("watch", [](Session& s, const py::handle& t, uint32_t site, bool parameter) { s.watch(unpack(t, "tensor"), site, parameter); },
           py::arg("tensor"), py::arg("site"), py::arg("parameter"))
      .def("clear_watched", &Session::clear_watched)
      .def("scan_grads", [](Session& s, int phase) { s.scan_grads(static_cast<Phase>(phase)); }, py::arg("phase"),
           py::call_guard<py::gil_scoped_release>())
      .def("scan_values", [](Session& s, int phase) { s.scan_values(static_cast<Phase>(phase)); }, py::arg("phase"),
           py::call_guard<py::gil_scoped_release>())
      .def("scan_at", scan_at, py::arg("tensor"), py::arg("site"), py::arg("phase"))
      .def("traced_begin", [](Session& s, uint32_t site, const py::list& inputs) { traced_begin(s, site, unpack_all(inputs)); },
           py::arg("site"), py::arg("inputs"))
      .def("traced_call", [](Session& s, uint32_t site, int64_t parent_site, bool root, const py::list& inputs, const py::list& outputs) {
             return traced_call(s, site, static_cast<uint32_t>(parent_site), root, unpack_all(inputs), unpack_all(outputs));
           }, py::arg("site"), py::arg("parent_site"), py::arg("root"), py::arg("inputs"), py::arg("outputs"))
      .def("traced_parameter", [](Session& s, const py::handle& t, uint32_t site, uint32_t module_site) {
             traced_parameter(s, unpack(t, "tensor"), site, module_site);
           }, py::arg("tensor"), py::arg("site"), py::arg("module_site"))
      .def("abandon", [](Session& s) {
             s.closed.store(true);
             stop_observing(s);
           })
      .def("set_op_level", set_op_level, py::arg("on"))
      .def("end_step", end_step, py::arg("next"))
      .def("n_storages", [](const Session& s) { return s.storages.size(); })
      .def_property("in_optimizer", [](const Session& s) { return s.in_optimizer.load(); }, [](Session& s, bool v) { s.in_optimizer.store(v); })
      .def_property("in_scale", [](const Session& s) { return s.in_scale.load(); }, [](Session& s, bool v) { s.in_scale.store(v); })
      .def_property("has_model", [](const Session& s) { return s.has_model.load(); }, [](Session& s, bool v) { s.has_model.store(v); })
      .def("drain", drain)
      .def("open_device", [](Session& s, int index) { return s.device.open(index); }, py::arg("index"),
           py::call_guard<py::gil_scoped_release>())
      .def("poll_device", [](Session& s) { s.poll_device(); }, py::call_guard<py::gil_scoped_release>())
      .def("flush_device", [](Session& s) {
             s.device.flush();
             s.poll_device();
           }, py::call_guard<py::gil_scoped_release>())
      .def("take_unopened", [](Session& s) { return s.unopened.exchange(0); })
      .def_property_readonly("device_error", [](const Session& s) { return s.device.error(); })
      .def_property_readonly("pending", [](const Session& s) { return s.device.pending(); })
      .def_property_readonly("drained", [](const Session& s) { return s.ring.drained(); })
      .def_property_readonly("position", [](const Session& s) { return s.ring.appended(); })
      .def("shape", [](const Session& s, uint32_t id) { return py::tuple(py::cast(s.shapes.at(id))); }, py::arg("id"))
      .def("counters", counters)
      .def("current_site", [](const Session& s) { return current_module_site(s); })
      .def("reset_stack", [](const Session& s) { reset_stack(s); })
      .def("set_backward_end", set_backward_end, py::arg("callback"))
      .def("close", close)
      .def_property("step", [](const Session& s) { return s.step.load(); }, [](Session& s, uint64_t v) { s.step.store(v); })
      .def_property("active", [](const Session& s) { return s.active.load(); }, [](Session& s, bool v) { s.active.store(v); })
      .def_property_readonly("closed", [](const Session& s) { return s.closed.load(); })
      .def_property_readonly("batch", [](const Session& s) { return s.batch.load(); })
      .def_property_readonly("capacity", [](const Session& s) { return s.ring.capacity(); })
      .def_property_readonly("n_bad", [](const Session& s) { return s.n_bad.load(); });
}

}  // namespace nanscan
