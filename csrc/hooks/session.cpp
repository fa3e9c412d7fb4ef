#include "hooks/session.h"

#include <algorithm>

namespace nanscan {

uint32_t ShapeTable::id_of(at::IntArrayRef sizes) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = shapes_.size(); i-- > 1;) {
    if (sizes == at::IntArrayRef(shapes_[i])) return static_cast<uint32_t>(i);
  }
  if (shapes_.size() >= kMaxShapes) return 0;
  shapes_.emplace_back(sizes.begin(), sizes.end());
  return static_cast<uint32_t>(shapes_.size() - 1);
}

std::vector<int64_t> ShapeTable::at(uint32_t id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return id < shapes_.size() ? shapes_[id] : std::vector<int64_t>{};
}

void Session::append(Record& rec) {
  rec.step = step.load(std::memory_order_relaxed);
  if (device.any() && (rec.flags & (kFlagLink | kFlagEnter)) != 0 && device.captures(rec)) return;
  ring.append(rec);
}

bool Session::count(ScanStatus status) {
  auto& counter = scanned(status) ? n_scans : unscanned[static_cast<size_t>(status)];
  counter.fetch_add(1, std::memory_order_relaxed);
  return scanned(status);
}

void Session::head(const at::Tensor& t, Record& rec) {
  rec.device = static_cast<int8_t>(device_index(t));
  rec.shape = shapes.id_of(t.sizes());
  rec.step = step.load(std::memory_order_relaxed);
}

bool Session::record(const at::Tensor& t, Record& rec) {
  if (is_late(t)) {
    head(t, rec);
    return count(device.launch(t, rec));
  }
  rec.seq = 0;
  note_unopened(t);
  if (!count(scan_tensor(t, rec))) return false;
  rec.device = -1;
  rec.shape = 0;
  const bool bad = (rec.flags & kFlagBad) != 0;
  if (bad) rec.shape = shapes.id_of(t.sizes());
  append(rec);
  // After the append: who sees the count also finds the record.
  if (bad) n_bad.fetch_add(1, std::memory_order_release);
  return true;
}

void Session::note_unopened(const at::Tensor& t) {
  if (!t.defined() || !t.is_cuda()) return;
  const int index = device_index(t);
  if (index < 32 && !device.is_open(index)) unopened.fetch_or(1u << index, std::memory_order_relaxed);
}

bool Session::record_again(const at::Tensor& t, uint64_t late, Record& rec) {
  head(t, rec);
  if (!device.repeat(t, late, rec)) return record(t, rec);
  if (rec.flags & kFlagBad) n_bad.fetch_add(1, std::memory_order_release);  // its numbers were there already
  return true;
}

ValueState Session::state_of(const at::Tensor& t) {
  const uint64_t fresh = next_id();
  if (!is_late(t) || !t.has_storage()) return storages.read(t, fresh);
  ValueState state = storages.read_late(t, fresh);
  if (state.scanned_now) {
    Record rec{};
    rec.site = watched_storage(t);
    rec.call = state.value;
    rec.flags = kFlagLate | kFlagOp | kFlagInput | (state.bits & kValueUninit ? kFlagKnown : 0);
    record(t, rec);
  }
  state.bits &= kValueLate;
  return state;
}

void Session::poll_device() {
  if (!device.any()) return;
  device.poll([this](const Record& rec) {
    if (rec.flags & kFlagBad) n_bad.fetch_add(1, std::memory_order_release);
    if (!(rec.flags & kFlagBad) && n_bad_values_.load(std::memory_order_relaxed) == 0) return;
    std::lock_guard<std::mutex> lock(watched_mutex_);
    if (rec.flags & kFlagInput) return;
    if (std::none_of(watched_.begin(), watched_.end(), [&](const Watched& w) { return w.site == rec.site; })) return;
    if (rec.flags & kFlagBad) bad_values_[rec.site] = rec;
    else bad_values_.erase(rec.site);
    n_bad_values_.store(bad_values_.size(), std::memory_order_relaxed);
  });
}

bool Session::bad_value(uint32_t site, Record& rec) const {
  if (n_bad_values_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard<std::mutex> lock(watched_mutex_);
  const auto found = bad_values_.find(site);
  if (found == bad_values_.end()) return false;
  copy_numbers(found->second, rec);
  rec.shape = found->second.shape;
  rec.device = found->second.device;
  return true;
}

// Tensors of a device in one or two launches; the others one by one.
void Session::record_all(const std::vector<at::Tensor>& tensors, std::vector<Record>& records) {
  std::vector<at::Tensor> late;
  std::vector<Record> headers;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_late(tensors[i])) {
      record(tensors[i], records[i]);
      continue;
    }
    head(tensors[i], records[i]);
    late.push_back(tensors[i]);
    headers.push_back(records[i]);
  }
  if (late.empty()) return;
  std::vector<ScanStatus> statuses(late.size(), ScanStatus::kDevice);
  device.launch_many(late, headers, statuses);
  for (const ScanStatus status : statuses) count(status);
}

uint64_t Session::traced_call_id(uint32_t site) {
  const uint64_t now = batch.load(std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(traced_mutex_);
  auto& entry = traced_[site];
  if (entry.second == 0 || entry.first != now) entry = {now, next_id()};
  return entry.second;
}

void Session::set_traced_call_id(uint32_t site, uint64_t call) {
  std::lock_guard<std::mutex> lock(traced_mutex_);
  traced_[site] = {batch.load(std::memory_order_relaxed), call};
}

TracedChild Session::traced_child(uint32_t site) {
  std::lock_guard<std::mutex> lock(traced_mutex_);
  const auto it = traced_children_.find(site);
  return it == traced_children_.end() || it->second.first != batch.load(std::memory_order_relaxed) ? TracedChild{} : it->second.second;
}

void Session::set_traced_child(uint32_t site, TracedChild child) {
  std::lock_guard<std::mutex> lock(traced_mutex_);
  traced_children_[site] = {batch.load(std::memory_order_relaxed), child};
}

void Session::watch(const at::Tensor& t, uint32_t site, bool parameter) {
  std::lock_guard<std::mutex> lock(watched_mutex_);
  position_[t.unsafeGetTensorImpl()] = watched_.size();
  watched_.push_back(Watched{WeakImpl(t.getIntrusivePtr()), site, parameter, version_of(t), no_impl(), 0});
  if (t.has_storage()) storage_site_[t.storage().unsafeGetStorageImpl()] = site;
}

void Session::clear_watched() {
  std::lock_guard<std::mutex> lock(watched_mutex_);
  watched_.clear();
  position_.clear();
  storage_site_.clear();
}

uint32_t Session::watched_site(const at::Tensor& t) const {
  std::lock_guard<std::mutex> lock(watched_mutex_);
  const auto found = position_.find(t.unsafeGetTensorImpl());
  return found == position_.end() ? kNoSite : watched_[found->second].site;
}

bool Session::written_since_scanned(const at::Tensor& t) {
  std::lock_guard<std::mutex> lock(watched_mutex_);
  const auto found = position_.find(t.unsafeGetTensorImpl());
  if (found == position_.end() || !watched_[found->second].parameter) return false;
  uint32_t& version = watched_[found->second].version;
  const uint32_t before = version;
  version = version_of(t);
  return version != before;
}

uint32_t Session::watched_storage(const at::Tensor& t) const {
  if (!t.has_storage()) return kNoSite;
  std::lock_guard<std::mutex> lock(watched_mutex_);
  auto it = storage_site_.find(t.storage().unsafeGetStorageImpl());
  return it == storage_site_.end() ? kNoSite : it->second;
}

void Session::scan_grads(Phase phase) {
  if (!watching()) return;
  std::vector<at::Tensor> tensors;
  std::vector<Record> records;
  {
    std::lock_guard<std::mutex> lock(watched_mutex_);
    for (auto& w : watched_) {
      if (!w.parameter) continue;
      auto strong = w.tensor.lock();
      if (!strong) continue;
      const at::Tensor& grad = strong->grad();
      if (!grad.defined()) continue;
      const uint32_t version = version_of(grad);
      // The weak reference keeps the address from being reused, so a new tensor cannot pass for the old one.
      const bool seen = w.grad._unsafe_get_target() == grad.unsafeGetTensorImpl();
      if (seen && w.grad_version == version) continue;
      w.grad = WeakImpl(grad.getIntrusivePtr());
      w.grad_version = version;
      Record rec{};
      rec.site = w.site + 1;
      rec.phase = seen ? phase : kPhaseBackward;
      tensors.push_back(grad);
      records.push_back(rec);
    }
  }
  // Scanned, and let go of, without the lock: dropping a last reference may need the GIL, which a thread that waits for
  // the lock may hold.
  record_all(tensors, records);
}

void Session::scan_values(Phase phase) {
  if (!watching()) return;
  std::vector<at::Tensor> tensors;
  std::vector<Record> records;
  {
    std::lock_guard<std::mutex> lock(watched_mutex_);
    tensors.reserve(watched_.size());
    for (auto& w : watched_) {
      auto strong = w.tensor.lock();
      if (!strong) continue;
      w.version = version_of(at::Tensor(strong));
      Record rec{};
      rec.site = w.site;
      rec.phase = phase;
      tensors.emplace_back(std::move(strong));
      records.push_back(rec);
    }
  }
  record_all(tensors, records);
}

}  // namespace nanscan
