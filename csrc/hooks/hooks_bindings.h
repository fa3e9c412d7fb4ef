#pragma once

#include <pybind11/pybind11.h>

namespace nanscan {

namespace py = pybind11;

void bind_hooks(py::module_& m);

}  // namespace nanscan
