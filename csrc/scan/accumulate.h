// The statistics as a pair: compute over a group of elements, combine two groups. Lanes, blocks, chunks, tensors and
// ranks all merge with the one `combine`. Host and device, like classify.h.
#pragma once

#include "scan/classify.h"

namespace nanscan {

// What a record says about a group of elements. `Moments{}` is a group of none, the zero of combine.
struct Moments {
  uint64_t n = 0;
  uint64_t n_nan = 0;
  uint64_t n_posinf = 0;
  uint64_t n_neginf = 0;
  uint64_t n_zero = 0;
  uint64_t n_subnormal = 0;
  uint64_t n_parts = 0;  // values behind min .. m2: the finite elements, twice that for complex
  double min = double_from_bits(0x7ff0000000000000u);   // +inf
  double max = double_from_bits(0xfff0000000000000u);   // -inf
  double mean = 0.0;
  double m2 = 0.0;
  uint64_t first_bad = kNoIndex;  // index within whatever the group is part of: combining takes the smaller

  static constexpr uint64_t kNoIndex = ~uint64_t{0};
};

NANSCAN_HD double min_of(double a, double b) { return b < a ? b : a; }
NANSCAN_HD double max_of(double a, double b) { return b > a ? b : a; }
NANSCAN_HD bool is_finite(double x) { return x - x == 0.0; }  // Inf - Inf and NaN - NaN are NaN
NANSCAN_HD uint64_t n_bad(const Moments& m) { return m.n_nan + m.n_posinf + m.n_neginf; }

// Chan's formula. Commutative and associative up to rounding; counts, extrema and first_bad exactly so.
NANSCAN_HD void combine_moments(uint64_t& n, double& mean, double& m2, uint64_t n_b, double mean_b, double m2_b) {
  if (n_b == 0) return;
  if (n == 0) {
    n = n_b;
    mean = mean_b;
    m2 = m2_b;
    return;
  }
  const double total = static_cast<double>(n) + static_cast<double>(n_b);
  const double share_b = static_cast<double>(n_b) / total;
  const double delta = mean_b - mean;
  if (is_finite(delta)) {
    m2 += m2_b + delta * delta * (static_cast<double>(n) * share_b);
    mean += delta * share_b;
  } else {  // both near float64's ends, with opposite signs
    mean = mean * (static_cast<double>(n) / total) + mean_b * share_b;
    m2 = double_from_bits(0x7ff0000000000000u);
  }
  n += n_b;
}

NANSCAN_HD void combine(Moments& a, const Moments& b) {
  a.n += b.n;
  a.n_nan += b.n_nan;
  a.n_posinf += b.n_posinf;
  a.n_neginf += b.n_neginf;
  a.n_zero += b.n_zero;
  a.n_subnormal += b.n_subnormal;
  a.min = min_of(a.min, b.min);
  a.max = max_of(a.max, b.max);
  combine_moments(a.n_parts, a.mean, a.m2, b.n_parts, b.mean, b.m2);
  a.first_bad = b.first_bad < a.first_bad ? b.first_bad : a.first_bad;
}

// Counts one element of class c at `index`.
NANSCAN_HD void count(Moments& m, Class c, uint64_t index) {
  m.n += 1;
  if (c == Class::kNormal) return;
  if (is_bad(c) && index < m.first_bad) m.first_bad = index;
  switch (c) {
    case Class::kZero: m.n_zero += 1; break;
    case Class::kSubnormal: m.n_subnormal += 1; break;
    case Class::kNegInf: m.n_neginf += 1; break;
    case Class::kPosInf: m.n_posinf += 1; break;
    case Class::kNaN: m.n_nan += 1; break;
    default: break;
  }
}

// Sums about a shift: of d and of d * d, with d = x - shift. Plain sums of squares cancel (mean 1e4, std 1 in float32
// gives std 1.39). The loss of accuracy against a perfect shift is n * (shift - mean)^2 / m2, so any shift drawn from
// the data itself is good: the mean of k of its n values loses at most a factor n / k.
struct ShiftedSums {
  double shift = 0.0;
  double sum = 0.0;
  double sum_sq = 0.0;
};

// Into mean and m2. False if something overflowed on the way (or a non-finite value was summed): nothing is set then.
NANSCAN_HD bool moments_of(const ShiftedSums& s, uint64_t n, double& mean, double& m2) {
  const double n_d = static_cast<double>(n);
  const double offset = s.sum / n_d;
  const double deviations = s.sum_sq - s.sum * offset;
  const double centre = s.shift + offset;
  if (!is_finite(deviations) || !is_finite(centre)) return false;
  mean = centre;
  m2 = deviations > 0.0 ? deviations : 0.0;  // rounding may leave a little less than nothing
  return true;
}

// Into a record's statistics; the other fields, and flags other than kFlagBad, stay as they are.
NANSCAN_HD void store(const Moments& m, DType dtype, Record& out) {
  out.dtype = static_cast<uint16_t>(dtype);
  out.flags = static_cast<uint16_t>(n_bad(m) > 0 ? out.flags | kFlagBad : out.flags & ~kFlagBad);
  out.n = m.n;
  out.n_nan = m.n_nan;
  out.n_posinf = m.n_posinf;
  out.n_neginf = m.n_neginf;
  out.n_zero = m.n_zero;
  out.n_subnormal = m.n_subnormal;
  out.min = m.min;
  out.max = m.max;
  out.mean = m.mean;
  out.m2 = m.m2;
  out.first_bad = m.first_bad == Moments::kNoIndex ? -1 : static_cast<int64_t>(m.first_bad);
}

}  // namespace nanscan
