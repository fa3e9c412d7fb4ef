#include "hooks/details.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/isnan.h>

#include <algorithm>
#include <optional>

namespace nanscan {
namespace {

using Place = std::vector<int64_t>;

constexpr size_t kMaxNumbers = 8;  // of one list: dim=[...], not a table

Place place_of(int64_t flat, at::IntArrayRef sizes) {
  Place place(sizes.size());
  for (size_t d = sizes.size(); d-- > 0;) {
    place[d] = flat % sizes[d];
    flat /= sizes[d];
  }
  return place;
}

// A view of `t` with the given coordinates; kWhole takes all of a dimension.
constexpr int64_t kWhole = -1;

at::Tensor view_at(const at::Tensor& t, const Place& place) {
  std::vector<int64_t> sizes, strides;
  int64_t offset = t.storage_offset();
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (place[d] == kWhole) {
      sizes.push_back(t.size(d));
      strides.push_back(t.stride(d));
    } else {
      if (place[d] >= t.size(d)) return {};
      offset += place[d] * t.stride(d);
    }
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return t.as_strided(sizes, strides, offset);
}

// Broadcasting: dimensions are matched from the right, and those of size 1 stand for all.
std::optional<Place> element_place(const at::Tensor& t, at::IntArrayRef sizes, const Place& place) {
  const auto extra = static_cast<int64_t>(sizes.size()) - t.dim();
  if (extra < 0) return std::nullopt;
  Place own(t.dim());
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) != 1 && t.size(d) != sizes[d + extra]) return std::nullopt;
    own[d] = t.size(d) == 1 ? 0 : place[d + extra];
  }
  return own;
}

// A reduction over `dims`, or an op that works along them and keeps the shape.
std::optional<Place> row_place(const at::Tensor& t, const std::vector<int64_t>& dims, at::IntArrayRef sizes, const Place& place) {
  const int64_t n = t.dim(), n_out = static_cast<int64_t>(sizes.size());
  std::vector<bool> whole(n, dims.empty());
  for (int64_t d : dims) {
    if (d < -n || d >= n) return std::nullopt;
    whole[d < 0 ? d + n : d] = true;
  }
  const auto n_whole = std::count(whole.begin(), whole.end(), true);
  if (n_out != n && n_out != n - n_whole) return std::nullopt;
  Place own(n);
  for (int64_t d = 0, at = 0; d < n; ++d) {
    if (!whole[d]) {
      if (sizes[at] != t.size(d)) return std::nullopt;
      own[d] = place[at];
    } else {
      own[d] = kWhole;
    }
    if (!whole[d] || n_out == n) ++at;
  }
  return own;
}

// Rows of the first and columns of the second factor of a matrix product.
std::optional<Place> factor_place(const at::Tensor& t, bool left, const Place& place) {
  const int64_t n = t.dim();
  if (n == 0 || place.empty()) return std::nullopt;
  Place own(n, kWhole);
  if (n == 1) return own;
  const size_t last = place.size() - 1;
  own[left ? n - 2 : n - 1] = left ? place[place.size() >= 2 ? last - 1 : last] : place[last];
  if (n == 3 && place.size() == 3) own[0] = place[0];
  return own;
}

std::vector<int64_t> dims_of(const RunningCall& call) {
  std::vector<int64_t> dims;
  for (const Scalar& s : call.scalars) {
    if (s.argument == call.info->dim_argument) dims.push_back(static_cast<int64_t>(s.value));
  }
  return dims;
}

// Of a list, `t` is the tensor of the result's place: the caller sees to that.
std::optional<Place> place_in(const RunningCall& call, const at::Tensor& t, uint32_t argument, const CallOutput& out,
                              const Place& place) {
  const OpInfo& info = *call.info;
  const at::IntArrayRef sizes = out.tensor.sizes();
  switch (info.relation) {
    case Relation::kElement:
      return element_place(t, sizes, place);
    case Relation::kAlong:
      if (argument != 0) return std::nullopt;
      return row_place(t, dims_of(call), sizes, place);
    case Relation::kProduct: {
      const uint32_t first = info.product_argument;
      if (argument < first) return element_place(t, sizes, place);
      return argument <= first + 1 ? factor_place(t, argument == first, place) : std::nullopt;
    }
    case Relation::kItem:
      return Place(t.dim(), kWhole);
    case Relation::kNone: break;
  }
  return std::nullopt;
}

constexpr int64_t kMostCounts = 1 << 20;  // more are not converted to numbers

at::Tensor as_numbers(const at::Tensor& t) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return t.to(at::kDouble);
}

Record detail(uint32_t slot, uint32_t name, uint16_t flags) {
  Record rec{};
  rec.site = name;
  rec.flags = static_cast<uint16_t>(flags | kFlagDetail | kFlagOp);
  rec.output_index = static_cast<uint16_t>(slot);
  rec.device = -1;
  return rec;
}

void add_statistics(const at::Tensor& t, uint32_t slot, uint32_t name, uint16_t flags, uint32_t shape, std::vector<Record>& details) {
  Record rec{};
  if (!scanned(scan_tensor(t, rec))) return;
  rec.site = name;
  rec.flags |= static_cast<uint16_t>(flags | kFlagDetail | kFlagOp);
  rec.output_index = static_cast<uint16_t>(slot);
  rec.device = -1;
  rec.shape = shape;
  details.push_back(rec);
}

}  // namespace

int64_t first_bad(const CallOutput& out) {
  const Record& rec = out.record;
  if (rec.n_nan == 0 || rec.n_posinf + rec.n_neginf == 0) return rec.first_bad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::isnan(out.tensor).flatten().to(at::kByte).argmax().item<int64_t>();
}

void take_scalars(const c10::IValue& v, uint32_t argument, std::vector<Scalar>& scalars) {
  const auto keep = [&](double value, bool listed) { scalars.push_back({static_cast<uint16_t>(argument), listed, value}); };
  if (v.isDouble()) keep(v.toDouble(), false);
  else if (v.isInt()) keep(static_cast<double>(v.toInt()), false);
  else if (v.isBool()) keep(v.toBool() ? 1.0 : 0.0, false);
  else if (v.isIntList()) {
    const auto list = v.toIntList();
    for (size_t i = 0; i < std::min(list.size(), kMaxNumbers); ++i) keep(static_cast<double>(list.get(i)), true);
  }
}

void describe_arguments(Session& session, const RunningCall& call, const CallOutput& out, std::vector<Record>& details) {
  if (call.info == nullptr) return;
  const auto name = [&](uint32_t argument) {
    const auto& names = call.info->arguments;
    return argument < names.size() ? names[argument] : name_id("");
  };
  for (const Scalar& s : call.scalars) {
    Record rec = detail(kDetailNumber, name(s.argument), kFlagLink);
    rec.n = kLinkArgument;
    rec.n_nan = s.listed;
    rec.min = s.value;
    details.push_back(rec);
  }
  const bool placed = out.record.first_bad >= 0 && out.tensor.numel() > 0;
  const Place place = placed ? place_of(first_bad(out), out.tensor.sizes()) : Place();
  const auto introduce = [&](const at::Tensor& t, uint32_t slot, uint32_t argument) {
    Record rec = detail(slot, name(argument), kFlagLink);
    rec.n = kLinkArgument;
    rec.shape = session.shapes.id_of(t.sizes());
    details.push_back(rec);
  };
  const auto part_of = [&](const at::Tensor& t, uint32_t argument) {
    const auto own = placed ? place_in(call, t, argument, out, place) : std::nullopt;
    return own ? view_at(t, *own) : at::Tensor();
  };
  // Of lists (foreach, fused), the tensors of the bad result's place only.
  const auto elsewhere = [&](bool listed, uint16_t item) { return listed && item != out.item; };
  for (size_t i = 0; i < call.inputs.size() && i < kDetailCounts; ++i) {
    const CallInput& in = call.inputs[i];
    if (elsewhere(in.listed, in.item)) continue;
    const auto slot = static_cast<uint32_t>(i);
    introduce(in.tensor, slot, in.argument);
    if (in.written) continue;  // what it was given is gone
    const at::Tensor part = part_of(in.tensor, in.argument);
    if (part.defined()) add_statistics(part, slot, name(in.argument), kFlagInput, 0, details);
  }
  for (size_t i = 0; i < call.counts.size() && i < kMaxCallInputs; ++i) {
    const Counts& in = call.counts[i];
    if (elsewhere(in.listed, in.item)) continue;
    const auto slot = static_cast<uint32_t>(kDetailCounts + i);
    introduce(in.tensor, slot, in.argument);
    if (in.tensor.numel() > kMostCounts) continue;
    add_statistics(as_numbers(in.tensor), slot, name(in.argument), kFlagParam, session.shapes.id_of(in.tensor.sizes()), details);
    const at::Tensor part = part_of(in.tensor, in.argument);
    if (part.defined()) add_statistics(as_numbers(part), slot, name(in.argument), kFlagInput, 0, details);
  }
}

void describe_tensor(Session& session, uint32_t name, const at::Tensor& t, const CallOutput& out, std::vector<Record>& details) {
  add_statistics(t, kDetailSaved, name, kFlagParam, session.shapes.id_of(t.sizes()), details);
  if (out.record.first_bad < 0 || out.tensor.numel() == 0 || t.numel() == 0) return;
  const auto own = element_place(t, out.tensor.sizes(), place_of(first_bad(out), out.tensor.sizes()));
  const at::Tensor element = own ? view_at(t, *own) : at::Tensor();
  if (element.defined()) add_statistics(element, kDetailSaved, name, kFlagInput, 0, details);
}

void describe_numbers(uint32_t name, const std::vector<double>& numbers, std::vector<Record>& details) {
  for (double number : numbers) {
    Record rec = detail(kDetailSaved, name, kFlagLink);
    rec.n = kLinkArgument;
    rec.n_nan = numbers.size() > 1;
    rec.min = number;
    details.push_back(rec);
  }
}

void describe_inner(uint32_t op, const CallOutput& out, std::vector<Record>& details) {
  Record rec = detail(kDetailInner, op, kFlagLink);
  rec.n = kLinkInnerOp;
  details.push_back(rec);
  add_statistics(out.tensor, kDetailInner, op, kFlagParam, 0, details);
}

void describe_behind(const RunningCall& call, std::vector<Record>& details) {
  if (call.behind == 0) return;
  Record rec = detail(kDetailBehind, call.behind - 1, kFlagLink);
  rec.n = kLinkInnerOp;
  details.push_back(rec);
}

void describe_past(const Session& session, const RunningCall& call, std::vector<Record>& details) {
  std::array<OpHistory::Past, OpHistory::kSteps> past;
  const uint64_t step = session.step.load(std::memory_order_relaxed);
  const size_t n = session.history.before({call.site, call.op, call.line}, step, past);
  for (size_t i = 0; i < n; ++i) {
    Record rec = detail(kDetailNumber, call.op, kFlagLink);
    rec.n = kLinkPast;
    rec.n_nan = past[i].step;
    rec.min = past[i].absmax;
    details.push_back(rec);
  }
}

}  // namespace nanscan
