// Stands in for CUDA's headers when g++ compiles the kernels: what csrc/ uses, and no more.
//
// Device side, two ways. By default each CUDA thread is a fiber: all threads of a block, and several blocks, run
// interleaved under a seeded schedule (fibers.cpp), and barriers, shuffles and fences are checked and shown to the
// sanitizers. With SHIM_SOLO (one thread per block, NANSCAN_CUDA_THREADS=1, NANSCAN_CUDA_LANES=1) a block is a function
// call: nothing to interleave, and fast. Host side: runtime.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  explicit dim3(unsigned x) : x(x) {}
};

struct __half {
  uint16_t bits;
};
inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline float __half2float(__half h) { return static_cast<float>(std::bit_cast<_Float16>(h.bits)); }
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __popcll(unsigned long long v) { return std::popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
using std::fma;
using std::fmax;
using std::fmaxf;
using std::fmin;
using std::fminf;

namespace shim {

[[noreturn]] void die(const char* why);
void run_grid(unsigned n_blocks, unsigned n_threads, void (*body)(void*), void* context);
void seed(uint64_t value);  // of schedules and of the order of blocks
uint64_t random();

#if defined(SHIM_SOLO)

extern unsigned block_index;
struct Index {
  unsigned x;
};
inline Index thread_index() { return {0}; }
inline Index block_index_now() { return {block_index}; }
inline void barrier(int) {}
inline void fence() {}
inline void maybe_yield() {}
void* shared(int site, size_t bytes);
template <typename T>
T from_lane(unsigned, T value, unsigned, bool) {
  return value;
}
template <typename F>
unsigned reduce(unsigned, unsigned value, F) {
  return value;
}
inline unsigned lane() { return 0; }

#else

struct Ids {
  unsigned thread, block;
};
extern Ids* current;  // written by the scheduler alone
struct Index {
  unsigned x;
};
inline Index thread_index() { return {current->thread}; }
inline Index block_index_now() { return {current->block}; }
void barrier(int line);  // every thread of the block, at the same source line
// Every lane of the mask leaves a value; returns the 32 values left.
const uint64_t* exchange(unsigned mask, uint64_t value);
void maybe_yield();  // in front of each atomic
void* shared(int site, size_t bytes);
void fence();
inline unsigned lane() { return current->thread & 31u; }

template <typename T>
T from_lane(unsigned mask, T value, unsigned source, bool there) {
  static_assert(sizeof(T) <= 8);
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(value));
  const uint64_t* words = exchange(mask, word);
  if (!there) return value;
  if ((mask >> (source & 31) & 1) == 0) die("a shuffle reads from a lane outside its mask");
  std::memcpy(&value, &words[source & 31], sizeof(value));
  return value;
}

template <typename F>
unsigned reduce(unsigned mask, unsigned value, F combine) {
  const uint64_t* words = exchange(mask, value);
  const int first = std::countr_zero(mask);
  unsigned result = static_cast<unsigned>(words[first]);
  for (int i = first + 1; i < 32; ++i) {
    if (mask >> i & 1) result = combine(result, static_cast<unsigned>(words[i]));
  }
  return result;
}

#endif

template <typename T>
void check_aligned(const T* p, const char* what) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0) die(what);
}

template <typename T, typename F>
T atomically(T* p, F change) {
  check_aligned(p, "misaligned atomic");
  maybe_yield();
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(p, &old, change(old), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

}  // namespace shim

#define threadIdx shim::thread_index()
#define blockIdx shim::block_index_now()
#define SHARED_ARRAY(T, name, N)                  \
  static constexpr int name##_site = __COUNTER__; \
  T* name = static_cast<T*>(shim::shared(name##_site, sizeof(T) * (N)))
#define __syncthreads() shim::barrier(__LINE__)

inline void __threadfence() { shim::fence(); }
inline void __threadfence_system() { shim::fence(); }

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  const unsigned source = shim::lane() + by;
  return shim::from_lane(mask, value, source, source < 32);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, unsigned source) {
  return shim::from_lane(mask, value, source, true);
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return shim::reduce(mask, value, [](unsigned a, unsigned b) { return a + b; });
}
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  return shim::reduce(mask, static_cast<unsigned>(predicate) << shim::lane(),
                      [](unsigned a, unsigned b) { return a | b; });
}
inline bool __any_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, predicate) != 0; }

template <typename T>
T __ldcs(const T* p) {
  shim::check_aligned(p, "misaligned vector load");
  return *p;
}

inline unsigned atomicAdd(unsigned* p, unsigned v) {
  return shim::atomically(p, [v](unsigned old) { return old + v; });
}
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long v) {
  return shim::atomically(p, [v](unsigned long long old) { return old + v; });
}
inline unsigned long long atomicMax(unsigned long long* p, unsigned long long v) {
  return shim::atomically(p, [v](unsigned long long old) { return std::max(old, v); });
}
inline unsigned atomicInc(unsigned* p, unsigned last) {
  return shim::atomically(p, [last](unsigned old) { return old >= last ? 0u : old + 1; });
}
inline unsigned long long atomicCAS(unsigned long long* p, unsigned long long expected, unsigned long long desired) {
  return shim::atomically(p, [=](unsigned long long old) { return old == expected ? desired : old; });
}

namespace nanscan::cuda {
inline void store_mapped(uint64_t* to, uint64_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
inline uint64_t load_mapped(const uint64_t* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
inline unsigned long long load_shared_word(const unsigned long long* from) {
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}
}  // namespace nanscan::cuda

#include "runtime.h"
