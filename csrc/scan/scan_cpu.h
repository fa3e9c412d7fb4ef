// CPU kernels: pointers, lengths and a dtype in, statistics out. No torch.
#pragma once

#include "scan/accumulate.h"

namespace nanscan {

// Kernels work through memory in chunks: a chunk's sums are taken about one shift, then folded with Chan's formula.
// 4096 float32 fill half an L1 cache, so that a second look (exact pass, complex counts) is nearly free.
constexpr int64_t kChunk = 4096;  // elements

// Large tensors are cut into spans, and spans go to threads. The cut depends on n alone and the spans are folded in
// order, so the result does not depend on how many threads there are, bit for bit.
constexpr int64_t kMinSpan = 128 * 1024;  // elements; below two of these a thread's wake-up costs more than it saves
constexpr int64_t kMaxSpans = 128;        // partials live on the caller's stack
struct Spans {
  int64_t count;
  int64_t length;  // elements; a multiple of kChunk, the last span is shorter
};
Spans spans_of(int64_t n);

// Instruction sets, chosen once at run time. Counts, extrema and indices agree exactly between levels, mean and m2 to
// rounding.
enum class SimdLevel : int { kPortable = 0, kAvx2 = 1 };
SimdLevel best_simd_level();
SimdLevel simd_level();
bool set_simd_level(SimdLevel level);  // for tests; false if this machine has no such level
const char* name_of(SimdLevel level);

// Adds data[0 .. n) to `into`; an element's index is base + its position. data may be misaligned. n >= 0.
using ScanFn = void (*)(const void* data, int64_t n, uint64_t base, Moments& into);
ScanFn scan_fn(DType dtype);  // nullptr for kUnknown

// Serial: all spans of data[0 .. n), folded in order.
void scan_dense(const void* data /* [n] of dtype */, int64_t n, DType dtype, Moments& out);

// One element of a small tensor costs less this way than through a chunk.
bool is_bad_at(const void* data, int64_t index, DType dtype);

int64_t size_bytes(DType dtype);  // of one element; 0 for kUnknown

// Kernel tables of the levels, indexed by DType. avx2_kernels() is nullptr where it was not compiled in.
const ScanFn* portable_kernels();
const ScanFn* avx2_kernels();

}  // namespace nanscan
