// What one thread has found out so far. Counts in 32 bits (a thread never sees 2^32 values), sums in double.
#pragma once

#include "scan/accumulate.h"
#include "scan/cuda/values.cuh"

namespace nanscan::cuda {

NANSCAN_D float low_of(float a, float b) { return fminf(a, b); }
NANSCAN_D float high_of(float a, float b) { return fmaxf(a, b); }
NANSCAN_D double low_of(double a, double b) { return fmin(a, b); }
NANSCAN_D double high_of(double a, double b) { return fmax(a, b); }

// The moments of a few values, as a thread's registers leave them: n values, their sums about a shift.
template <typename Real>
struct GroupSums {
  uint32_t n;
  Real shift;
  Real sum;
  Real sum_sq;
};

// Narrow formats: sums about the first group's shift. Nothing can overflow: values stay below 2^128, so squares stay
// below 2^258 in double. Adding a group costs no division and about nine operations in double.
template <typename Real>
struct ThreadSums {
  uint32_t n = 0;
  ShiftedSums about;

  // scale: the group's values are deviations divided by it (a power of two).
  NANSCAN_D void add(const GroupSums<float>& g, double scale = 1.0) {
    const double sum = static_cast<double>(g.sum) * scale, sum_sq = static_cast<double>(g.sum_sq) * scale * scale;
    const double n_g = static_cast<double>(g.n);
    if (n == 0) about.shift = static_cast<double>(g.shift);
    const double d = static_cast<double>(g.shift) - about.shift;
    about.sum += sum + n_g * d;
    about.sum_sq += sum_sq + d * (2.0 * sum + n_g * d);
    n += g.n;
  }
};

// Wide formats: their squares overflow in double, so groups are merged as mean and m2, which combine_moments keeps
// right up to float64's ends. One division per group.
template <>
struct ThreadSums<double> {
  uint32_t n = 0;
  double mean = 0.0;
  double m2 = 0.0;

  // The shift is in units of scale too: shift * scale may be out of range where the mean is not.
  NANSCAN_D void add(const GroupSums<double>& g, double scale = 1.0) {
    const double offset = g.sum / static_cast<double>(g.n);
    const double deviations = g.sum_sq - g.sum * offset;
    uint64_t total = n;
    combine_moments(total, mean, m2, g.n, (g.shift + offset) * scale,
                    (deviations > 0.0 ? deviations : 0.0) * scale * scale);
    n += g.n;
  }
};

template <typename E>
struct Tally {
  using Real = typename E::Real;

  uint32_t n_zero = 0;
  uint32_t n_subnormal = 0;
  uint32_t n_nan = 0;
  uint32_t n_posinf = 0;
  uint32_t n_neginf = 0;
  Real low = static_cast<Real>(double_from_bits(0x7ff0000000000000u));
  Real high = static_cast<Real>(double_from_bits(0xfff0000000000000u));
  uint64_t first_bad = Moments::kNoIndex;  // logical
  ThreadSums<Real> sums;

  NANSCAN_D void count(Class c) {
    n_zero += c == Class::kZero;
    n_subnormal += c == Class::kSubnormal;
    n_nan += c == Class::kNaN;
    n_posinf += c == Class::kPosInf;
    n_neginf += c == Class::kNegInf;
  }
};

}  // namespace nanscan::cuda
