// Which tensors the op observer can look into, and how to find them among a call's values.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "hooks/session.h"

namespace nanscan {

template <typename F>
void for_each_tensor(const c10::IValue& v, const F& f) {
  if (v.isTensor()) {
    const at::Tensor& t = v.toTensor();
    if (t.defined()) f(t);
  } else if (v.isTensorList()) {
    for (const at::Tensor& t : v.toTensorVector()) {
      if (t.defined()) f(t);
    }
  } else if (v.isList()) {
    for (const auto& item : v.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) f(item.toTensor());
    }
  }
}

// A tensor that stands for another one: a subclass, a fake, vmap's or grad's. The op runs again on what is inside.
inline bool wraps_another(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->is_python_dispatch() ||
         t.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
                                                  c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::Functionalize}));
}

inline bool in_dispatch_mode() { return c10::impl::TorchDispatchModeTLS::any_modes_set(); }

inline bool scannable(const Session& session, const at::Tensor& t) {
  return t.defined() && (t.is_floating_point() || t.is_complex()) && t.layout() == at::kStrided && !t.is_nested() &&
         (t.device().is_cpu() || session.is_late(t)) && !wraps_another(t) && t.has_storage();
}

// Integers and masks, which are never bad and may be why something else is: the zero that a sum is divided by.
inline bool counts(const at::Tensor& t) {
  return (at::isIntegralType(t.scalar_type(), /*includeBool=*/true)) && t.device().is_cpu() && t.layout() == at::kStrided &&
         !t.is_nested() && !wraps_another(t) && t.has_storage();
}

// Scans a result; one on a device is only marked with kFlagLate. A floating tensor that cannot be scanned is counted by
// reason.
inline bool scan_result(Session& session, const at::Tensor& t, Record& rec) {
  if (!scannable(session, t)) {
    session.note_unopened(t);
    if (t.defined() && !wraps_another(t) && (t.is_floating_point() || t.is_complex() || t.is_quantized())) {
      const ScanStatus status = scan_tensor(t, rec);
      if (!scanned(status)) session.count(status);
    }
    return false;
  }
  if (session.is_late(t)) {
    rec.flags |= kFlagLate;
    return true;
  }
  return session.count(scan_tensor(t, rec));
}

inline bool shares_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

}  // namespace nanscan
