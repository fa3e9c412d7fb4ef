#include "hooks/torch_scan.h"

#include <ATen/Functions.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace nanscan {
namespace {

// A row of reduce(). The first six are sums of masks.
enum Word { kNan, kPosInf, kNegInf, kZero, kSubnormal, kBad, kFirst, kUnused, kMin, kMax, kCentre, kSum, kSquares, kScale };

// Near float64's ends sums and squares overflow on the way to numbers that it can hold.
constexpr double kFar = 1e150;
constexpr double kDown = 0x1p-540;

// A binary format as signed integers of its width see it.
struct Format {
  c10::ScalarType bits;
  int64_t magnitude;   // everything but the sign
  int64_t min_normal;  // smallest magnitude that is not subnormal
  int64_t inf;         // 0: the format has no infinity
  int64_t nan = 0;     // without inf: the one magnitude, or for negative ones the one pattern, that is NaN
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kC128: return {at::kLong, 0x7FFFFFFFFFFFFFFF, int64_t{1} << 52, int64_t{0x7FF} << 52};
    case DType::kF16: return {at::kShort, 0x7FFF, 1 << 10, 0x1F << 10};
    case DType::kBF16: return {at::kShort, 0x7FFF, 1 << 7, 0xFF << 7};
    case DType::kF8E5M2: return {at::kChar, 0x7F, 1 << 2, 0x1F << 2};
    case DType::kF8E4M3FN: return {at::kChar, 0x7F, 1 << 3, 0, 0x7F};
    case DType::kF8E4M3FNUZ: return {at::kChar, 0x7F, 1 << 3, 0, -0x80};
    case DType::kF8E5M2FNUZ: return {at::kChar, 0x7F, 1 << 2, 0, -0x80};
    default: return {at::kInt, 0x7FFFFFFF, int64_t{1} << 23, int64_t{0xFF} << 23};
  }
}

bool is_complex(DType dtype) { return dtype == DType::kC64 || dtype == DType::kC128; }
bool is_wide(DType dtype) { return dtype == DType::kF64 || dtype == DType::kC128; }

// a and not b, of masks, into a.
void remove(at::Tensor a, const at::Tensor& b) { at::gt_out(a, a, b); }

// Masks kNan .. kSubnormal of values (their bits), into masks [5, ...]. From bits, never by comparing values: those would
// follow the processor's mode for subnormals.
void classify(const at::Tensor& bits, const Format& form, const at::Tensor& masks) {
  at::Tensor nan = masks[kNan], posinf = masks[kPosInf], neginf = masks[kNegInf], zero = masks[kZero], subnormal = masks[kSubnormal];
  const at::Tensor magnitude = at::bitwise_and(bits, form.magnitude);
  const bool one_zero = form.nan < 0;  // the pattern of -0 is NaN
  if (form.inf != 0) {
    at::gt_out(nan, magnitude, form.inf);
    at::eq_out(posinf, bits, form.inf);
    at::eq_out(neginf, bits, form.inf + (-form.magnitude - 1));
  } else {
    at::eq_out(nan, one_zero ? bits : magnitude, form.nan);
    masks.narrow(0, kPosInf, 2).zero_();
  }
  at::eq_out(zero, one_zero ? bits : magnitude, 0);
  at::lt_out(subnormal, magnitude, form.min_normal);
  remove(subnormal, zero);
  if (one_zero) remove(subnormal, nan);
}

// Masks of whole elements, from those of their two parts [5, n, 2]: a complex element counts once, by its worse part.
void join_parts(const at::Tensor& parts, const at::Tensor& masks) {
  at::Tensor bad = masks.narrow(0, kNan, 3), zero = masks[kZero], subnormal = masks[kSubnormal];
  at::any_out(bad, parts.narrow(0, kNan, 3), 2);
  remove(masks[kPosInf], masks[kNan]);
  remove(masks[kNegInf], masks[kNan]);
  remove(masks[kNegInf], masks[kPosInf]);
  at::all_out(zero, parts[kZero], 2 - 1);
  at::any_out(subnormal, parts[kSubnormal], 2 - 1);
}

// kMin .. kScale of `values` [n] or [n, 2] double, which are used up. bad: [n] bool; n_bad: [] int64. Two passes and a
// correction: the sum about the mean, which rounding has left, puts the mean right to the last bits.
void moments(at::Tensor values, at::Tensor bad, const at::Tensor& n_bad, bool wide, const at::Tensor& row) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const int64_t parts = values.dim();
  const int64_t n = values.size(0);
  if (parts == 2) bad = bad.unsqueeze(1);
  const auto word = [&](Word w) { return row.select(0, w); };
  const at::Tensor least = word(kMin), most = word(kMax), centre = word(kCentre);
  at::Tensor into = least;
  at::amin_out(into, values.masked_fill_(bad, inf));
  at::amax_out(into = most, values.masked_fill_(bad, -inf));
  values.masked_fill_(bad, 0.0);
  if (wide) {
    const at::Tensor far = at::maximum(most, at::neg(least)).gt(kFar);
    values.mul_(word(kScale).fill_(1.0).masked_fill_(far, kDown));
  }
  at::Tensor count = at::rsub(n_bad, n);
  if (parts == 2) count.mul_(2);
  at::div_out(into = centre, at::sum(values), count);  // 0 / 0 when all are bad, and then nobody reads it
  values.sub_(centre).masked_fill_(bad, 0.0);
  const std::vector<int64_t> all = parts == 2 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{0};
  at::sum_out(into = word(kSum), values, all);
  at::sum_out(into = word(kSquares), values.mul_(values), all);
}

}  // namespace

c10::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kF64: return at::kDouble;
    case DType::kF16: return at::kHalf;
    case DType::kBF16: return at::kBFloat16;
    case DType::kF8E4M3FN: return at::kFloat8_e4m3fn;
    case DType::kF8E5M2: return at::kFloat8_e5m2;
    case DType::kF8E4M3FNUZ: return at::kFloat8_e4m3fnuz;
    case DType::kF8E5M2FNUZ: return at::kFloat8_e5m2fnuz;
    case DType::kC64: return at::kComplexFloat;
    case DType::kC128: return at::kComplexDouble;
    default: return at::kFloat;
  }
}

at::Tensor readable(const at::Tensor& part) {
  at::Tensor t = part.resolve_conj().resolve_neg().contiguous();
  const auto address = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  return address % t.element_size() == 0 ? t : t.clone();
}

void reduce(const at::Tensor& part, DType dtype, const at::Tensor& row) {
  const Format form = format_of(dtype);
  const at::Tensor flat = is_complex(dtype) ? at::view_as_real(part.view({-1})) : part.view({-1});
  const int64_t n = flat.size(0);
  const at::TensorOptions boolean = flat.options().dtype(at::kBool);
  const at::Tensor masks = at::empty({kBad + 1, n}, boolean);
  const at::Tensor bits = flat.view(form.bits);
  if (is_complex(dtype)) {
    const at::Tensor parts = at::empty({kSubnormal + 1, n, 2}, boolean);
    classify(bits, form, parts);
    join_parts(parts, masks);
  } else {
    classify(bits, form, masks);
  }
  at::Tensor bad = masks[kBad], counts = row.narrow(0, 0, kBad + 1), first = row[kFirst];
  at::any_out(bad, masks.narrow(0, kNan, 3), 0);
  if (is_complex(dtype)) remove(masks[kSubnormal], bad);
  at::sum_out(counts, masks, /*dim=*/1, /*keepdim=*/false, at::kLong);
  at::argmax_out(first, bad.view(at::kByte), 0);  // of equals the first
  moments(flat.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true), bad, row[kBad], is_wide(dtype), row.view(at::kDouble));
}

Moments moments_of_row(const int64_t* row, RowOf by, DType dtype, Piece piece) {
  Moments m;
  const int64_t n_values = is_complex(dtype) ? 2 : 1;
  if (by == RowOf::kKernel) {
    Record record;
    static_assert(sizeof(record) == kRowWords * sizeof(int64_t));
    std::memcpy(&record, row, sizeof(record));
    m.n = record.n;
    m.n_nan = record.n_nan;
    m.n_posinf = record.n_posinf;
    m.n_neginf = record.n_neginf;
    m.n_zero = record.n_zero;
    m.n_subnormal = record.n_subnormal;
    m.min = record.min;
    m.max = record.max;
    m.mean = record.mean;
    m.m2 = record.m2;
    m.n_parts = (m.n - n_bad(m)) * n_values;
    if (record.first_bad >= 0) m.first_bad = static_cast<uint64_t>(piece.start + record.first_bad);
    return m;
  }
  const auto number = [row](Word w) {
    double x;
    std::memcpy(&x, row + w, sizeof(x));
    return x;
  };
  m.n = static_cast<uint64_t>(piece.n);
  m.n_nan = static_cast<uint64_t>(row[kNan]);
  m.n_posinf = static_cast<uint64_t>(row[kPosInf]);
  m.n_neginf = static_cast<uint64_t>(row[kNegInf]);
  m.n_zero = static_cast<uint64_t>(row[kZero]);
  m.n_subnormal = static_cast<uint64_t>(row[kSubnormal]);
  m.n_parts = (m.n - n_bad(m)) * n_values;
  if (n_bad(m) > 0) m.first_bad = static_cast<uint64_t>(piece.start + row[kFirst]);
  if (m.n_parts == 0) return m;
  const double count = static_cast<double>(m.n_parts), scale = is_wide(dtype) ? number(kScale) : 1.0;
  const double offset = number(kSum) / count;
  m.min = number(kMin);
  m.max = number(kMax);
  m.mean = (number(kCentre) + offset) / scale;
  m.m2 = std::max(0.0, number(kSquares) - number(kSum) * offset) / scale / scale;
  return m;
}

}  // namespace nanscan
