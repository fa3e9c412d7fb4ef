// The scan in torch's own operators, for devices whose kernels are not here: about 25 launches, and nothing waits.
//
// Each piece of a tensor leaves one row of numbers on its device; the host makes moments of the rows when they are there.
// No operator here reads a value back or has a result whose shape depends on values, so it runs on meta tensors too.
#pragma once

#include <ATen/core/Tensor.h>

#include "record/record.h"
#include "scan/accumulate.h"

namespace nanscan {

constexpr int64_t kRowWords = 16;         // [16] int64, some of them bits of a double: as many bytes as a record has
constexpr int64_t kPieceElements = 1 << 22;  // looked at together: 100 MiB of temporaries (complex128 250), however large the tensor

// Elements start .. start + n, in the order of the tensor's shape.
struct Piece {
  int64_t start;
  int64_t n;
};

// Where the numbers of a piece come from: these operators, or a kernel that writes a whole record into the row.
enum class RowOf : uint8_t { kOperators, kKernel };

c10::ScalarType scalar_type(DType dtype);

// f(part, piece) for the pieces of `t`, in order. A part has at most kPieceElements, or is all of a tensor that is contiguous
// when `whole` allows that; it may have any strides.
template <typename F>
void for_pieces(const at::Tensor& t, bool whole, const F& f, int64_t start = 0) {
  const int64_t n = t.numel();
  const bool contiguous = t.is_contiguous();
  if (n <= kPieceElements || (contiguous && whole)) return f(t, Piece{start, n});
  if (contiguous) {
    const at::Tensor flat = t.view({-1});
    for (int64_t at = 0; at < n; at += kPieceElements) {
      const int64_t length = std::min(kPieceElements, n - at);
      f(flat.narrow(0, at, length), Piece{start + at, length});
    }
    return;
  }
  // Of what is copied to be read, never more than a piece at a time: an expanded tensor has little memory and many elements.
  const int64_t rest = n / t.size(0), step = std::max<int64_t>(1, kPieceElements / rest);
  for (int64_t at = 0; at < t.size(0); at += step) {
    const int64_t rows = std::min(step, t.size(0) - at);
    const at::Tensor part = rows == 1 ? t.select(0, at) : t.narrow(0, at, rows);
    for_pieces(part, whole, f, start + at * rest);
  }
}

// The memory of a part as a kernel may read it: contiguous, without lazy bits, aligned. A copy only where it has to be.
at::Tensor readable(const at::Tensor& part);

// Launches the scan of a readable part. row: [kRowWords] int64 on its device. Below autograd: the caller sees to that.
void reduce(const at::Tensor& part, DType dtype, const at::Tensor& row);

// The moments of a piece, from its row on the host.
Moments moments_of_row(const int64_t* row, RowOf by, DType dtype, Piece piece);

}  // namespace nanscan
