// libnanscan_cuda, loaded at run time: no torch, no CUDA header, and nothing to link against where there is no GPU.
#pragma once

#include <string>

#include "scan/scan_cuda.h"

namespace nanscan {

struct DeviceLibrary {
  decltype(&nanscan_cuda_abi) abi;
  decltype(&nanscan_cuda_error) error;
  decltype(&nanscan_cuda_open) open;
  decltype(&nanscan_cuda_close) close;
  decltype(&nanscan_cuda_scan) scan;
  decltype(&nanscan_cuda_scan_many) scan_many;
  decltype(&nanscan_cuda_poll) poll;
  decltype(&nanscan_cuda_flush) flush;
  decltype(&nanscan_cuda_counters) counters;
  decltype(&nanscan_cuda_capturing) capturing;
  // The library's kernels were compiled for the CPU and its launches run when a test says so: memory of the CPU then
  // counts as a device's.
  bool stand_in = false;
  // A launch may want the GIL: it is made without a lock that somebody who has the GIL could wait for.
  bool unlocked = false;
};

// nullptr until one was loaded. It stays loaded: its threads and its device memory outlive every session.
const DeviceLibrary* device_library();

// Throws std::runtime_error with the reason. A second library is refused.
void load_device_library(const std::string& path, bool stand_in);

// Entry points that are in this core, in place of a library. Throws std::runtime_error when there is one.
void use_device_library(const DeviceLibrary& library);

}  // namespace nanscan
