// How a strided tensor lies in memory, and how to read it from first byte to last. No torch.
#pragma once

#include <cstdint>

#include "record/record.h"

namespace nanscan {

// A dimension of at least two elements that moves through memory.
struct Dim {
  int64_t size;
  int64_t stride;        // elements of memory
  int64_t logical_step;  // elements of the row-major order of the whole tensor
};

// Dimensions of size 1 say nothing and expanded ones (stride 0) only repeat, so a layout holds neither: it describes
// the n elements that differ in place, each occurring `repeat` times in the tensor.
// "Position" below: index of an element in storage order, 0 .. n - 1.
class Layout {
 public:
  // sizes, strides: [n_dims], strides not negative, no size 0. False when there are more dimensions than kMaxDims.
  bool init(const int64_t* sizes, const int64_t* strides, int64_t n_dims);

  int64_t n() const { return n_; }
  int64_t repeat() const { return repeat_; }
  // The elements fill data[0 .. n) without gap or overlap, in some order.
  bool dense() const { return dense_; }
  // Elements of memory from the first to behind the last one.
  int64_t extent() const { return extent_; }

  // Copies positions start .. start + count into buffer, elements of element_bytes (1, 2, 4, 8, 16) each.
  void gather(const char* data, int64_t element_bytes, int64_t start, int64_t count, char* buffer) const;

  // Flat row-major index of the first bad element, given the position of the first bad one in storage order.
  int64_t first_bad(const char* data, DType dtype, int64_t position) const;

 private:
  static constexpr int kMaxDims = 64;  // 62 dimensions of size 2 already hold 2^62 elements

  Dim logical_[kMaxDims];  // [n_dims_] outermost first, as the tensor has them
  Dim memory_[kMaxDims];   // [n_dims_] the same, largest stride first
  int n_dims_ = 0;
  int64_t n_ = 1;
  int64_t repeat_ = 1;
  int64_t extent_ = 1;
  bool dense_ = true;
  bool in_order_ = true;  // both orders are the same
};

}  // namespace nanscan
