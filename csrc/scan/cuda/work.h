// One tensor as the kernels read it. Plain data, filled by plan.h; no CUDA here.
#pragma once

#include <cstdint>

#include "record/record.h"
#include "scan/scan_cuda.h"

namespace nanscan::cuda {

constexpr int kMaxDims = NANSCAN_MAX_DIMS;
constexpr uint32_t kMaxBlocks = 2048;     // of a tensor scanned alone: several waves on any device
constexpr uint32_t kMaxBlocksMany = 256;  // of one among many: enough loads in flight, and 24 KiB of partials

// Positions are the indices of elements in storage order, each expanded element once. With no dimensions here the
// position is both the offset in memory and the logical index: the contiguous tensor, by far the usual one.
struct Layout {
  int32_t n_dims;
  bool in_order;  // logical indices grow with positions
  struct Dim {
    uint64_t size;
    uint64_t stride;  // elements of memory
    uint64_t step;    // elements of the row-major order of the whole tensor
  } dims[kMaxDims];   // [n_dims] largest stride first
};

// How a tensor is cut: `head` elements up to a 16-byte boundary, vectors of 16 bytes, and a tail shorter than one.
// The cut depends on the tensor alone, never on the device or on what else is scanned, and so do a record's bits.
struct Work {
  const char* data;
  uint64_t n;          // positions
  uint64_t n_vectors;
  uint64_t repeat;     // how often each position occurs (expanded dimensions)
  uint32_t tile;       // vectors of one block
  uint32_t n_blocks;
  uint8_t dtype;
  uint8_t head;
  bool gathered;       // vectors are put together element by element
  bool flip_re, flip_im;
  bool negate;         // a real tensor's lazy negative bit
};

}  // namespace nanscan::cuda
