// Walk the tensors of a module's arguments or result: any nesting of tuple, list, dict and dataclass.
#pragma once

#include <torch/csrc/python_headers.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace nanscan {

// Appends the tensors in `object` to `out`, in order; the GIL is held. They are owned by `out`, since a scan may let the
// GIL go and another thread may then change the container. Depth is limited, so that a self-containing list ends. Never
// leaves a Python error set.
void collect_tensors(PyObject* object, std::vector<at::Tensor>& out, int depth = 0);

}  // namespace nanscan
