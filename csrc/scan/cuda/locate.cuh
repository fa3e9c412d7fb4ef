// From a position (index in storage order) to the place in memory and to the logical index. Needed for strided tensors
// and where a bad element was found: never in the main loop of a dense one.
#pragma once

#include "scan/cuda/device.cuh"
#include "scan/cuda/work.h"

namespace nanscan::cuda {

struct Place {
  uint64_t offset;      // elements of memory from the tensor's start
  uint64_t logical;     // row-major index
  uint64_t row_left;    // positions from here to the end of the innermost dimension,
  uint64_t row_stride;  // and how far apart they are
};

NANSCAN_D Place locate(const Layout& layout, uint64_t position) {
  if (layout.n_dims == 0) return {position, position, ~uint64_t{0}, 1};
  Place place{0, 0, 0, layout.dims[layout.n_dims - 1].stride};
#pragma unroll 1
  for (int d = layout.n_dims - 1; d >= 0; --d) {
    const Layout::Dim& dim = layout.dims[d];
    uint64_t quotient;
    if ((position | dim.size) >> 32 == 0) {  // a quarter of the instructions
      quotient = static_cast<uint32_t>(position) / static_cast<uint32_t>(dim.size);
    } else {
      quotient = position / dim.size;
    }
    const uint64_t index = position - quotient * dim.size;
    if (place.row_left == 0) place.row_left = dim.size - index;
    place.offset += index * dim.stride;
    place.logical += index * dim.step;
    position = quotient;
  }
  return place;
}

}  // namespace nanscan::cuda
