// The few places where device code is not plain CUDA, so that g++ compiles the same source (tests/gpu): a stand-in for
// CUDA's headers, shared arrays by macro, and stores to memory that the host reads while kernels run.
#pragma once

#include <cstdint>

#if defined(HOST_SHIM)
#include HOST_SHIM
#else
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define SHARED_ARRAY(T, name, N) __shared__ T name[N]
#endif

#define NANSCAN_D __device__ __forceinline__

// Tests shrink the block to cover many blocks with few elements; one lane makes a block a plain function call.
#ifndef NANSCAN_CUDA_THREADS
#define NANSCAN_CUDA_THREADS 256
#endif
#ifndef NANSCAN_CUDA_LANES
#define NANSCAN_CUDA_LANES 32
#endif

namespace nanscan::cuda {

constexpr int kThreads = NANSCAN_CUDA_THREADS;  // of a block
constexpr int kLanes = NANSCAN_CUDA_LANES;      // of a warp
constexpr int kWarps = kThreads / kLanes;
constexpr unsigned kAllLanes = 0xffffffffu >> (32 - kLanes);
static_assert(kThreads % kLanes == 0 && kWarps <= kLanes, "the first warp folds one value of each warp");

constexpr int kInFlight = 4;  // 16-byte loads of a thread before it looks at the first: 64 KiB per SM with 1024 threads

#if !defined(HOST_SHIM)
// Memory mapped from the host. Volatile: neither kept in a register nor reordered against other volatile accesses.
NANSCAN_D void store_mapped(uint64_t* to, uint64_t value) { *const_cast<volatile uint64_t*>(to) = value; }
NANSCAN_D uint64_t load_mapped(const uint64_t* from) { return *const_cast<const volatile uint64_t*>(from); }
// Device memory that other blocks change by atomics.
NANSCAN_D unsigned long long load_shared_word(const unsigned long long* from) {
  return *const_cast<const volatile unsigned long long*>(from);
}
#endif

}  // namespace nanscan::cuda
