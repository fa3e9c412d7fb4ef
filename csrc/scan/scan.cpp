#include "scan/scan.h"

#include <ATen/Parallel.h>
#include <c10/core/DispatchKeySet.h>

#include "scan/layout.h"
#include "scan/scan_cpu.h"

namespace nanscan {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::ScalarType;

// Sign bits to turn while reading: the parts of a conjugated or negated complex view.
struct Flips {
  bool re = false;
  bool im = false;
  bool any() const { return re || im; }
};

template <typename Bits>
void flip(char* buffer, int64_t n, Flips flips) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  for (int64_t part = 0; part < 2 * n; ++part) {
    if (!(part % 2 == 0 ? flips.re : flips.im)) continue;
    Bits bits;
    memcpy(&bits, buffer + part * static_cast<int64_t>(sizeof(Bits)), sizeof(bits));
    bits ^= kSign;
    memcpy(buffer + part * static_cast<int64_t>(sizeof(Bits)), &bits, sizeof(bits));
  }
}

// Positions start .. start + count, through a buffer: element by element out of any strides.
void scan_gathered(const char* data, const Layout& layout, DType dtype, Flips flips, int64_t start, int64_t count,
                   Moments& out) {
  constexpr int64_t kPiece = 2048;
  alignas(64) char buffer[kPiece * 16];
  const ScanFn scan = scan_fn(dtype);
  for (int64_t at = start; at < start + count; at += kPiece) {
    const int64_t length = start + count - at < kPiece ? start + count - at : kPiece;
    layout.gather(data, size_bytes(dtype), at, length, buffer);
    if (flips.any() && dtype == DType::kC64) flip<uint32_t>(buffer, length, flips);
    if (flips.any() && dtype == DType::kC128) flip<uint64_t>(buffer, length, flips);
    scan(buffer, length, static_cast<uint64_t>(at), out);
  }
}

// scan_part(start, count, Moments&) over the spans of 0 .. n, on torch's threads when there are several.
template <typename ScanPart>
Moments over_spans(int64_t n, const ScanPart& scan_part) {
  Moments whole;
  const Spans spans = spans_of(n);
  if (spans.count == 1) {
    scan_part(0, n, whole);
    return whole;
  }
  Moments parts[kMaxSpans];
  at::parallel_for(0, spans.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = i * spans.length;
      scan_part(start, n - start < spans.length ? n - start : spans.length, parts[i]);
    }
  });
  for (int64_t i = 0; i < spans.count; ++i) combine(whole, parts[i]);
  return whole;
}

Moments scan_contiguous(const char* data, int64_t n, DType dtype) {
  const ScanFn scan = scan_fn(dtype);
  const int64_t bytes = size_bytes(dtype);
  return over_spans(n, [=](int64_t start, int64_t count, Moments& out) {
    scan(data + start * bytes, count, static_cast<uint64_t>(start), out);
  });
}

Moments scan_strided(const char* data, const Layout& layout, DType dtype, Flips flips) {
  Moments m = layout.dense() && !flips.any()
                  ? scan_contiguous(data, layout.n(), dtype)
                  : over_spans(layout.n(), [&](int64_t start, int64_t count, Moments& out) {
                      scan_gathered(data, layout, dtype, flips, start, count, out);
                    });
  if (m.first_bad != Moments::kNoIndex) {
    m.first_bad = static_cast<uint64_t>(layout.first_bad(data, dtype, static_cast<int64_t>(m.first_bad)));
  }
  const uint64_t repeat = static_cast<uint64_t>(layout.repeat());
  for (uint64_t* counter : {&m.n, &m.n_nan, &m.n_posinf, &m.n_neginf, &m.n_zero, &m.n_subnormal, &m.n_parts}) {
    *counter *= repeat;
  }
  m.m2 *= static_cast<double>(repeat);
  return m;
}

void negate(Moments& m) {
  const Moments was = m;
  m.n_posinf = was.n_neginf;
  m.n_neginf = was.n_posinf;
  m.min = -was.max;
  m.max = -was.min;
  m.mean = -was.mean;
}

DType dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Double: return DType::kF64;
    case ScalarType::Float: return DType::kF32;
    case ScalarType::Half: return DType::kF16;
    case ScalarType::BFloat16: return DType::kBF16;
    case ScalarType::Float8_e4m3fn: return DType::kF8E4M3FN;
    case ScalarType::Float8_e5m2: return DType::kF8E5M2;
    case ScalarType::Float8_e4m3fnuz: return DType::kF8E4M3FNUZ;
    case ScalarType::Float8_e5m2fnuz: return DType::kF8E5M2FNUZ;
    case ScalarType::ComplexFloat: return DType::kC64;
    case ScalarType::ComplexDouble: return DType::kC128;
    default: return DType::kUnknown;
  }
}

// Wrappers without storage of their own. Python: __torch_dispatch__ subclasses, whose data is what they say it is.
constexpr DispatchKeySet kWrapped({DispatchKey::Python, DispatchKey::FuncTorchBatched,
                                   DispatchKey::FuncTorchGradWrapper, DispatchKey::Batched, DispatchKey::Functionalize,
                                   DispatchKey::ZeroTensor, DispatchKey::NestedTensor});

ScanStatus status_of_wrapped(DispatchKeySet keys) {
  if (keys.has(DispatchKey::Python)) return ScanStatus::kPythonKey;
  if (keys.has(DispatchKey::NestedTensor)) return ScanStatus::kNested;
  if (keys.has(DispatchKey::ZeroTensor)) return ScanStatus::kNoStorage;
  return ScanStatus::kFunctorch;
}

ScanStatus status_of_unknown(ScalarType type) {
  if (c10::isQIntType(type)) return ScanStatus::kQuantized;
  return c10::isIntegralType(type, /*includeBool=*/true) || c10::isBitsType(type) || c10::isBarebonesUnsignedType(type)
             ? ScanStatus::kNotFloating
             : ScanStatus::kDType;
}

// Everything but where it lies: kOk if it has elements that a kernel knows how to read.
ScanStatus check(const at::Tensor& tensor, DType& dtype) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined()) return ScanStatus::kUndefined;
  dtype = dtype_of(impl->dtype().toScalarType());
  if (dtype == DType::kUnknown) return status_of_unknown(impl->dtype().toScalarType());
  const DispatchKeySet keys = impl->key_set();
  if (keys.has_any(kWrapped)) return status_of_wrapped(keys);
  if (impl->device().is_meta()) return ScanStatus::kMeta;
  if (impl->layout() != c10::Layout::Strided) return ScanStatus::kSparse;
  if (impl->numel() == 0) return ScanStatus::kEmpty;
  return impl->has_storage() ? ScanStatus::kOk : ScanStatus::kNoStorage;
}

ScanStatus scan_checked(const at::Tensor& tensor, Record& out) {
  DType dtype;
  const ScanStatus status = check(tensor, dtype);
  if (status == ScanStatus::kEmpty) store(Moments{}, dtype, out);
  if (status != ScanStatus::kOk) return status;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->device().is_cpu()) return ScanStatus::kDevice;
  const DispatchKeySet keys = impl->key_set();
  const int64_t n = impl->numel();
  const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const int64_t element_bytes = size_bytes(dtype);
  // A storage may have been emptied under its tensor (resize_(0), as FSDP does): check before reading.
  const int64_t readable = static_cast<int64_t>(storage->nbytes()) / element_bytes - impl->storage_offset();
  const char* data = static_cast<const char*>(storage->data_ptr().get());  // const: does not materialise a lazy copy
  if (data == nullptr) return ScanStatus::kNoStorage;
  data += impl->storage_offset() * element_bytes;

  const bool complex = dtype == DType::kC64 || dtype == DType::kC128;
  const bool neg = keys.has(DispatchKey::Negative);
  const Flips flips{complex && neg, complex && neg != keys.has(DispatchKey::Conjugate)};
  Moments m;
  if (impl->is_contiguous() && !flips.any()) {
    if (readable < n) return ScanStatus::kNoStorage;
    m = scan_contiguous(data, n, dtype);
  } else {
    Layout layout;
    if (!layout.init(impl->sizes().data(), impl->strides().data(), impl->dim())) return ScanStatus::kNoStorage;
    if (readable < layout.extent()) return ScanStatus::kNoStorage;
    m = scan_strided(data, layout, dtype, flips);
  }
  if (neg && !complex) negate(m);
  store(m, dtype, out);
  return ScanStatus::kOk;
}

ScanStatus describe_checked(const at::Tensor& tensor, nanscan_tensor& out) {
  DType dtype;
  const ScanStatus status = check(tensor, dtype);
  if (scanned(status)) out.dtype = static_cast<int32_t>(dtype);
  if (status != ScanStatus::kOk) return status;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const int64_t element_bytes = size_bytes(dtype);
  const char* data = static_cast<const char*>(storage->data_ptr().get());
  if (data == nullptr || impl->dim() > NANSCAN_MAX_DIMS) return ScanStatus::kNoStorage;
  int64_t last = impl->storage_offset();  // element
  for (int64_t i = 0; i < impl->dim(); ++i) {
    out.sizes[i] = impl->size(i);
    out.strides[i] = impl->stride(i);
    last += (out.sizes[i] - 1) * out.strides[i];
  }
  if ((last + 1) * element_bytes > static_cast<int64_t>(storage->nbytes())) return ScanStatus::kNoStorage;
  const DispatchKeySet keys = impl->key_set();
  out.data = data + impl->storage_offset() * element_bytes;
  out.numel = impl->numel();
  out.n_dims = static_cast<int32_t>(impl->dim());
  out.flags = (keys.has(DispatchKey::Conjugate) ? NANSCAN_TENSOR_CONJ : 0) | (keys.has(DispatchKey::Negative) ? NANSCAN_TENSOR_NEG : 0);
  return ScanStatus::kOk;
}

}  // namespace

const char* reason(ScanStatus status) {
  switch (status) {
    case ScanStatus::kOk: return "scanned";
    case ScanStatus::kEmpty: return "scanned: no elements";
    case ScanStatus::kUndefined: return "undefined tensor: there is nothing to read";
    case ScanStatus::kNotFloating: return "not a floating or complex tensor: it cannot hold NaN or Inf";
    case ScanStatus::kSparse: return "not a strided tensor (sparse or another layout): scan its values() instead";
    case ScanStatus::kQuantized: return "quantized tensor: scan its dequantize() instead";
    case ScanStatus::kMeta: return "meta tensor: it has a shape and no data";
    case ScanStatus::kPythonKey:
      return "tensor subclass with __torch_dispatch__ (fake tensor, DTensor ...): scan what it holds, e.g. to_local()";
    case ScanStatus::kFunctorch: return "wrapped by a functorch transform (vmap, grad, functionalize): scan outside it";
    case ScanStatus::kNested: return "nested tensor: scan its values() or its components";
    case ScanStatus::kNoStorage:
      return "tensor without storage, or with less than its shape needs: its memory was released";
    case ScanStatus::kDevice: return "tensor on a device without kernels here: scan its cpu() copy";
    case ScanStatus::kDType: return "floating dtype without a kernel: scan its float() copy";
  }
  return "unknown status";
}

ScanStatus describe_tensor(const at::Tensor& tensor, nanscan_tensor& out) noexcept {
  try {
    return describe_checked(tensor, out);
  } catch (...) {
    return ScanStatus::kNoStorage;
  }
}

ScanStatus scan_tensor(const at::Tensor& tensor, Record& out) noexcept {
  try {
    return scan_checked(tensor, out);
  } catch (...) {  // torch refuses access to the data (a storage marked as not to be touched, symbolic sizes)
    return ScanStatus::kNoStorage;
  }
}

}  // namespace nanscan
