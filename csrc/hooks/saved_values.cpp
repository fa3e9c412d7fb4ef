#include "hooks/saved_values.h"

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string>

#include "hooks/details.h"
#include "hooks/op_tensors.h"

namespace nanscan {
namespace {

const std::string kSaved = "_saved_", kRaw = "_raw_saved_";

struct Object {  // owns a reference, and swallows the error that goes with a missing one
  explicit Object(PyObject* object) : object(object) {
    if (object == nullptr) PyErr_Clear();
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  ~Object() { Py_XDECREF(object); }
  PyObject* object;
};

PyObject* attribute(PyObject* owner, const std::string& name) { return PyObject_GetAttrString(owner, name.c_str()); }

// Is nobody called when this saved tensor is looked at? Where torch cannot say, somebody may be.
bool is_plain(PyObject* node, const std::string& name) {
  const Object raw(attribute(node, kRaw + name));
  if (raw.object == nullptr) return true;  // no tensor
  if (PyList_Check(raw.object) || PyTuple_Check(raw.object)) return false;
  const Object hook(attribute(raw.object, "unpack_hook"));
  return hook.object == Py_None;
}

bool as_number(PyObject* value, double& number) {
  if (!PyFloat_Check(value) && !PyLong_Check(value)) return false;
  number = PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  return true;
}

void describe_value(Session& session, const std::string& name, PyObject* value, const CallOutput& out, std::vector<Record>& details) {
  const uint32_t id = name_id(name.c_str());
  double number = 0.0;
  if (THPVariable_Check(value)) {
    const at::Tensor& t = THPVariable_Unpack(value);
    if (scannable(session, t) && !session.is_late(t)) describe_tensor(session, id, t, out, details);
  } else if (as_number(value, number)) {
    describe_numbers(id, {number}, details);
  } else if (PyTuple_Check(value)) {
    std::vector<double> numbers;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
      if (as_number(PyTuple_GET_ITEM(value, i), number)) numbers.push_back(number);
    }
    describe_numbers(id, numbers, details);
  }
}

void describe_attributes(Session& session, PyObject* node, const CallOutput& out, std::vector<Record>& details) {
  const Object names(PyObject_Dir(reinterpret_cast<PyObject*>(Py_TYPE(node))));
  if (names.object == nullptr) return;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(names.object); ++i) {
    const char* text = PyUnicode_AsUTF8(PyList_GET_ITEM(names.object, i));
    if (text == nullptr) {
      PyErr_Clear();
      continue;
    }
    const std::string name = text;
    if (name.rfind(kSaved, 0) != 0) continue;
    const std::string what = name.substr(kSaved.size());
    if (!is_plain(node, what)) continue;
    const Object value(attribute(node, name));
    if (value.object != nullptr) describe_value(session, what, value.object, out, details);
  }
}

}  // namespace

void describe_saved(Session& session, const torch::autograd::Node& node, RunningCall& call,
                    const std::vector<CallOutput>& outputs) {
  const CallOutput* born = born_in(call, outputs);
  if (born == nullptr || (born->record.flags & kFlagLate)) return;
  describe_behind(call, call.details);
  for (const CallInput& in : call.inputs) {
    if (!session.is_late(in.tensor)) describe_tensor(session, name_id("grad"), in.tensor, *born, call.details);
  }
  if (PyGILState_GetThisThreadState() == nullptr) return;  // an engine thread: no Python runs there
  const PyGILState_STATE gil = PyGILState_Ensure();
  // An exception of the user's may be on its way: it is not ours to clear.
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  {
    const Object object(torch::autograd::functionToPyObject(const_cast<torch::autograd::Node&>(node).getptr()));
    try {
      if (object.object != nullptr) describe_attributes(session, object.object, *born, call.details);
    } catch (...) {  // a saved tensor that cannot be had any more
    }
  }
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(gil);
}

}  // namespace nanscan
