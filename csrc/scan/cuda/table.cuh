// Many tensors at once: a table in device memory, laid out and copied by the host for this call alone.
#pragma once

#include "scan/cuda/fold.cuh"
#include "scan/cuda/work.h"

namespace nanscan::cuda {

struct Entry {
  Work work;
  Record header;
  MomentsWords* partials;  // [work.n_blocks]
  uint32_t first_block;    // of the grid; entries of one element type are in its order
  uint32_t layout;         // in the table's layouts
  unsigned ticket;         // 0: comes with the copy, with every replay's too
};

// The entries of one element type, and what they share with the others'.
struct Table {
  Entry* entries;         // [n]
  const Layout* layouts;  // the first one is that of contiguous tensors
  unsigned* n_done;       // entries of all types that have their record; 0 at first
  uint64_t* released;     // mapped: set to `number` when the device needs nothing of the table any more
  uint64_t number;
  uint32_t n;
  uint32_t n_all;  // entries of all types
};

// The entry that owns a block of the grid. The whole warp calls it: each round, its lanes look at one entry each.
NANSCAN_D uint32_t entry_of(const Table& table, uint32_t block) {
  const uint32_t lane = threadIdx.x % kLanes;
  uint32_t low = 0, count = table.n;  // it is one of entries[low .. low + count)
#pragma unroll 1
  while (count > 1) {
    const uint32_t step = (count + kLanes) / (kLanes + 1), offset = (lane + 1) * step;
    const bool at_or_above = offset < count && table.entries[low + offset].first_block <= block;
    const uint32_t skipped = static_cast<uint32_t>(__popc(__ballot_sync(kAllLanes, at_or_above))) * step;
    low += skipped;
    count = step < count - skipped ? step : count - skipped;
  }
  return low;
}

// One thread per entry calls it, behind its last look at the table and the replay counter.
NANSCAN_D void finish_entry(const Table& table, unsigned long long* replays) {
  __threadfence();  // others' looks come before the last one's changes
  if (atomicAdd(table.n_done, 1u) + 1 != table.n_all) return;
  if (replays != nullptr) atomicAdd(replays, 1ull);
  store_mapped(table.released, table.number);
}

}  // namespace nanscan::cuda
