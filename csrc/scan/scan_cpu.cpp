// Portable kernels, and the choice between them and faster ones.
#include "scan/scan_cpu.h"

#include <atomic>

#include "scan/chunk.h"
#include "scan/histogram.h"

namespace nanscan {
namespace {

// The optimistic pass in plain loops over 16 lanes, which compilers turn into whatever vectors the target has.
// T: float or double, the type of the lanes.
template <typename F, typename T>
bool fast_portable(const char* data, int64_t n, Moments& m) {
  using Bits = typename F::Bits;
  constexpr int kLanes = 16;
  constexpr int64_t kFold = 512;  // elements between folds of the lanes into double
  const auto value = [data](int64_t i) { return static_cast<T>(F::value(load_bits<Bits>(data, i))); };

  // The mean of 64 elements in 8 places; the detour over the first makes it exact for a constant tensor.
  const T first = value(0);
  T excess = 0;
  for (int64_t group = 0; group < 8; ++group) {
    for (int64_t i = 0; i < 8; ++i) excess += value(group * (n / 8) + i) - first;
  }
  const T shift = first + excess / 64;

  ShiftedSums sums{static_cast<double>(shift), 0.0, 0.0};
  Bits zero[kLanes] = {}, tiny[kLanes] = {};
  T low[kLanes], high[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) low[lane] = high[lane] = first;
  int64_t at = 0;
  while (at + kLanes <= n) {
    T sum[kLanes] = {}, sum_sq[kLanes] = {};
    const int64_t stop = n - at < kFold ? n : at + kFold;
    for (; at + kLanes <= stop; at += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const Bits bits = load_bits<Bits>(data, at + lane);
        const Bits mag = static_cast<Bits>(bits & F::kMag);
        const T x = static_cast<T>(F::value(bits));
        const T d = x - shift;
        sum[lane] += d;
        sum_sq[lane] += d * d;
        low[lane] = x < low[lane] ? x : low[lane];
        high[lane] = x > high[lane] ? x : high[lane];
        zero[lane] = static_cast<Bits>(zero[lane] + (mag == 0));
        tiny[lane] = static_cast<Bits>(tiny[lane] + (mag < F::kMinNormal));
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      sums.sum += static_cast<double>(sum[lane]);
      sums.sum_sq += static_cast<double>(sum_sq[lane]);
    }
  }
  uint64_t n_tiny = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    m.n_zero += zero[lane];
    n_tiny += tiny[lane];
    m.min = min_of(m.min, static_cast<double>(low[lane]));
    m.max = max_of(m.max, static_cast<double>(high[lane]));
  }
  for (; at < n; ++at) {
    const Bits mag = static_cast<Bits>(load_bits<Bits>(data, at) & F::kMag);
    const double x = static_cast<double>(value(at));
    const double d = x - sums.shift;
    sums.sum += d;
    sums.sum_sq += d * d;
    m.min = min_of(m.min, x);
    m.max = max_of(m.max, x);
    m.n_zero += mag == 0;
    n_tiny += mag < F::kMinNormal;
  }
  m.n = m.n_parts = static_cast<uint64_t>(n);
  m.n_subnormal = n_tiny - m.n_zero;
  return moments_of(sums, m.n, m.mean, m.m2) && (sizeof(T) == 8 || !squares_underflow(m));
}

template <typename F>
void scan_exact_chunks(const void* data, int64_t n, uint64_t base, Moments& into) {
  for (int64_t at = 0; at < n; at += kChunk) {
    Moments m;
    const char* chunk = static_cast<const char*>(data) + at * static_cast<int64_t>(sizeof(typename F::Bits));
    scan_exact<F>(chunk, n - at < kChunk ? n - at : kChunk, base + static_cast<uint64_t>(at), m);
    combine(into, m);
  }
}

constexpr ScanFn kPortable[kNumDTypes] = {
    nullptr,
    scan_real<F64, fast_portable<F64, double>>,
    scan_real<F32, fast_portable<F32, float>>,
    scan_exact_chunks<F16>,  // decoding branches: lanes would not help
    scan_real<BF16, fast_portable<BF16, float>>,
    scan_bytes<F8E4M3FN>,
    scan_bytes<F8E5M2>,
    scan_bytes<F8E4M3FNUZ>,
    scan_bytes<F8E5M2FNUZ>,
    scan_pairs<F32, fast_portable<F32, float>>,
    scan_pairs<F64, fast_portable<F64, double>>,
};

std::atomic<int> g_level{-1};  // -1: not chosen yet

template <typename F>
bool bad_value(const void* data, int64_t index) {
  return is_bad(F::classify(load_bits<typename F::Bits>(static_cast<const char*>(data), index)));
}

}  // namespace

const ScanFn* portable_kernels() { return kPortable; }

Spans spans_of(int64_t n) {
  if (n < 2 * kMinSpan) return {1, n};
  int64_t length = (n + kMaxSpans - 1) / kMaxSpans;
  if (length < kMinSpan) length = kMinSpan;
  length = (length + kChunk - 1) / kChunk * kChunk;
  return {(n + length - 1) / length, length};
}

SimdLevel best_simd_level() {
#if (defined(__x86_64__) || defined(__amd64__)) && (defined(__GNUC__) || defined(__clang__))
  __builtin_cpu_init();
  if (avx2_kernels() != nullptr && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return SimdLevel::kAvx2;
  }
#endif
  return SimdLevel::kPortable;
}

SimdLevel simd_level() {
  int level = g_level.load(std::memory_order_relaxed);
  if (level < 0) {  // several threads may get here: they find the same
    level = static_cast<int>(best_simd_level());
    g_level.store(level, std::memory_order_relaxed);
  }
  return static_cast<SimdLevel>(level);
}

bool set_simd_level(SimdLevel level) {
  if (static_cast<int>(level) > static_cast<int>(best_simd_level())) return false;
  g_level.store(static_cast<int>(level), std::memory_order_relaxed);
  return true;
}

const char* name_of(SimdLevel level) { return level == SimdLevel::kAvx2 ? "avx2" : "portable"; }

ScanFn scan_fn(DType dtype) {
  const ScanFn* table = simd_level() == SimdLevel::kAvx2 ? avx2_kernels() : kPortable;
  return table[static_cast<int>(dtype)];
}

void scan_dense(const void* data, int64_t n, DType dtype, Moments& out) {
  out = Moments{};
  const ScanFn scan = scan_fn(dtype);
  if (scan == nullptr || n <= 0) return;
  const Spans spans = spans_of(n);
  for (int64_t i = 0; i < spans.count; ++i) {
    const int64_t at = i * spans.length;
    Moments m;
    scan(static_cast<const char*>(data) + at * size_bytes(dtype), n - at < spans.length ? n - at : spans.length,
         static_cast<uint64_t>(at), m);
    combine(out, m);
  }
}

bool is_bad_at(const void* data, int64_t index, DType dtype) {
  switch (dtype) {
    case DType::kF64: return bad_value<F64>(data, index);
    case DType::kF32: return bad_value<F32>(data, index);
    case DType::kF16: return bad_value<F16>(data, index);
    case DType::kBF16: return bad_value<BF16>(data, index);
    case DType::kF8E4M3FN: return bad_value<F8E4M3FN>(data, index);
    case DType::kF8E5M2: return bad_value<F8E5M2>(data, index);
    case DType::kF8E4M3FNUZ: return bad_value<F8E4M3FNUZ>(data, index);
    case DType::kF8E5M2FNUZ: return bad_value<F8E5M2FNUZ>(data, index);
    case DType::kC64: return bad_value<F32>(data, 2 * index) || bad_value<F32>(data, 2 * index + 1);
    case DType::kC128: return bad_value<F64>(data, 2 * index) || bad_value<F64>(data, 2 * index + 1);
    case DType::kUnknown: break;
  }
  return false;
}

int64_t size_bytes(DType dtype) {
  constexpr int64_t kSizes[kNumDTypes] = {0, 8, 4, 2, 2, 1, 1, 1, 1, 8, 16};
  return kSizes[static_cast<int>(dtype)];
}

}  // namespace nanscan
