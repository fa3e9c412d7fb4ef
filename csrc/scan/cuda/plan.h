// From a tensor's sizes and strides to the work of a kernel. Host only, no CUDA.
#pragma once

#include "scan/cuda/work.h"

namespace nanscan::cuda {

struct ElementSize {
  uint32_t bytes;  // of an element; 0 for an unknown dtype
  uint32_t parts;  // 2 for complex
};

inline ElementSize element_size(int32_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kF8E4M3FN:
    case DType::kF8E5M2:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ: return {1, 1};
    case DType::kF16:
    case DType::kBF16: return {2, 1};
    case DType::kF32: return {4, 1};
    case DType::kF64: return {8, 1};
    case DType::kC64: return {8, 2};
    case DType::kC128: return {16, 2};
    default: return {0, 0};
  }
}

// Fills the layout, work.n and work.repeat. False: too many dimensions, a negative size or stride, or sizes that do not
// make numel. An empty tensor gets the layout of a contiguous one.
inline bool plan_layout(const nanscan_tensor& tensor, Work& work, Layout& layout) {
  layout.n_dims = 0;
  layout.in_order = true;
  work.n = work.repeat = 1;
  if (tensor.n_dims < 0 || tensor.n_dims > kMaxDims || tensor.numel < 0) return false;
  uint64_t step = 1;
  for (int d = tensor.n_dims - 1; d >= 0; --d) {  // innermost first: so are layout.dims until the end
    if (tensor.sizes[d] < 0 || tensor.strides[d] < 0) return false;
    const uint64_t size = static_cast<uint64_t>(tensor.sizes[d]), stride = static_cast<uint64_t>(tensor.strides[d]);
    if (size != 1 && stride == 0) {
      work.repeat *= size;
    } else if (size != 1) {
      work.n *= size;
      Layout::Dim* inner = layout.n_dims > 0 ? &layout.dims[layout.n_dims - 1] : nullptr;
      if (inner != nullptr && stride == inner->size * inner->stride && step == inner->size * inner->step) {
        inner->size *= size;  // one dimension, seen as two
      } else {
        layout.dims[layout.n_dims++] = {size, stride, step};
      }
    }
    step *= size;
  }
  if (step != static_cast<uint64_t>(tensor.numel)) return false;
  if (step == 0) {
    work.n = 0;
    work.repeat = 1;
    layout.n_dims = 0;
    return true;
  }
  // Largest stride first. Insertion keeps the tensor's own order among equals.
  Layout::Dim sorted[kMaxDims];
  for (int d = 0; d < layout.n_dims; ++d) {
    const Layout::Dim& dim = layout.dims[layout.n_dims - 1 - d];
    int place = d;
    for (; place > 0 && sorted[place - 1].stride < dim.stride; --place) sorted[place] = sorted[place - 1];
    if (place != d) layout.in_order = false;
    sorted[place] = dim;
  }
  for (int d = 0; d < layout.n_dims; ++d) layout.dims[d] = sorted[d];
  return true;
}

inline bool is_dense(const Layout& layout) {
  uint64_t expected = 1;
  for (int d = layout.n_dims - 1; d >= 0; --d) {
    if (layout.dims[d].stride != expected) return false;
    expected *= layout.dims[d].size;
  }
  return true;
}

inline bool is_contiguous(const Layout& layout) {
  return layout.n_dims == 0 ||
         (layout.n_dims == 1 && layout.dims[0].stride == 1 && layout.dims[0].step == 1);
}

// How a launch wants its tensors cut.
struct Cut {
  uint32_t threads;    // of a block
  uint32_t in_flight;  // vectors that a thread of a dense tensor takes at once
  uint32_t max_blocks;
};

inline void plan_blocks(Cut cut, Work& work) {
  // Two rounds at least, so that the fold at a block's end is worth it; gathered vectors cost more than their bytes.
  const uint64_t round = uint64_t{cut.threads} * cut.in_flight;
  const uint64_t least = work.gathered ? cut.threads : 2 * round;
  uint64_t blocks = (work.n_vectors + least - 1) / least;
  blocks = blocks < 1 ? 1 : blocks > cut.max_blocks ? cut.max_blocks : blocks;
  const uint64_t unit = work.gathered ? cut.threads : round;
  const uint64_t tile = ((work.n_vectors + blocks - 1) / blocks + unit - 1) / unit * unit;
  work.tile = static_cast<uint32_t>(tile);  // 256 blocks of 2^32 vectors are 16 TiB
  work.n_blocks = static_cast<uint32_t>(work.n_vectors == 0 ? 1 : (work.n_vectors + tile - 1) / tile);
}

// False if the tensor cannot be read: an unknown dtype, a layout that plan_layout refuses, no data, or data that is not
// aligned to the parts of its elements.
inline bool plan(const nanscan_tensor& tensor, Cut cut, Work& work, Layout& layout) {
  const ElementSize element = element_size(tensor.dtype);
  if (element.bytes == 0 || !plan_layout(tensor, work, layout)) return false;
  const uintptr_t address = reinterpret_cast<uintptr_t>(tensor.data);
  if (work.n > 0 && (address == 0 || address % (element.bytes / element.parts) != 0)) return false;

  const bool complex = element.parts == 2, neg = (tensor.flags & NANSCAN_TENSOR_NEG) != 0;
  work.data = static_cast<const char*>(tensor.data);
  work.dtype = static_cast<uint8_t>(tensor.dtype);
  work.flip_re = complex && neg;
  work.flip_im = complex && neg != ((tensor.flags & NANSCAN_TENSOR_CONJ) != 0);
  work.negate = neg && !complex;

  // A complex tensor may start between two of its elements' multiples: then no 16-byte vector holds whole elements.
  work.gathered = !is_dense(layout) || address % element.bytes != 0;
  if (is_contiguous(layout)) layout.n_dims = 0;
  const uint64_t per_vector = 16 / element.bytes;
  const uint64_t to_boundary = work.gathered ? 0 : (16 - address % 16) % 16 / element.bytes;
  work.head = static_cast<uint8_t>(to_boundary < work.n ? to_boundary : work.n);
  work.n_vectors = (work.n - work.head) / per_vector;
  plan_blocks(cut, work);
  return true;
}

}  // namespace nanscan::cuda
