// How a table of many tensors (scan/cuda/table.cuh) is laid out in memory. Host only.
#pragma once

#include <cstring>

#include "buffer/device_memory.h"
#include "scan/cuda/plan.h"
#include "scan/cuda/table.cuh"

namespace nanscan::cuda {

constexpr uint32_t kMaxEntries = 4096;  // of a table
constexpr Cut kAmongMany{kThreads, kInFlight, kMaxBlocksMany};

// A table being laid out, at the same offsets in pinned and in device memory: what is copied first, partials behind it.
struct TableSize {
  uint64_t n_layouts = 1;  // with the one of contiguous tensors
  uint64_t n_partials = 0;

  static uint64_t aligned(uint64_t bytes) { return (bytes + 15) / 16 * 16; }
  uint64_t layouts_at(uint32_t n) const { return aligned(n * sizeof(Entry)); }
  uint64_t n_done_at(uint32_t n) const { return layouts_at(n) + aligned(n_layouts * sizeof(Layout)); }
  uint64_t partials_at(uint32_t n) const { return n_done_at(n) + 16; }
  uint64_t bytes(uint32_t n) const { return partials_at(n) + n_partials * sizeof(MomentsWords); }

  void add(const Work& work, const Layout& layout) {
    n_layouts += layout.n_dims > 0;
    n_partials += work.n_blocks > 1 ? work.n_blocks : 0;
  }
};

// How many of the tensors, which can all be read, go into one table, and its size.
inline uint32_t measure(const nanscan_tensor* tensors, uint32_t n, size_t max_bytes, TableSize& size) {
  uint32_t fit = 0;
  for (; fit < n && fit < kMaxEntries; ++fit) {
    Work work{};
    Layout layout{};
    plan(tensors[fit], kAmongMany, work, layout);
    TableSize grown = size;
    grown.add(work, layout);
    if (grown.bytes(fit + 1) > max_bytes) break;
    size = grown;
  }
  return fit;
}

// Entries sorted by dtype: where each one's begin, and how many blocks they have.
struct ByDType {
  uint32_t begin[kNumDTypes + 1] = {};
  uint32_t n_blocks[kNumDTypes] = {};
};

// Lays the table out in pinned memory: entries by dtype, in the caller's order within one.
inline ByDType lay_out(const nanscan_tensor* tensors, const Record* headers, uint32_t n, const TableSize& size,
                       char* pinned, char* device) {
  std::memset(pinned, 0, size.partials_at(n));  // tickets and n_done are 0, and so is layout 0 but for its order
  Entry* entries = reinterpret_cast<Entry*>(pinned);
  Layout* layouts = reinterpret_cast<Layout*>(pinned + size.layouts_at(n));
  MomentsWords* partials = reinterpret_cast<MomentsWords*>(device + size.partials_at(n));
  layouts[0].in_order = true;
  uint32_t n_layouts = 1;
  ByDType by;
  for (uint32_t i = 0; i < n; ++i) by.begin[tensors[i].dtype + 1] += 1;
  for (int t = 0; t < kNumDTypes; ++t) by.begin[t + 1] += by.begin[t];
  uint32_t filled[kNumDTypes] = {};
  for (uint32_t i = 0; i < n; ++i) {
    const int t = tensors[i].dtype;
    Entry& entry = entries[by.begin[t] + filled[t]++];
    Layout layout{};
    plan(tensors[i], kAmongMany, entry.work, layout);
    entry.header = headers[i];
    entry.first_block = by.n_blocks[t];
    by.n_blocks[t] += entry.work.n_blocks;
    if (layout.n_dims > 0) {
      entry.layout = n_layouts;
      layouts[n_layouts++] = layout;
    }
    if (entry.work.n_blocks > 1) {
      entry.partials = partials;
      partials += entry.work.n_blocks;
    }
  }
  return by;
}

}  // namespace nanscan::cuda
