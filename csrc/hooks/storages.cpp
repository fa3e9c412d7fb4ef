#include "hooks/storages.h"

namespace nanscan {
namespace {

// Does the tensor read every byte of its storage?
bool covers(const at::Tensor& t, const c10::StorageImpl& storage) {
  return static_cast<size_t>(t.numel()) * t.element_size() >= storage.nbytes() && t.is_non_overlapping_and_dense();
}

uint64_t geometry_of(const at::Tensor& t) {
  uint64_t h = 0x9E3779B97F4A7C15ull ^ static_cast<uint64_t>(t.storage_offset());
  const auto mix = [&h](int64_t v) { h = (h ^ static_cast<uint64_t>(v)) * 0x100000001B3ull + (h >> 29); };
  for (int64_t v : t.sizes()) mix(v);
  for (int64_t v : t.strides()) mix(v + 7);
  return h | 1;
}

uint8_t scan_bits(const at::Tensor& t) {
  Record rec{};
  return scanned(scan_tensor(t, rec)) ? bits_of(rec) : 0;
}

}  // namespace

StorageState* Storages::find(const c10::StorageImpl* impl) {
  auto it = states_.find(impl);
  return it == states_.end() ? nullptr : &it->second;
}

StorageState& Storages::insert(const at::Tensor& t) {
  auto* impl = t.storage().unsafeGetStorageImpl();
  if (states_.size() >= sweep_at_) {
    for (auto it = states_.begin(); it != states_.end();) it = it->second.ref.expired() ? states_.erase(it) : std::next(it);
    sweep_at_ = std::max<size_t>(4096, 2 * states_.size());
  }
  // The weak reference keeps the address, so an entry that is there is this very storage.
  StorageState& state = states_.try_emplace(impl, t.storage().getWeakStorageImpl(), t.scalar_type()).first->second;
  state.dtype = t.scalar_type();
  return state;
}

ValueState Storages::read(const at::Tensor& t, uint64_t new_value) {
  if (!t.has_storage()) return {};
  auto* impl = t.storage().unsafeGetStorageImpl();
  std::lock_guard<std::mutex> lock(mutex_);
  StorageState* state = find(impl);
  if (state == nullptr) {
    state = &insert(t);
    state->value = new_value;
    state->bits = scan_bits(t);
    state->whole = covers(t, *impl);
    state->geometry = geometry_of(t);
    state->geometry_bits = state->bits;
    if (state->bits & kBadBits) state->bits |= kValueOutside;
    return {state->value, state->bits, true};
  }
  const uint8_t tags = state->bits & (kValueOutside | kValueUninit | kValueChanged);
  if (state->whole && !(state->bits & kBadBits)) return {state->value, 0, false};
  const uint64_t geometry = geometry_of(t);
  if (state->geometry == geometry) {
    return {state->value, static_cast<uint8_t>(state->geometry_bits & kBadBits ? state->geometry_bits | tags : 0), false};
  }
  const uint8_t bits = scan_bits(t);
  state->geometry = geometry;
  state->geometry_bits = bits;
  if (!state->whole) {
    // Memory that nobody wrote and nobody read through this view before.
    if (bits && !(state->bits & kValueUninit)) state->bits |= kValueOutside;
    state->bits |= bits;
    if (covers(t, *impl)) state->whole = true;
  }
  const uint8_t now = state->bits & (kValueOutside | kValueUninit | kValueChanged);
  return {state->value, static_cast<uint8_t>(bits ? bits | now : 0), true};
}

ValueState Storages::read_late(const at::Tensor& t, uint64_t new_value) {
  std::lock_guard<std::mutex> lock(mutex_);
  StorageState* state = find(t.storage().unsafeGetStorageImpl());
  if (state == nullptr) {
    state = &insert(t);
    state->value = new_value;
    state->whole = true;
    return {new_value, kValueLate, true};
  }
  // Memory that a factory left unfilled: known where it was written, looked at where it is read otherwise.
  const uint64_t geometry = geometry_of(t);
  if (!(state->bits & kValueUninit) || state->geometry == geometry) return {state->value, kValueLate, false};
  state->geometry = geometry;
  return {state->value, kValueLate | kValueUninit, true};
}

bool Storages::knows(const at::Tensor& t) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return t.has_storage() && states_.count(t.storage().unsafeGetStorageImpl()) != 0;
}

uint64_t Storages::write_late(const at::Tensor& t, uint64_t call, uint32_t site, uint32_t line) {
  auto* impl = t.storage().unsafeGetStorageImpl();
  std::lock_guard<std::mutex> lock(mutex_);
  const bool known = find(impl) != nullptr;
  StorageState& state = insert(t);
  ++state.epoch;
  uint64_t rest = 0;
  if (covers(t, *impl)) {
    state.bits = 0;
    state.whole = true;
  } else if (known) {
    rest = state.value;
  }
  state.value = call;
  state.site = site;
  state.line = line;
  state.geometry = geometry_of(t);
  return rest;
}

void Storages::write(const at::Tensor& t, uint64_t call, uint8_t bits, uint32_t site, uint32_t line) {
  if (!t.has_storage()) return;
  auto* impl = t.storage().unsafeGetStorageImpl();
  std::lock_guard<std::mutex> lock(mutex_);
  StorageState& state = insert(t);
  ++state.epoch;
  if (covers(t, *impl)) {
    state.value = call;
    state.bits = bits;
    state.whole = true;
  } else {
    // The rest is as it was, and unknown where it was unknown. A bad rest keeps its maker after a clean write.
    if (bits != 0 || !(state.bits & kBadBits)) state.value = call;
    state.bits |= bits;
  }
  state.site = site;
  state.line = line;
  state.geometry = geometry_of(t);
  state.geometry_bits = bits;
}

void Storages::mark_uninitialised(const at::Tensor& t, uint64_t call, uint32_t site, uint32_t line) {
  if (!t.has_storage()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  StorageState& state = insert(t);
  ++state.epoch;
  state.value = call;
  state.site = site;
  state.line = line;
  state.bits = kValueUninit;
  state.whole = false;
  state.geometry = 0;
}

void Storages::forget(const at::Tensor& t) {
  if (!t.has_storage()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  states_.erase(t.storage().unsafeGetStorageImpl());
}

bool Storages::last_seen(const at::Tensor& t, uint32_t& site, uint32_t& line) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = states_.find(t.storage().unsafeGetStorageImpl());
  if (it == states_.end()) return false;
  site = it->second.site;
  line = it->second.line;
  return true;
}

void Storages::set_changed(const at::Tensor& t, uint64_t value, uint8_t bits) {
  std::lock_guard<std::mutex> lock(mutex_);
  StorageState& state = insert(t);
  state.value = value;
  state.bits |= bits | kValueChanged | kValueOutside;
  state.geometry = geometry_of(t);
  state.geometry_bits = bits;
}

at::Tensor Storages::containing(const void* address) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [impl, state] : states_) {
    c10::intrusive_ptr<c10::StorageImpl> storage = state.ref.lock();
    if (!storage || !contains(*storage, address)) continue;
    const auto n = static_cast<int64_t>(storage->nbytes() / c10::elementSize(state.dtype));
    // No op: one dispatched here would be the program's as far as its modes and observers can tell.
    at::Tensor flat = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(state.dtype));
    flat.unsafeGetTensorImpl()->set_sizes_contiguous({n});
    return flat;
  }
  return {};
}

void Storages::sweep() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = states_.begin(); it != states_.end();) it = it->second.ref.expired() ? states_.erase(it) : std::next(it);
  sweep_at_ = std::max<size_t>(4096, 2 * states_.size());
}

size_t Storages::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return states_.size();
}

void Storages::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  states_.clear();
}

}  // namespace nanscan
