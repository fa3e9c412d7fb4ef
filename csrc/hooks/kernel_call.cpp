#include "hooks/kernel_call.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <stdexcept>

namespace nanscan {
namespace {

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// The program's torch function modes and subclasses see nothing of what `launch` calls.
class NoTorchFunctions {
 public:
  NoTorchFunctions() : was_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunctions() { at::impl::PythonTorchFunctionTLS::set_disabled_state(was_); }
  NoTorchFunctions(const NoTorchFunctions&) = delete;
  NoTorchFunctions& operator=(const NoTorchFunctions&) = delete;

 private:
  const at::impl::TorchFunctionDisabledState was_;
};

std::string one_line(const py::error_already_set& error) {
  std::string text;
  try {
    text = std::string(py::str(error.type().attr("__name__"))) + ": " + std::string(py::str(error.value()));
  } catch (const std::exception&) {
    text = "an error without words";
  }
  text.resize(std::min<size_t>(text.size(), 300));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// "" or why it failed.
std::string call(PyObject* launch, const at::Tensor& part, const at::Tensor& row, DType dtype) {
  if (finalizing()) return "the interpreter ends";
  const py::gil_scoped_acquire gil;
  const NoTorchFunctions none;
  try {
    const auto wrapped = [](const at::Tensor& t) { return py::reinterpret_steal<py::object>(THPVariable_Wrap(t)); };
    py::reinterpret_borrow<py::object>(launch)(wrapped(part), wrapped(row), static_cast<int>(dtype));
    return "";
  } catch (py::error_already_set& error) {
    // Ctrl-C and its like are the program's, not the kernel's.
    if (!error.matches(PyExc_Exception)) PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), error.type().ptr());
    return one_line(error);
  }
}

}  // namespace

void Kernel::set(PyObject* launch, bool only) {
  launch_ = launch == Py_None ? nullptr : launch;
  only_ = only;
  Py_XINCREF(launch_);
}

bool Kernel::launch(const at::Tensor& part, const at::Tensor& row, DType dtype) {
  if (!ready()) return false;
  const std::string why = call(launch_, part, row, dtype);
  if (why.empty()) return true;
  if (only_) throw std::runtime_error("the kernel cannot be launched: " + why);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.empty()) failure_ = why;
  failed_.store(true, std::memory_order_relaxed);
  return false;
}

std::string Kernel::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

Kernel& kernel() {
  static Kernel one;
  return one;
}

}  // namespace nanscan
