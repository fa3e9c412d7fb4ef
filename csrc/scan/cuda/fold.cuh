// From tallies to the statistics of a block, and from blocks to those of a tensor. Always in the same order, so the
// same tensor gives the same bits every time.
#pragma once

#include "scan/cuda/tally.cuh"

namespace nanscan::cuda {

// Statistics as words: what shuffles move, and shared memory (which runs no constructors) holds.
struct MomentsWords {
  unsigned long long word[sizeof(Moments) / 8];
};
static_assert(sizeof(MomentsWords) == sizeof(Moments), "Moments is whole words");

NANSCAN_D Moments unpack(const MomentsWords& words) {
  Moments m;
  memcpy(&m, &words, sizeof(m));
  return m;
}
NANSCAN_D MomentsWords pack(const Moments& m) {
  MomentsWords words;
  memcpy(&words, &m, sizeof(m));
  return words;
}

// To and from shared or global memory, word by word: as a whole, compilers may copy it byte by byte (and GCC's
// ThreadSanitizer, in the tests, not look).
NANSCAN_D void put(MomentsWords& to, const Moments& m) {
  const MomentsWords words = pack(m);
#pragma unroll
  for (size_t i = 0; i < sizeof(Moments) / 8; ++i) to.word[i] = words.word[i];
}
NANSCAN_D Moments get(const MomentsWords& from) {
  MomentsWords words;
#pragma unroll
  for (size_t i = 0; i < sizeof(Moments) / 8; ++i) words.word[i] = from.word[i];
  return unpack(words);
}

// The whole warp calls it. Lane 0 gets the lanes' values combined in a tree; other lanes get garbage.
NANSCAN_D Moments fold_warp(Moments m, int n_lanes = kLanes) {
#pragma unroll 1
  for (int distance = n_lanes / 2; distance > 0; distance /= 2) {
    MomentsWords words = pack(m);
#pragma unroll
    for (auto& word : words.word) word = __shfl_down_sync(kAllLanes, word, static_cast<unsigned>(distance));
    combine(m, unpack(words));
  }
  return m;
}

// The whole block calls it, with the warp's value in lane 0. Thread 0 gets the warps' values combined. Another call may
// follow only behind a barrier.
NANSCAN_D Moments fold_warps(const Moments& m) {
  SHARED_ARRAY(MomentsWords, of_warp, kWarps);
  const int lane = static_cast<int>(threadIdx.x) % kLanes, warp = static_cast<int>(threadIdx.x) / kLanes;
  if (lane == 0) put(of_warp[warp], m);
  __syncthreads();
  Moments all;
  if (warp == 0) {
    if (lane < kWarps) all = get(of_warp[lane]);
    all = fold_warp(all, kWarps);
  }
  return all;
}

NANSCAN_D uint32_t sum_over_warp(uint32_t value) { return __reduce_add_sync(kAllLanes, value); }

// The warp's statistics, in lane 0. The whole warp calls it.
template <typename E>
NANSCAN_D Moments statistics_of_warp(const Tally<E>& tally) {
  Moments m;
  m.min = static_cast<double>(tally.low);
  m.max = static_cast<double>(tally.high);
  m.first_bad = tally.first_bad;
  const bool bad = tally.first_bad != Moments::kNoIndex;
  if constexpr (sizeof(typename E::Real) == 8) {
    m.n_nan = tally.n_nan;
    m.n_posinf = tally.n_posinf;
    m.n_neginf = tally.n_neginf;
    m.n_zero = tally.n_zero;
    m.n_subnormal = tally.n_subnormal;
    m.n_parts = tally.sums.n;
    m.mean = tally.sums.mean;
    m.m2 = tally.sums.m2;
    m.n = m.n_parts / E::kParts + n_bad(m);
    return fold_warp(m);
  } else {
    // Counts by one instruction each, sums about one shift: a sixth of the instructions of combining lane by lane.
    // (n_nan and its like are zero in almost every warp.)
    m.n_parts = sum_over_warp(tally.sums.n);
    m.n_zero = sum_over_warp(tally.n_zero);
    m.n_subnormal = sum_over_warp(tally.n_subnormal);
    if (__any_sync(kAllLanes, bad)) {
      m.n_nan = sum_over_warp(tally.n_nan);
      m.n_posinf = sum_over_warp(tally.n_posinf);
      m.n_neginf = sum_over_warp(tally.n_neginf);
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        const unsigned long long other =
            __shfl_down_sync(kAllLanes, static_cast<unsigned long long>(m.first_bad), static_cast<unsigned>(distance));
        m.first_bad = other < m.first_bad ? other : m.first_bad;
      }
    }
    m.n = m.n_parts / E::kParts + n_bad(m);
    const unsigned with_values = __ballot_sync(kAllLanes, tally.sums.n > 0);
    if (with_values == 0) return m;

    ShiftedSums s = tally.sums.about;
    const double shift = __shfl_sync(kAllLanes, s.shift, __ffs(static_cast<int>(with_values)) - 1);
    const double n = static_cast<double>(tally.sums.n), d = n > 0.0 ? s.shift - shift : 0.0;
    s.sum_sq += d * (2.0 * s.sum + n * d);
    s.sum += n * d;
    s.shift = shift;
    float low = tally.low, high = tally.high;
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      const unsigned by = static_cast<unsigned>(distance);
      s.sum += __shfl_down_sync(kAllLanes, s.sum, by);
      s.sum_sq += __shfl_down_sync(kAllLanes, s.sum_sq, by);
      low = low_of(low, __shfl_down_sync(kAllLanes, low, by));
      high = high_of(high, __shfl_down_sync(kAllLanes, high, by));
    }
    m.min = static_cast<double>(low);
    m.max = static_cast<double>(high);
    moments_of(s, m.n_parts, m.mean, m.m2);  // cannot overflow, see ThreadSums; garbage but in lane 0
    return m;
  }
}

}  // namespace nanscan::cuda
