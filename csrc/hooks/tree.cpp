#include "hooks/tree.h"

#include <torch/csrc/autograd/python_variable.h>

namespace nanscan {
namespace {

constexpr int kMaxDepth = 16;

PyObject* dataclass_fields_name() {
  static PyObject* name = PyUnicode_InternFromString("__dataclass_fields__");
  return name;
}

}  // namespace

void collect_tensors(PyObject* object, std::vector<at::Tensor>& out, int depth) {
  if (object == nullptr || object == Py_None || depth > kMaxDepth) return;
  if (THPVariable_CheckExact(object)) {
    out.push_back(THPVariable_Unpack(object));
    return;
  }
  if (PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      collect_tensors(PyTuple_GET_ITEM(object, i), out, depth + 1);
    }
    return;
  }
  if (PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
      PyObject* item = Py_NewRef(PyList_GET_ITEM(object, i));  // looking into it may run Python code
      collect_tensors(item, out, depth + 1);
      Py_DECREF(item);
    }
    return;
  }
  if (PyDict_Check(object)) {  // also OrderedDict and the ModelOutput classes, which are dicts
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(object, &position, &key, &value)) {
      Py_INCREF(value);
      collect_tensors(value, out, depth + 1);
      Py_DECREF(value);
    }
    return;
  }
  if (PyLong_Check(object) || PyFloat_Check(object) || PyUnicode_Check(object) || PyBytes_Check(object)) return;
  if (THPVariable_Check(object)) {
    out.push_back(THPVariable_Unpack(object));
    return;
  }
  // A dataclass instance: the fields are found on its type, so a dataclass *type* passed as an argument is left alone.
  if (PyType_Check(object)) return;
  PyObject* fields = PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(object)), dataclass_fields_name());
  if (fields == nullptr) {
    PyErr_Clear();
    return;
  }
  PyObject *name = nullptr, *unused = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Check(fields) && PyDict_Next(fields, &position, &name, &unused)) {
    PyObject* value = PyObject_GetAttr(object, name);
    if (value == nullptr) {
      PyErr_Clear();
      continue;
    }
    collect_tensors(value, out, depth + 1);
    Py_DECREF(value);
  }
  Py_DECREF(fields);
}

}  // namespace nanscan
