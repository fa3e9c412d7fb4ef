// Chunk by chunk through memory: an optimistic pass, and an exact one for the chunks it does not suit.
//
// The optimistic pass (one per instruction set) masks nothing: sums about a shift, extrema, zeros and an integer test
// for subnormals. NaN and Inf cannot leave a sum finite, so finite sums prove that it was right. Otherwise the chunk,
// still in the L1 cache, is looked at again: by a masked pass, where the instruction set has one (attention masks are
// half -inf and legal), and last by the exact pass, which accumulates in double.
#pragma once

#include "scan/scan_cpu.h"

namespace nanscan {

template <typename Bits>
inline Bits load_bits(const char* data, int64_t i) {
  Bits bits;
  memcpy(&bits, data + i * static_cast<int64_t>(sizeof(Bits)), sizeof(bits));  // tensors may be misaligned
  return bits;
}

// Mean and m2 of values whose sums overflow in double: both near 1e308. Works on values scaled down; m2 may be +inf.
template <typename F, typename Keep>
inline void moments_scaled(const char* data, int64_t n_values, uint64_t n_kept, Keep keep, double& mean, double& m2) {
  const double down = double_from_bits(uint64_t{1023 - 540} << 52), up = double_from_bits(uint64_t{1023 + 540} << 52);
  ShiftedSums sums;
  for (int64_t i = 0; i < n_values; ++i) {
    if (!keep(i)) continue;
    const double d = static_cast<double>(F::value(load_bits<typename F::Bits>(data, i))) * down;
    sums.sum += d;
    sums.sum_sq += d * d;
  }
  if (!moments_of(sums, n_kept, mean, m2)) return;
  mean *= up;
  m2 = m2 * up * up;
}

// data[0 .. n), every case. About 1 ns per element.
template <typename F>
inline void scan_exact(const char* data, int64_t n, uint64_t base, Moments& m) {
  using Bits = typename F::Bits;
  ShiftedSums sums;
  for (int64_t i = 0; i < n; ++i) {
    const Bits bits = load_bits<Bits>(data, i);
    const Class c = F::classify(bits);
    count(m, c, base + static_cast<uint64_t>(i));
    if (is_bad(c)) continue;
    const double value = static_cast<double>(F::value(bits));
    if (m.n_parts == 0) sums.shift = value;
    m.n_parts += 1;
    m.min = min_of(m.min, value);
    m.max = max_of(m.max, value);
    const double d = value - sums.shift;
    sums.sum += d;
    sums.sum_sq += d * d;
  }
  if (m.n_parts != 0 && !moments_of(sums, m.n_parts, m.mean, m.m2)) {
    const auto finite = [data](int64_t i) { return !is_bad(F::classify(load_bits<Bits>(data, i))); };
    moments_scaled<F>(data, n, m.n_parts, finite, m.mean, m.m2);
  }
}

// n complex elements, each two adjacent values of format F. An element with a bad part adds nothing to the moments.
template <typename F>
inline void scan_exact_pairs(const char* data, int64_t n, uint64_t base, Moments& m) {
  using Bits = typename F::Bits;
  const auto class_of = [data](int64_t i) {
    return worse(F::classify(load_bits<Bits>(data, 2 * i)), F::classify(load_bits<Bits>(data, 2 * i + 1)));
  };
  ShiftedSums sums;
  for (int64_t i = 0; i < n; ++i) {
    const Class c = class_of(i);
    count(m, c, base + static_cast<uint64_t>(i));
    if (is_bad(c)) continue;
    for (int64_t part = 2 * i; part < 2 * i + 2; ++part) {
      const double value = static_cast<double>(F::value(load_bits<Bits>(data, part)));
      if (m.n_parts == 0) sums.shift = value;
      m.n_parts += 1;
      m.min = min_of(m.min, value);
      m.max = max_of(m.max, value);
      const double d = value - sums.shift;
      sums.sum += d;
      sums.sum_sq += d * d;
    }
  }
  if (m.n_parts != 0 && !moments_of(sums, m.n_parts, m.mean, m.m2)) {
    const auto finite = [&](int64_t part) { return !is_bad(class_of(part / 2)); };
    moments_scaled<F>(data, 2 * n, m.n_parts, finite, m.mean, m.m2);
  }
}

// An optimistic or masked pass: fills m (fresh) but for first_bad from n values, n >= kMinFast; false if it does not
// suit, then m is garbage.
using FastFn = bool (*)(const char* data, int64_t n, Moments& m);
constexpr int64_t kMinFast = 64;

// Squares in float lanes underflow when all values lie this close together: then the exact pass. Holds with subnormals
// flushed too: 4096 products of at most 1.2e-38 lost, against m2 of at least range^2 / 2 = 5e-29.
constexpr double kMinRange = 1e-14;
inline bool squares_underflow(const Moments& m) {
  const double range = m.max - m.min;
  return range > 0.0 && range < kMinRange;
}

template <typename F>
inline uint64_t find_bad(const char* data) {  // there is one
  uint64_t i = 0;
  while (!is_bad(F::classify(load_bits<typename F::Bits>(data, static_cast<int64_t>(i))))) ++i;
  return i;
}

template <typename F, FastFn kFast, FastFn kMasked = nullptr>
void scan_real(const void* data, int64_t n, uint64_t base, Moments& into) {
  const char* bytes = static_cast<const char*>(data);
  for (int64_t at = 0; at < n; at += kChunk) {
    const int64_t length = n - at < kChunk ? n - at : kChunk;
    const char* chunk = bytes + at * static_cast<int64_t>(sizeof(typename F::Bits));
    const uint64_t index = base + static_cast<uint64_t>(at);
    Moments m;
    bool done = length >= kMinFast && kFast(chunk, length, m);
    if constexpr (kMasked != nullptr) {
      if (!done && length >= kMinFast) {
        m = Moments{};
        done = kMasked(chunk, length, m);
        const bool first = into.first_bad == Moments::kNoIndex;
        if (done && first && n_bad(m) > 0) m.first_bad = index + find_bad<F>(chunk);
      }
    }
    if (!done) {
      m = Moments{};
      scan_exact<F>(chunk, length, index, m);
    }
    combine(into, m);
  }
}

// Complex: the optimistic pass sees twice as many values; its zeros and subnormals, if any, are counted again in pairs.
template <typename F, FastFn kFast>
void scan_pairs(const void* data, int64_t n, uint64_t base, Moments& into) {
  using Bits = typename F::Bits;
  constexpr int64_t kPairs = kChunk / 2;
  const char* bytes = static_cast<const char*>(data);
  for (int64_t at = 0; at < n; at += kPairs) {
    const int64_t length = n - at < kPairs ? n - at : kPairs;
    const char* chunk = bytes + at * 2 * static_cast<int64_t>(sizeof(typename F::Bits));
    Moments m;
    if (2 * length >= kMinFast && kFast(chunk, 2 * length, m)) {
      m.n = static_cast<uint64_t>(length);
      if (m.n_zero + m.n_subnormal > 0) {
        m.n_zero = m.n_subnormal = 0;
        for (int64_t i = 0; i < length; ++i) {
          const Bits re = load_bits<Bits>(chunk, 2 * i) & F::kMag, im = load_bits<Bits>(chunk, 2 * i + 1) & F::kMag;
          m.n_zero += (re | im) == 0;  // without branches: minus 1 wraps a zero out of the subnormals' range
          m.n_subnormal += (re - 1 < F::kMinNormal - 1) | (im - 1 < F::kMinNormal - 1);
        }
      }
    } else {
      m = Moments{};
      scan_exact_pairs<F>(chunk, length, base + static_cast<uint64_t>(at), m);
    }
    combine(into, m);
  }
}

}  // namespace nanscan
