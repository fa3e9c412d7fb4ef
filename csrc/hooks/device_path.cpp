#include "hooks/device_path.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "hooks/guard.h"
#include "scan/accumulate.h"

namespace nanscan {
namespace {

thread_local void* stand_in_stream = nullptr;

void* current_stream(const at::Tensor& t) {
  if (device_library()->stand_in) return stand_in_stream;
  const c10::Device device = t.unsafeGetTensorImpl()->device();
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

int device_of(const at::Tensor& t) {
  const int index = t.unsafeGetTensorImpl()->device().index();
  return index < 0 ? 0 : index;
}

const nanscan_record* raw(const Record& record) { return reinterpret_cast<const nanscan_record*>(&record); }

}  // namespace

void set_stand_in_stream(void* stream) { stand_in_stream = stream; }

DevicePath::~DevicePath() {
  if (process_inert().load(std::memory_order_relaxed)) return;  // a forked child has no device, and none of this is its own
  for (nanscan_ring* ring : rings_) {
    if (ring != nullptr) device_library()->close(ring);
  }
}

bool DevicePath::open(int device) {
  const DeviceLibrary* library = device_library();
  if (library == nullptr || device < 0 || device >= kMaxDevices) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  if (rings_[device] != nullptr) return true;
  const int code = library->open(device, static_cast<uint32_t>(capacity_), &rings_[device]);
  if (code != 0) {
    rings_[device] = nullptr;
    error_ = std::string("device ") + std::to_string(device) + " could not be opened: " + library->error(code);
    return false;
  }
  if (results_.empty()) {
    results_.resize(kResults);
    inbox_.resize(1024);
    stamps_.resize(1024);
  }
  open_[device].store(true, std::memory_order_release);
  any_.store(true, std::memory_order_release);
  return true;
}

nanscan_ring* DevicePath::ring_of(const at::Tensor& t) {
  const int device = device_of(t);
  return device < kMaxDevices ? rings_[device] : nullptr;
}

ScanStatus DevicePath::launch(const at::Tensor& t, Record& header) {
  header.seq = 0;
  nanscan_tensor view;
  const ScanStatus status = describe_tensor(t, view);
  if (status == ScanStatus::kEmpty) {
    store(Moments{}, static_cast<DType>(view.dtype), header);
    ring_.append(header);
  }
  if (status != ScanStatus::kOk) return status;
  void* stream = current_stream(t);
  const DeviceLibrary& library = *device_library();
  std::lock_guard<std::mutex> lock(mutex_);
  nanscan_ring* ring = ring_of(t);
  if (ring == nullptr) return ScanStatus::kDevice;
  int capturing = 0;
  if (library.capturing(stream, &capturing) == 0 && capturing != 0) {
    // Nothing runs now: each replay writes a record of its own, and takes its place in the ring when it comes.
    return library.scan(ring, &view, raw(header), stream) == 0 ? ScanStatus::kOk : ScanStatus::kDevice;
  }
  const uint64_t seq = ring_.reserve();
  if (seq == 0) return ScanStatus::kOk;  // full: dropped and counted like any other
  header.seq = seq;
  waiting_.emplace(seq, Waiting{});
  const int code = library.scan(ring, &view, raw(header), stream);
  if (code != 0) {
    lose(code);
    header.seq = 0;
    return ScanStatus::kDevice;
  }
  return ScanStatus::kOk;
}

void DevicePath::launch_many(const std::vector<at::Tensor>& tensors, const std::vector<Record>& headers,
                             std::vector<ScanStatus>& statuses) {
  const DeviceLibrary& library = *device_library();
  for (int device = 0; device < kMaxDevices; ++device) {
    std::vector<nanscan_tensor> views;
    std::vector<Record> rows;
    void* stream = nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    if (rings_[device] == nullptr) continue;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (device_of(tensors[i]) != device) continue;
      nanscan_tensor view;
      statuses[i] = describe_tensor(tensors[i], view);
      if (statuses[i] == ScanStatus::kEmpty) {
        Record empty = headers[i];
        store(Moments{}, static_cast<DType>(view.dtype), empty);
        ring_.append(empty);
      }
      if (statuses[i] != ScanStatus::kOk) continue;
      if (views.empty()) stream = current_stream(tensors[i]);
      views.push_back(view);
      rows.push_back(headers[i]);
    }
    if (views.empty()) continue;
    int capturing = 0;
    const bool replayed = library.capturing(stream, &capturing) == 0 && capturing != 0;
    size_t kept = 0;
    for (size_t i = 0; i < rows.size() && !replayed; ++i) {
      const uint64_t seq = ring_.reserve();
      if (seq == 0) continue;
      rows[kept] = rows[i];
      views[kept] = views[i];
      rows[kept++].seq = seq;
      waiting_.emplace(seq, Waiting{});
    }
    const size_t n = replayed ? rows.size() : kept;
    if (n == 0) continue;
    const int code = library.scan_many(rings_[device], views.data(), raw(rows[0]), static_cast<uint32_t>(n), stream);
    if (code != 0) lose(code);
  }
}

bool DevicePath::repeat(uint64_t seq, Record& header) {
  header.seq = 0;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto waiting = waiting_.find(seq);
  if (waiting != waiting_.end()) {
    header.seq = ring_.reserve();
    if (header.seq != 0) waiting->second.repeats.emplace_back(header.seq, header);
    return true;
  }
  const Record& result = results_[seq % kResults];
  if (result.seq != seq) return false;
  copy_numbers(result, header);
  ring_.append(header);
  return true;
}

void DevicePath::finish(const Record& record, std::vector<Record>& out) {
  if (record.flags & kFlagReplay) {
    ring_.append(record);
    out.push_back(record);
    return;
  }
  const auto waiting = waiting_.find(record.seq);
  if (waiting == waiting_.end()) return;
  results_[record.seq % kResults] = record;
  ring_.publish(record.seq, record);
  out.push_back(record);
  for (auto& [seq, header] : waiting->second.repeats) {
    copy_numbers(record, header);
    results_[seq % kResults] = header;
    ring_.publish(seq, header);
    out.push_back(header);
  }
  waiting_.erase(waiting);
}

void DevicePath::take_finished(std::vector<Record>& out) {
  const DeviceLibrary* library = device_library();
  std::lock_guard<std::mutex> lock(mutex_);
  bool idle = true;  // as of before the poll: nothing that was launched is still to come
  for (nanscan_ring* ring : rings_) {
    if (ring == nullptr) continue;
    uint64_t launched = 0, finished = 0, dropped = 0;
    idle = library->counters(ring, &launched, &finished, &dropped) == 0 && launched == finished && idle;
    uint32_t n = 0;
    do {
      const int code = library->poll(ring, reinterpret_cast<nanscan_record*>(inbox_.data()), stamps_.data(),
                                     static_cast<uint32_t>(inbox_.size()), &n);
      if (code != 0) {
        lose(code);
        return;
      }
      for (uint32_t i = 0; i < n; ++i) finish(inbox_[i], out);
    } while (n == inbox_.size());
  }
  if (idle && !waiting_.empty()) give_up();  // the device's ring was full of replays that nobody had polled
}

void DevicePath::flush() {
  const DeviceLibrary* library = device_library();
  for (int device = 0; device < kMaxDevices; ++device) {
    nanscan_ring* ring = nullptr;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ring = rings_[device];
    }
    if (ring == nullptr) continue;
    const int code = library->flush(ring);  // waits, so without the lock
    if (code == 0) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    lose(code);
  }
}

// A launch failed, or the device is gone: what it owes will not come.
void DevicePath::lose(int code) {
  error_ = std::string("a device failed: ") + device_library()->error(code);
  give_up();
}

// Frees the places of what will not come, so that what others have recorded since can be read.
void DevicePath::give_up() {
  Record nothing{};
  nothing.flags = kFlagLink;  // of no kind that anybody reads
  for (const auto& [seq, waiting] : waiting_) {
    ring_.publish(seq, nothing);
    for (const auto& [repeat, header] : waiting.repeats) ring_.publish(repeat, nothing);
  }
  waiting_.clear();
}

size_t DevicePath::pending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return waiting_.size();
}

std::string DevicePath::error() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

uint64_t DevicePath::dropped() const {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t sum = 0;
  for (nanscan_ring* ring : rings_) {
    uint64_t launched = 0, finished = 0, dropped = 0;
    if (ring != nullptr && device_library()->counters(ring, &launched, &finished, &dropped) == 0) sum += dropped;
  }
  return sum;
}

}  // namespace nanscan
