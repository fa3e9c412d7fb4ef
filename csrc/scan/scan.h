// From a tensor to a record: decides whether and how a tensor can be read, then calls the kernels of its device.
#pragma once

#include <ATen/core/Tensor.h>

#include "record/record.h"
#include "scan/scan_cuda.h"

namespace nanscan {

enum class ScanStatus : uint8_t {
  kOk,           // the record holds the statistics
  kEmpty,        // zero elements: the record is filled too, with n = 0
  kUndefined,    // no tensor at all (a gradient that does not exist)
  kNotFloating,  // integers, booleans: nothing can be NaN there, nothing to report
  kSparse,       // sparse, CSR, mkldnn and other layouts without strides
  kQuantized,
  kMeta,
  kPythonKey,  // a __torch_dispatch__ subclass: fake tensor, DTensor, functional tensor; take what is inside instead
  kFunctorch,  // wrapped by vmap, grad, functionalize
  kNested,
  kNoStorage,
  kDevice,  // a device whose kernels are not here
  kDType,   // a floating dtype without a kernel (complex32, fp4 ...)
};
constexpr int kScanStatusCount = 13;

// True when the record was filled.
constexpr bool scanned(ScanStatus status) { return status <= ScanStatus::kEmpty; }

// One line for people: what the tensor is and why that cannot be read.
const char* reason(ScanStatus status);

// Fills dtype, n .. m2, first_bad and the kFlagBad bit of flags; leaves every other field, and the other flags, alone.
// Nothing is written unless the status is kOk or kEmpty. Reads through any strides, conj and neg bits without a copy of
// the tensor, and allocates nothing. Neither takes nor needs the GIL.
ScanStatus scan_tensor(const at::Tensor& tensor, Record& out) noexcept;

// The same tensor for the kernels of another device: where it lies and how. Nothing is read. kEmpty: there is nothing to.
ScanStatus describe_tensor(const at::Tensor& tensor, nanscan_tensor& out) noexcept;

}  // namespace nanscan
