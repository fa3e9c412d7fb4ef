// The optimistic look at kInFlight vectors in registers: as scan/chunk.h's, it masks nothing. A value that is NaN or
// infinite leaves no sum finite, so finite sums prove that there was none; one-byte formats, whose NaN decodes to a
// number, are tested as integers. Whatever does not suit (a subnormal, a squared deviation out of float's range) is
// looked at again by careful.cuh.
#pragma once

#include "scan/cuda/tally.cuh"

namespace nanscan::cuda {

// Integer tests of whole cells: adding a constant carries a value's magnitude into its top bit when it is large enough.
template <typename E>
struct CellTests {
  using Cell = typename E::Cell;
  using F = typename E::Format;
  static constexpr Cell kHalf = Cell{1} << (E::kValueBits - 1);

  // Top bit set: not zero (in either part).
  NANSCAN_D static Cell not_zero(Cell magnitude) { return magnitude + E::kMag; }
  // Top bit set: not below the smallest normal number.
  NANSCAN_D static Cell not_tiny(Cell magnitude) {
    return magnitude + (kHalf - Cell{Decode<F>::kMinNormal}) * E::kOnes;
  }
  // Top bit set: NaN or infinity, for the formats whose bad values do not decode to one. kFewest: the smallest bad
  // magnitude; 0 where the one bad pattern is minus zero.
  static constexpr int kFewest = std::is_same_v<F, F8E4M3FN> ? 0x7f : std::is_same_v<F, F8E5M2> ? 0x7c : 0;
  NANSCAN_D static Cell bad(Cell cell, Cell magnitude) {
    if constexpr (sizeof(typename E::Bits) > 1) return 0;
    if constexpr (kFewest > 0) return magnitude + (kHalf - Cell{kFewest}) * E::kOnes;
    return cell & ~not_zero(magnitude);
  }
};

// Below this range, squares in the sums' lanes may underflow (see squares_underflow in scan/chunk.h).
NANSCAN_D float least_range(float) { return 1e-14f; }
NANSCAN_D double least_range(double) { return 1e-140; }

NANSCAN_D uint32_t count_bits(uint32_t bits) { return static_cast<uint32_t>(__popc(bits)); }
NANSCAN_D uint32_t count_bits(uint64_t bits) { return static_cast<uint32_t>(__popcll(bits)); }

// True if the vectors were taken into the tally.
template <typename E>
NANSCAN_D bool take_fast(const Vector<E> (&vectors)[kInFlight], Tally<E>& tally) {
  using Real = typename E::Real;
  using Cell = typename E::Cell;
  using Tests = CellTests<E>;
  constexpr Real kFactor = Decode<typename E::Format>::kFactor;
  constexpr uint32_t kValues = kInFlight * E::kPerVector * E::kParts;

  // The mean of four values: sums about the mean of k of n values lose at most a factor n / k against the true mean.
  Real shift = 0;
#pragma unroll
  for (int j = 0; j < kInFlight; ++j) shift += E::raw(vectors[j].cell[0], 0) * (kFactor / kInFlight);

  Real low = E::raw(vectors[0].cell[0], 0);
  Real high = low;
  Real sum[kInFlight] = {}, sum_sq[kInFlight] = {};  // one chain per vector
  Cell odd = 0;        // top bits: subnormal or bad values seen
  Cell nonzero = 0;    // a bit per element, moved down as new ones come in at the top bits
  uint32_t n_nonzero = 0;
#pragma unroll
  for (int j = 0; j < kInFlight; ++j) {
#pragma unroll
    for (int c = 0; c < E::kCells; ++c) {
      const Cell cell = vectors[j].cell[c];
      const Cell magnitude = cell & E::kMag;
      odd |= (Tests::not_zero(magnitude) & ~Tests::not_tiny(magnitude)) | Tests::bad(cell, magnitude);
      if constexpr (E::kParts == 1) {
        nonzero = nonzero >> 1 | (Tests::not_zero(magnitude) & E::kTop);
      } else if (c % 2 == 1) {  // an element is zero only if both parts are
        nonzero = nonzero >> 1 | (Tests::not_zero((cell | vectors[j].cell[c - 1]) & E::kMag) & E::kTop);
      }
#pragma unroll
      for (int i = 0; i < E::kPerCell; ++i) {
        const Real raw = E::raw(cell, i);
        low = low_of(low, raw);
        high = high_of(high, raw);
        const Real d = kFactor == 1 ? raw - shift : fma(raw, kFactor, -shift);
        sum[j] += d;
        sum_sq[j] = fma(d, d, sum_sq[j]);
      }
    }
    constexpr int kPushes = E::kCells / E::kParts;  // per vector
    if ((j + 1) * kPushes % E::kValueBits == 0 || j + 1 == kInFlight) {  // no room for more
      n_nonzero += count_bits(nonzero);
      nonzero = 0;
    }
  }
  low *= kFactor;
  high *= kFactor;
  const GroupSums<Real> group{kValues, shift, (sum[0] + sum[1]) + (sum[2] + sum[3]),
                              (sum_sq[0] + sum_sq[1]) + (sum_sq[2] + sum_sq[3])};
  static_assert(kInFlight == 4, "the sums above");
  const Real range = high - low;
  const bool finite = group.sum - group.sum == 0 && group.sum_sq - group.sum_sq == 0;
  if (!finite || (odd & E::kTop) != 0 || (range != 0 && range < least_range(range))) return false;
  tally.n_zero += kInFlight * E::kPerVector - n_nonzero;
  tally.low = low_of(tally.low, low);
  tally.high = high_of(tally.high, high);
  tally.sums.add(group);
  return true;
}

}  // namespace nanscan::cuda
