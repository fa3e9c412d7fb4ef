#pragma once

namespace pybind11 {
class module_;
}

namespace nanscan {
// Registers scan, simd_level and set_simd_level.
void bind_scan(pybind11::module_& m);
}  // namespace nanscan
