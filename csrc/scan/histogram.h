// One-byte formats have 256 values: count how often each occurs, then every statistic follows exactly.
// About one cycle per element on any machine, so these need no vector code.
#pragma once

#include "scan/chunk.h"

namespace nanscan {

// Statistics of a multiset: how_often[b] elements with bits b.
template <typename F>
inline void moments_of_histogram(const uint64_t* how_often /* [256] */, Moments& m) {
  double sum = 0.0;
  for (int b = 0; b < 256; ++b) {
    const uint64_t k = how_often[b];
    if (k == 0) continue;
    const Class c = F::classify(static_cast<uint8_t>(b));
    m.n += k;
    m.n_zero += c == Class::kZero ? k : 0;
    m.n_subnormal += c == Class::kSubnormal ? k : 0;
    m.n_nan += c == Class::kNaN ? k : 0;
    m.n_posinf += c == Class::kPosInf ? k : 0;
    m.n_neginf += c == Class::kNegInf ? k : 0;
    if (is_bad(c)) continue;
    const double value = static_cast<double>(F::value(static_cast<uint8_t>(b)));
    m.n_parts += k;
    m.min = min_of(m.min, value);
    m.max = max_of(m.max, value);
    sum += value * static_cast<double>(k);
  }
  if (m.n_parts == 0) return;
  m.mean = sum / static_cast<double>(m.n_parts);
  for (int b = 0; b < 256; ++b) {
    if (how_often[b] == 0 || is_bad(F::classify(static_cast<uint8_t>(b)))) continue;
    const double d = static_cast<double>(F::value(static_cast<uint8_t>(b))) - m.mean;
    m.m2 += d * d * static_cast<double>(how_often[b]);
  }
}

template <typename F>
void scan_bytes(const void* data, int64_t n, uint64_t base, Moments& into) {
  constexpr int64_t kFew = 512;             // below, clearing and reading the tables costs more than it saves
  constexpr int64_t kPiece = int64_t{1} << 30;  // a table's 32-bit counts hold it
  const uint8_t* bytes = static_cast<const uint8_t*>(data);
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t length = n - at < kPiece ? n - at : kPiece;
    const uint8_t* piece = bytes + at;
    Moments m;
    if (length < kFew) {
      scan_exact<F>(reinterpret_cast<const char*>(piece), length, base + static_cast<uint64_t>(at), m);
      combine(into, m);
      continue;
    }
    // Four tables: equal neighbours would wait for each other's increment in one.
    uint32_t tables[4][256] = {};
    int64_t i = 0;
    for (; i + 8 <= length; i += 8) {
      const uint64_t eight = load_bits<uint64_t>(reinterpret_cast<const char*>(piece) + i, 0);
      tables[0][eight & 0xff] += 1;
      tables[1][eight >> 8 & 0xff] += 1;
      tables[2][eight >> 16 & 0xff] += 1;
      tables[3][eight >> 24 & 0xff] += 1;
      tables[0][eight >> 32 & 0xff] += 1;
      tables[1][eight >> 40 & 0xff] += 1;
      tables[2][eight >> 48 & 0xff] += 1;
      tables[3][eight >> 56] += 1;
    }
    for (; i < length; ++i) tables[0][piece[i]] += 1;
    uint64_t how_often[256];
    for (int b = 0; b < 256; ++b) how_often[b] = uint64_t{tables[0][b]} + tables[1][b] + tables[2][b] + tables[3][b];
    moments_of_histogram<F>(how_often, m);
    if (n_bad(m) > 0) {
      int64_t first = 0;
      while (!is_bad(F::classify(piece[first]))) ++first;
      m.first_bad = base + static_cast<uint64_t>(at + first);
    }
    combine(into, m);
  }
}

}  // namespace nanscan
