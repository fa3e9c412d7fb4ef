// A Python function that launches a kernel for a tensor: Triton's, which can be launched in no other way.
#pragma once

#include <torch/csrc/python_headers.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <mutex>
#include <string>

#include "record/record.h"

namespace nanscan {

class Kernel {
 public:
  // launch: launch(part, row, dtype), or None. only: nothing takes over when it fails. Once, before anything is launched.
  void set(PyObject* launch, bool only);

  // Would the next tensor be given to it?
  bool ready() const { return launch_ != nullptr && (only_ || !failed_.load(std::memory_order_relaxed)); }

  // The record of `part` into row, [16] int64, both on the device. False: there is no kernel, or none any more. Throws
  // std::runtime_error when it fails and is the only one. It takes the GIL if it has to: nobody who waits for the GIL may hold
  // a lock of ours. An interrupt that arrives meanwhile is raised again where the program goes on.
  bool launch(const at::Tensor& part, const at::Tensor& row, DType dtype);

  // Why it was given up; "" if it was not.
  std::string failure() const;

 private:
  PyObject* launch_ = nullptr;  // owned for good, as a library is
  bool only_ = false;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::string failure_;
};

// The process has one.
Kernel& kernel();

}  // namespace nanscan
