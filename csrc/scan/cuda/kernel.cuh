// The kernel of one element type, for one tensor (an argument) or many (a table in device memory). A block scans its
// tile and leaves its statistics in scratch; the block that finishes last folds those of its tensor, in an order that
// the number of blocks fixes, and appends the record.
//
// One kernel for both: compiling it takes a second per architecture and element type, and the proof of one is the proof
// of the other. `Ring` is where records go (buffer/device_ring.cuh); the kernel knows only that it appends.
#pragma once

#include "scan/cuda/table.cuh"
#include "scan/cuda/tile.cuh"

// Every element type: name, format of its parts, how many parts. Tests that need few compile few.
#ifndef NANSCAN_CUDA_ELEMENTS
#define NANSCAN_CUDA_ELEMENTS(X)  \
  X(kF64, F64, 1)                 \
  X(kF32, F32, 1)                 \
  X(kF16, F16, 1)                 \
  X(kBF16, BF16, 1)               \
  X(kF8E4M3FN, F8E4M3FN, 1)       \
  X(kF8E5M2, F8E5M2, 1)           \
  X(kF8E4M3FNUZ, F8E4M3FNUZ, 1)   \
  X(kF8E5M2FNUZ, F8E5M2FNUZ, 1)   \
  X(kC64, F32, 2)                 \
  X(kC128, F64, 2)
#endif

namespace nanscan::cuda {

// What the blocks of one tensor share. The ticket is zero between launches: the last block's atomicInc wraps it.
struct Scratch {
  unsigned* ticket;
  MomentsWords* partials;  // [n_blocks]; of a single block: unused
};

struct Launch {
  Work work;  // of the one tensor, like the three below
  Layout layout;
  Record header;
  Scratch scratch;
  Table table;                  // n = 0: none
  unsigned long long* replays;  // how often the graph that holds this launch has run; null outside graphs
};

// Each warp's part of one tile, in its lane 0. The whole block calls it.
template <typename E>
NANSCAN_D Moments scan_tile(const Work& work, const Layout& layout, uint32_t block) {
  Tally<E> tally;
  take_tile(work, layout, block, tally);
  return statistics_of_warp(tally);
}

// The whole block calls it with its tile's statistics in thread 0. True in thread 0 of the block that comes last, where
// `m` then holds the tensor's.
NANSCAN_D bool fold_blocks(Moments& m, uint32_t block, uint32_t n_blocks, Scratch scratch) {
  if (n_blocks == 1) return threadIdx.x == 0;
  SHARED_ARRAY(unsigned, is_last, 1);
  if (threadIdx.x == 0) {
    put(scratch.partials[block], m);
    __threadfence();  // the partial is visible before the ticket is
    *is_last = atomicInc(scratch.ticket, n_blocks - 1) == n_blocks - 1;
  }
  __syncthreads();
  if (*is_last == 0) return false;
  __threadfence();  // and the others' partials are read after theirs
  // Each thread takes a run of neighbours; then threads fold as at the end of a tile.
  const uint32_t run = (n_blocks + kThreads - 1) / kThreads;
  const uint32_t begin = threadIdx.x * run, end = begin + run < n_blocks ? begin + run : n_blocks;
  m = Moments{};
#pragma unroll 1
  for (uint32_t b = begin; b < end; ++b) combine(m, get(scratch.partials[b]));
  m = fold_warps(fold_warp(m));
  return threadIdx.x == 0;
}

// Into the record: what the tensor's expanded dimensions and lazy bits say about the elements that were read.
NANSCAN_D void fill(const Work& work, Moments m, Record& record) {
  m.n *= work.repeat;
  m.n_nan *= work.repeat;
  m.n_posinf *= work.repeat;
  m.n_neginf *= work.repeat;
  m.n_zero *= work.repeat;
  m.n_subnormal *= work.repeat;
  m.m2 *= static_cast<double>(work.repeat);
  if (work.negate) {
    const Moments was = m;
    m.n_posinf = was.n_neginf;
    m.n_neginf = was.n_posinf;
    m.min = -was.max;
    m.max = -was.min;
    m.mean = -was.mean;
  }
  store(m, static_cast<DType>(work.dtype), record);
}

// Blocks of an SM that registers have to leave room for. Two keep enough loads in flight; three also hide what the
// arithmetic waits for, where it fits without spilling.
template <typename E>
constexpr int kBlocksPerSm = sizeof(typename E::Real) == 8 ? 2 : 3;

template <typename E, typename Ring>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm<E>)
    scan(const __grid_constant__ Launch launch, const Ring ring) {
  const Table& table = launch.table;
  Entry* const entry = table.n == 0 ? nullptr : &table.entries[entry_of(table, blockIdx.x)];
  // By reference: what the main loop does not need is read again behind it, and takes no registers meanwhile.
  const Work& work = entry == nullptr ? launch.work : entry->work;
  const Layout& layout = entry == nullptr ? launch.layout : table.layouts[entry->layout];
  const uint32_t block = entry == nullptr ? blockIdx.x : blockIdx.x - entry->first_block;

  Moments m = fold_warps(scan_tile<E>(work, layout, block));
  const Scratch scratch = entry == nullptr ? launch.scratch : Scratch{&entry->ticket, entry->partials};
  if (!fold_blocks(m, block, work.n_blocks, scratch)) return;

  // One thread of the whole tensor.
  Record record = entry == nullptr ? launch.header : entry->header;
  fill(work, m, record);
  if (launch.replays != nullptr) {
    record.step += load_shared_word(launch.replays);
    record.flags |= kFlagReplay;
  }
  ring.append(record);
  if (entry == nullptr) {
    if (launch.replays != nullptr) atomicAdd(launch.replays, 1ull);
  } else {
    finish_entry(table, launch.replays);
  }
}

}  // namespace nanscan::cuda
