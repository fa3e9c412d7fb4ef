// What Python sees of the scan: one call for one tensor, and the instruction set for tests.
#include "scan/scan_bindings.h"

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "scan/scan.h"
#include "scan/scan_cpu.h"

namespace nanscan {
namespace {

pybind11::bytes scan(const at::Tensor& tensor) {
  Record record{};
  record.device = -1;
  ScanStatus status;
  {
    pybind11::gil_scoped_release release;
    status = scan_tensor(tensor, record);
  }
  if (!scanned(status)) throw pybind11::type_error(reason(status));
  return {reinterpret_cast<const char*>(&record), sizeof(record)};
}

void set_level(const std::string& name) {
  for (SimdLevel level : {SimdLevel::kPortable, SimdLevel::kAvx2}) {
    if (name != name_of(level)) continue;
    if (set_simd_level(level)) return;
    throw pybind11::value_error("name: this machine has no '" + name + "'; its best is '" +
                                name_of(best_simd_level()) + "'");
  }
  throw pybind11::value_error("name: '" + name + "' is not an instruction set; use 'portable' or 'avx2'");
}

}  // namespace

void bind_scan(pybind11::module_& m) {
  m.def("scan", &scan, pybind11::arg("tensor"),
        "Statistics of one tensor as the bytes of a record; TypeError with the reason if it cannot be read.");
  m.def("simd_level", [] { return name_of(simd_level()); }, "Instruction set in use: 'avx2' or 'portable'.");
  m.def("set_simd_level", &set_level, pybind11::arg("name"), "Choose the instruction set, for tests.");
}

}  // namespace nanscan
