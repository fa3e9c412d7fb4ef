// The kernel by dtype: launching it, and loading it ahead of a capture.
#pragma once

#include "buffer/device_ring.cuh"
#include "scan/cuda/kernel.cuh"

namespace nanscan::cuda {

inline cudaError_t launch_scan(uint8_t dtype, const Launch& launch, const DeviceRing& ring, uint32_t n_blocks,
                               cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(n_blocks);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  switch (static_cast<DType>(dtype)) {
#define NANSCAN_CASE(name, F, parts) \
  case DType::name: return cudaLaunchKernelEx(&config, scan<Element<F, parts>, DeviceRing>, launch, ring);
    NANSCAN_CUDA_ELEMENTS(NANSCAN_CASE)
#undef NANSCAN_CASE
    default: return cudaErrorInvalidValue;
  }
}

// Asking for a kernel's attributes loads it. Loading at the first launch may allocate, which a capture forbids.
inline cudaError_t load_kernels() {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaSuccess;
#define NANSCAN_LOAD(name, F, parts) \
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, scan<Element<F, parts>, DeviceRing>);
  NANSCAN_CUDA_ELEMENTS(NANSCAN_LOAD)
#undef NANSCAN_LOAD
  return error;
}

}  // namespace nanscan::cuda
