// CUDA's runtime as far as csrc/buffer uses it, on CPU memory. Work is queued per stream and runs when somebody says
// so: nanscan_standin_run picks streams at random, cudaDeviceSynchronize runs everything. Any pointer is a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidDevice = 101,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1 };
enum : unsigned { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2, cudaEventDisableTiming = 2 };

using cudaStream_t = struct ShimStream*;
using cudaEvent_t = struct ShimEvent*;
struct cudaFuncAttributes {};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream = nullptr;
};

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t shim_allocate(void** memory, size_t bytes);
template <typename T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
  return shim_allocate(reinterpret_cast<void**>(memory), bytes);
}
template <typename T>
cudaError_t cudaHostAlloc(T** memory, size_t bytes, unsigned) {
  return shim_allocate(reinterpret_cast<void**>(memory), bytes);
}
cudaError_t cudaFree(void* memory);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemset(void* to, int value, size_t bytes);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned);
template <typename K>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, K*) {
  return cudaSuccess;
}

namespace shim {
cudaError_t enqueue_kernel(cudaStream_t stream, std::function<void()> run);
}

// Arguments are copied now, as the driver does, and whatever they point to is read when the kernel runs.
template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  auto call = [kernel, ... copied = std::decay_t<Args>(args)] { kernel(copied...); };
  return shim::enqueue_kernel(config->stream, [call, n_blocks = config->gridDim.x, n_threads = config->blockDim.x] {
    shim::run_grid(n_blocks, n_threads, [](void* c) { (*static_cast<const decltype(call)*>(c))(); },
                   const_cast<void*>(static_cast<const void*>(&call)));
  });
}

// What tests use besides csrc/scan/scan_cuda.h.
extern "C" {
// Runs up to max_launches queued kernels (and the copies in front of them); returns how many. Streams take turns by
// seed, in a stream the order stays.
__attribute__((visibility("default"))) uint32_t nanscan_standin_run(uint64_t seed, uint32_t max_launches);
__attribute__((visibility("default"))) uint32_t nanscan_standin_queued(void);
// A graph: what is launched on the stream between begin (1) and end (0) is kept, and queued by each replay.
__attribute__((visibility("default"))) int nanscan_standin_capture(void* stream, int begin);
__attribute__((visibility("default"))) int nanscan_standin_replay(void* stream);
}
