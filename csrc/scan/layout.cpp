#include "scan/layout.h"

#include <cstring>

#include "scan/scan_cpu.h"

namespace nanscan {
namespace {

template <int kBytes>
void copy_strided(const char* from, int64_t stride_bytes, int64_t count, char* to) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * kBytes, from + i * stride_bytes, kBytes);
}

void copy_row(const char* from, int64_t stride, int64_t count, int64_t element_bytes, char* to) {
  const int64_t stride_bytes = stride * element_bytes;
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(count * element_bytes));
    return;
  }
  switch (element_bytes) {
    case 1: return copy_strided<1>(from, stride_bytes, count, to);
    case 2: return copy_strided<2>(from, stride_bytes, count, to);
    case 4: return copy_strided<4>(from, stride_bytes, count, to);
    case 8: return copy_strided<8>(from, stride_bytes, count, to);
    default: return copy_strided<16>(from, stride_bytes, count, to);
  }
}

}  // namespace

bool Layout::init(const int64_t* sizes, const int64_t* strides, int64_t n_dims) {
  int64_t step = 1;
  int at = kMaxDims;  // filled from the back, innermost first
  for (int64_t d = n_dims - 1; d >= 0; --d) {
    if (sizes[d] != 1 && strides[d] == 0) {
      repeat_ *= sizes[d];
    } else if (sizes[d] != 1) {
      if (at == 0) return false;
      logical_[--at] = Dim{sizes[d], strides[d], step};
      n_ *= sizes[d];
      extent_ += (sizes[d] - 1) * strides[d];
    }
    step *= sizes[d];
  }
  n_dims_ = kMaxDims - at;
  std::memmove(logical_, logical_ + at, static_cast<size_t>(n_dims_) * sizeof(Dim));

  for (int d = 0; d < n_dims_; ++d) {  // insertion sort: stable, and the usual tensor is nearly sorted
    int place = d;
    for (; place > 0 && memory_[place - 1].stride < logical_[d].stride; --place) memory_[place] = memory_[place - 1];
    if (place != d) in_order_ = false;
    memory_[place] = logical_[d];
  }
  int64_t expected = 1;
  for (int d = n_dims_ - 1; d >= 0; --d) {
    dense_ = dense_ && memory_[d].stride == expected;
    expected *= memory_[d].size;
  }
  return true;
}

void Layout::gather(const char* data, int64_t element_bytes, int64_t start, int64_t count, char* buffer) const {
  if (n_dims_ == 0) {
    if (count > 0) std::memcpy(buffer, data, static_cast<size_t>(element_bytes));
    return;
  }
  int64_t index[kMaxDims];  // [n_dims_]
  int64_t offset = 0;
  for (int d = n_dims_ - 1; d >= 0; --d) {
    index[d] = start % memory_[d].size;
    start /= memory_[d].size;
    offset += index[d] * memory_[d].stride;
  }
  const Dim& row = memory_[n_dims_ - 1];
  int64_t& in_row = index[n_dims_ - 1];
  while (count > 0) {
    const int64_t length = row.size - in_row < count ? row.size - in_row : count;
    copy_row(data + offset * element_bytes, row.stride, length, element_bytes, buffer);
    buffer += length * element_bytes;
    count -= length;
    in_row += length;
    offset += length * row.stride;
    for (int d = n_dims_ - 1; d >= 0 && index[d] == memory_[d].size; --d) {  // carry
      offset -= memory_[d].size * memory_[d].stride;
      index[d] = 0;
      if (d > 0) {
        index[d - 1] += 1;
        offset += memory_[d - 1].stride;
      }
    }
  }
}

int64_t Layout::first_bad(const char* data, DType dtype, int64_t position) const {
  int64_t logical = 0;
  if (in_order_) {
    for (int d = n_dims_ - 1; d >= 0; --d) {
      logical += position % memory_[d].size * memory_[d].logical_step;
      position /= memory_[d].size;
    }
    return logical;
  }
  // Another order in memory: walk the tensor's own one. Only ever done for a tensor that has a bad element.
  int64_t index[kMaxDims] = {};
  int64_t offset = 0;
  for (int64_t i = 0; i < n_; ++i) {
    if (is_bad_at(data, offset, dtype)) return logical;
    for (int d = n_dims_ - 1; d >= 0; --d) {
      const Dim& dim = logical_[d];
      offset += dim.stride;
      logical += dim.logical_step;
      if (++index[d] < dim.size) break;
      offset -= dim.size * dim.stride;
      logical -= dim.size * dim.logical_step;
      index[d] = 0;
    }
  }
  return -1;
}

}  // namespace nanscan
