// One vector looked at value by value, every case: NaN and infinities left out, subnormals counted, deviations scaled
// so that their squares neither overflow nor underflow. Also for the first and last few elements of a tensor and for
// gathered ones, where not the whole vector is there. A few times slower than fast.cuh, and still from registers.
#pragma once

#include "scan/cuda/fast.cuh"
#include "scan/cuda/locate.cuh"

namespace nanscan::cuda {

// A power of two that brings a range into 1 .. 4, and its inverse in double. Both are normal numbers: extreme ranges
// end a little outside. The values themselves cannot overflow by it, since two floats that differ do so in their last
// places at least; where all are equal nothing is scaled.
template <typename Real>
struct Scale {
  Real down;
  double up;
};
NANSCAN_D Scale<float> scale_of(float range) {
  uint32_t bits;
  memcpy(&bits, &range, sizeof(bits));
  const uint32_t exponent = range == 0 ? 127 : bits >> 23;  // 255 if the range overflowed
  const uint32_t down = exponent > 253 ? 1 : 254 - exponent;
  return {float_from_bits(down << 23), double_from_bits(uint64_t{1023 + 127 - down} << 52)};
}
NANSCAN_D Scale<double> scale_of(double range) {
  uint64_t bits;
  memcpy(&bits, &range, sizeof(bits));
  const uint64_t exponent = range == 0 ? 1023 : bits >> 52;
  const uint64_t down = exponent > 2045 ? 1 : exponent < 1 ? 2045 : 2046 - exponent;  // the inverse is normal, too
  return {double_from_bits(down << 52), double_from_bits((2046 - down) << 52)};
}

// The smallest logical index among the bad elements of a vector that starts at `position`.
NANSCAN_D uint64_t first_of(uint32_t bad_elements, const Layout& layout, uint64_t position) {
  uint64_t first = Moments::kNoIndex;
#pragma unroll 1
  do {
    const int e = __ffs(static_cast<int>(bad_elements)) - 1;
    const uint64_t logical = locate(layout, position + static_cast<uint64_t>(e)).logical;
    first = logical < first ? logical : first;
    bad_elements &= bad_elements - 1;
  } while (bad_elements != 0 && !layout.in_order);
  return first;
}

// Elements 0 .. present of the vector; element e stands at position + e of the tensor.
template <typename E>
NANSCAN_D void take_careful(const Vector<E>& vector, int present, uint64_t position, const Layout& layout,
                            Tally<E>& tally) {
  using F = typename E::Format;
  using Real = typename E::Real;
  constexpr Real kFactor = Decode<F>::kFactor;
  constexpr int kPerCell = E::kPerCell;

  uint32_t bad_elements = 0;  // a bit each
  Real low = static_cast<Real>(double_from_bits(0x7ff0000000000000u)), high = -low;
#pragma unroll
  for (int e = 0; e < E::kPerVector; ++e) {
    if (e >= present) continue;
    constexpr int kParts = E::kParts;
    Class c = F::classify(E::bits(vector.cell[e * kParts / kPerCell], e * kParts % kPerCell));
    if constexpr (kParts == 2) c = worse(c, F::classify(E::bits(vector.cell[2 * e + 1], 0)));
    tally.count(c);
    if (is_bad(c)) {
      bad_elements |= 1u << e;
      continue;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Real value = E::raw(vector.cell[(e * kParts + part) / kPerCell], (e * kParts + part) % kPerCell) * kFactor;
      low = low_of(low, value);
      high = high_of(high, value);
    }
  }
  if (bad_elements != 0) {
    const uint64_t first = first_of(bad_elements, layout, position);
    tally.first_bad = first < tally.first_bad ? first : tally.first_bad;
  }
  const uint32_t n_finite = (static_cast<uint32_t>(present) - count_bits(bad_elements)) * E::kParts;
  if (n_finite == 0) return;
  tally.low = low_of(tally.low, low);
  tally.high = high_of(tally.high, high);

  // Deviations from the smallest value. Scaled before they are subtracted: the difference of two values may overflow.
  const Scale<Real> scale = scale_of(high - low);
  const Real shift = low * scale.down;
  Real sum = 0, sum_sq = 0;
#pragma unroll
  for (int e = 0; e < E::kPerVector; ++e) {
    if (e >= present || (bad_elements >> e & 1) != 0) continue;
#pragma unroll
    for (int part = 0; part < E::kParts; ++part) {
      const int value = e * E::kParts + part;
      const Real d = E::raw(vector.cell[value / kPerCell], value % kPerCell) * kFactor * scale.down - shift;
      sum += d;
      sum_sq = fma(d, d, sum_sq);
    }
  }
  tally.sums.add({n_finite, sizeof(Real) == 4 ? low : shift, sum, sum_sq}, scale.up);
}

}  // namespace nanscan::cuda
