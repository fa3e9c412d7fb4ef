// What a thread remembers of the tensors it has seen lately, so that a value passed from hook to hook is scanned once,
// and so that a bad input can be told from one that was clean when a module handed it over.
#pragma once

#include <array>
#include <memory>

#include "hooks/session.h"

namespace nanscan {

struct GradTap;

// One seen value. The weak reference keeps the TensorImpl's address from being reused while the entry lives, so pointer
// plus version identify the value (a write that raises no version is just what CHANGED is about).
struct SeenValue {
  WeakImpl ref = no_impl();
  const c10::TensorImpl* impl = nullptr;
  uint64_t session = 0;  // its number
  uint32_t version = 0;
  uint32_t site = kNoSite;  // where it was seen last (an OUTPUT or INPUT site)
  uint64_t call = 0;
  bool scanned = false;  // false: only its gradient is tapped so far
  uint64_t late = 0;     // on a device: place in the ring of the record with its counts, which are not known here
  uint64_t n_nan = 0, n_posinf = 0, n_neginf = 0;
  std::shared_ptr<GradTap> tap;  // holds no tensor

  bool bad() const { return (n_nan | n_posinf | n_neginf) != 0; }
};

// A set-associative cache. What is evicted costs one more scan and a second watch on its gradient, and is no longer known
// as some module's output: so a dead value goes before a live one.
class SeenValues {
 public:
  static constexpr size_t kSets = 512, kWays = 4;  // about 200 KiB per thread that ran a hook

  SeenValue* find(const at::Tensor& t, const Session* session) {
    const auto* impl = t.unsafeGetTensorImpl();
    for (SeenValue& slot : set_of(impl)) {
      if (slot.impl == impl && slot.session == session->number) return slot.version == version_of(t) ? &slot : nullptr;
    }
    return nullptr;
  }

  SeenValue& put(const at::Tensor& t, const Session* session) {
    SeenValue& slot = room_for(t.unsafeGetTensorImpl(), session->number);
    if (slot.impl != t.unsafeGetTensorImpl()) slot.ref = WeakImpl(t.getIntrusivePtr());
    slot.impl = t.unsafeGetTensorImpl();
    slot.session = session->number;
    slot.version = version_of(t);
    slot.site = kNoSite;
    slot.call = 0;
    slot.scanned = false;
    slot.late = 0;
    slot.n_nan = slot.n_posinf = slot.n_neginf = 0;
    slot.tap.reset();
    return slot;
  }

  // The value whose memory this address points into; undefined if none is known.
  at::Tensor containing(const void* address, const Session* session) const {
    for (const auto& set : sets_) {
      for (const SeenValue& slot : set) {
        if (slot.impl == nullptr || slot.session != session->number) continue;
        at::Tensor t(slot.ref.lock());
        if (t.defined() && t.has_storage() && contains(*t.storage().unsafeGetStorageImpl(), address)) return t;
      }
    }
    return {};
  }

  // A closed session's entries; their taps would keep it, ring and all.
  void forget(const Session& session) {
    for (auto& set : sets_) {
      for (auto& slot : set) {
        if (slot.session == session.number) slot = SeenValue{};
      }
    }
  }
  void clear() { sets_ = {}; }

 private:
  using Set = std::array<SeenValue, kWays>;

  Set& set_of(const c10::TensorImpl* impl) {
    // TensorImpls are 16-byte aligned heap blocks of about 200 bytes: mix the bits above the alignment.
    const auto key = reinterpret_cast<uintptr_t>(impl) >> 4;
    return sets_[(key ^ (key >> 9)) % kSets];
  }

  SeenValue& room_for(const c10::TensorImpl* impl, uint64_t session) {
    Set& set = set_of(impl);
    SeenValue* dead = nullptr;
    for (SeenValue& slot : set) {
      if (slot.impl == impl && slot.session == session) return slot;
      if (dead == nullptr && (slot.impl == nullptr || slot.ref.expired())) dead = &slot;
    }
    return dead != nullptr ? *dead : set[next_way_++ % kWays];
  }

  std::array<Set, kSets> sets_{};
  uint32_t next_way_ = 0;
};

}  // namespace nanscan
