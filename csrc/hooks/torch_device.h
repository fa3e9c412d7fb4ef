// Devices whose kernels are not here, behind the entry points of the library that has them: their tensors are read by Triton's
// kernels or by torch's own operators.
#pragma once

#include <torch/csrc/python_headers.h>

#include <cstdint>

namespace nanscan {

// From now on devices are read this way, in this process. `launch`: launch(part, row, dtype) of a kernel, or None; when it
// fails, operators take over, unless `only_kernel` forbids that. With `stand_in` memory of the CPU counts as a device's, and
// records are held until somebody waits for them or releases them. Throws std::runtime_error with the reason.
void use_torch_device(PyObject* launch, bool only_kernel, bool stand_in);

// Tests with the stand-in: lets up to n held launches of every ring go; returns how many.
uint32_t release_stand_in(uint32_t n);
// As if a stream of this address were capturing a graph.
constexpr uintptr_t kCapturing = ~uintptr_t{0};

}  // namespace nanscan
