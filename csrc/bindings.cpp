// Entry point of nanscan._C. Each area registers itself.
#include <pybind11/pybind11.h>

#include "hooks/hooks_bindings.h"
#include "scan/scan_bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Compiled core of nanscan: scan kernels, ring, hooks.";
#ifdef NANSCAN_TORCH_VERSION
  m.attr("torch_version") = NANSCAN_TORCH_VERSION;
#else
  m.attr("torch_version") = "";
#endif
  nanscan::bind_scan(m);
  nanscan::bind_hooks(m);
}
