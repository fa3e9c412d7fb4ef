// One block's share of one tensor, up to the tally of each thread.
#pragma once

#include "scan/cuda/careful.cuh"

namespace nanscan::cuda {

// Up to one vector of elements from `position` on, put together by loads of one value each: what a head, a tail and a
// strided tensor need. Values are aligned where whole complex elements may not be.
template <typename E>
NANSCAN_D Vector<E> gather(const Work& work, const Layout& layout, uint64_t position, int present) {
  using Bits = typename E::Bits;
  const Bits* values = reinterpret_cast<const Bits*>(work.data);
  const Place start = locate(layout, position);
  Vector<E> vector{};
  if (start.row_left >= static_cast<uint64_t>(present)) {  // all in one row: loads that wait for nothing
#pragma unroll
    for (int i = 0; i < E::kPerVector * E::kParts; ++i) {
      if (i / E::kParts >= present) continue;
      const uint64_t offset = start.offset + static_cast<uint64_t>(i / E::kParts) * start.row_stride;
      vector.cell[i / E::kPerCell] |= static_cast<typename E::Cell>(values[offset * E::kParts + i % E::kParts])
                                      << (i % E::kPerCell * E::kValueBits);
    }
    return vector;
  }
#pragma unroll 1
  for (int e = 0; e < E::kPerVector; ++e) {
    const bool there = e < present;
    const uint64_t offset = there ? locate(layout, position + static_cast<uint64_t>(e)).offset : 0;
#pragma unroll
    for (int part = 0; part < E::kParts; ++part) vector.push(there ? values[offset * E::kParts + part] : Bits{0});
  }
  return vector;
}

// Adds the block's vectors to the tallies of its threads, and what no vector holds: the head to the first block's, the
// tail to the last one's.
template <typename E>
NANSCAN_D void take_tile(const Work& work, const Layout& layout, uint32_t block, Tally<E>& tally) {
  const uint32_t thread = threadIdx.x;
  const uint64_t begin = static_cast<uint64_t>(block) * work.tile;
  const uint64_t left = work.n_vectors - begin;
  const uint32_t count = left < work.tile ? static_cast<uint32_t>(left) : work.tile;  // vectors of this block
  const uint64_t first = begin * E::kPerVector + work.head;                           // their first position
  const uint64_t tail = work.n_vectors * E::kPerVector + work.head;
  const uint4* vectors = reinterpret_cast<const uint4*>(work.data + first * E::kBytes);
  const Flips flips{work.flip_re, work.flip_im};
  bool has_head = block == 0 && thread == 0 && work.head > 0;
  bool has_tail = block + 1 == work.n_blocks && thread == kThreads - 1 && tail < work.n;

  // One loop with one careful look in it: the code is long, and the optimistic way goes straight through.
  uint32_t v = thread;
  uint32_t careful_until = work.gathered ? ~0u : 0;
#pragma unroll 1
  for (;;) {
    Vector<E> vector;
    uint64_t position;
    int present = E::kPerVector;
    if (v < count) {
      if (v >= careful_until) {
        if (v + (kInFlight - 1) * kThreads < count) {
          Vector<E> batch[kInFlight];
#pragma unroll
          for (int j = 0; j < kInFlight; ++j) batch[j] = Vector<E>::load(vectors + v + j * kThreads);
#pragma unroll
          for (int j = 0; j < kInFlight; ++j) batch[j].flip(flips);
          if (take_fast(batch, tally)) {
            v += kInFlight * kThreads;
            continue;
          }
        }
        careful_until = v + kInFlight * kThreads;
      }
      position = first + static_cast<uint64_t>(v) * E::kPerVector;
      // Loaded again, from the cache, rather than kept: that would cost the usual way registers.
      if (!work.gathered) vector = Vector<E>::load(vectors + v);
      v += kThreads;
    } else if (has_head) {
      has_head = false;
      position = 0;
      present = work.head;
    } else if (has_tail) {
      has_tail = false;
      position = tail;
      present = static_cast<int>(work.n - tail);
    } else {
      break;
    }
    if (work.gathered || present < E::kPerVector) vector = gather<E>(work, layout, position, present);
    vector.flip(flips);
    take_careful(vector, present, position, layout, tally);
  }
}

}  // namespace nanscan::cuda
