#include "hooks/device_path.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include "scan/accumulate.h"

namespace nanscan {
namespace {

thread_local void* stand_in_stream = nullptr;

// What a thread has captured last. Records without numbers follow those of the call that they are about.
struct CapturedLast {
  uint64_t path = 0;  // its number
  uint64_t call = 0;
};
thread_local CapturedLast captured_last;

// The root forward that began last, until something is launched in it.
struct Begun {
  uint64_t path = 0;
  Record enter;
};
thread_local Begun begun;

std::atomic<uint64_t> n_paths{0};

void* current_stream(const at::Tensor& t) {
  if (device_library()->stand_in) return stand_in_stream;
  const c10::Device device = t.unsafeGetTensorImpl()->device();
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

const nanscan_record* raw(const Record& record) { return reinterpret_cast<const nanscan_record*>(&record); }

}  // namespace

void set_stand_in_stream(void* stream) { stand_in_stream = stream; }

DevicePath::DevicePath(Ring& ring, size_t capacity)
    : ring_(ring), capacity_(capacity), number_(n_paths.fetch_add(1, std::memory_order_relaxed) + 1), process_(getpid()) {}

DevicePath::~DevicePath() {
  if (getpid() != process_) return;  // a forked child: device and driver are its parent's
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
  const int device = device_index(t);
  return device < kMaxDevices ? rings_[device] : nullptr;
}

// Nothing runs while a stream captures: each replay writes a record of its own, and takes its place when it comes.
bool DevicePath::is_capturing(void* stream) {
  int yes = 0;
  const bool is = device_library()->capturing(stream, &yes) == 0 && yes != 0;
  if (!is) replays_.outside();
  return is;
}

uint64_t DevicePath::capture(const Record& header) {
  if (begun.path == number_) replays_.note(begun.enter);
  captured_last = {number_, header.call};
  return replays_.launch(header);
}

bool DevicePath::captures(const Record& record) {
  if (record.flags & kFlagEnter) begun = {number_, record};
  if (captured_last.path != number_ || captured_last.call != record.call || record.call == 0) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  replays_.note(record);
  return true;
}

template <typename F>
int DevicePath::unlocked(std::unique_lock<std::mutex>& lock, const F& launch) {
  if (!device_library()->unlocked) return launch();
  ++n_launching_;
  lock.unlock();
  const int code = launch();
  lock.lock();
  --n_launching_;
  return code;
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
  std::unique_lock<std::mutex> lock(mutex_);
  nanscan_ring* ring = ring_of(t);
  if (ring == nullptr) return ScanStatus::kDevice;
  const bool captured = is_capturing(stream);
  if (captured) {
    header.seq = capture(header);
    if (library.scan(ring, &view, raw(header), stream) != 0) {
      replays_.undo(header.seq);
      header.seq = 0;
      return ScanStatus::kDevice;
    }
  }
  begun.path = 0;
  if (captured) return ScanStatus::kOk;
  const uint64_t seq = ring_.reserve();
  if (seq == 0) return ScanStatus::kOk;  // full: dropped and counted like any other
  header.seq = seq;
  waiting_.emplace(seq, Waiting{});
  const int code = unlocked(lock, [&] { return library.scan(ring, &view, raw(header), stream); });
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
    std::vector<size_t> which;  // [rows] position in `tensors`
    void* stream = nullptr;
    std::unique_lock<std::mutex> lock(mutex_);
    if (rings_[device] == nullptr) continue;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (device_index(tensors[i]) != device) continue;
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
      which.push_back(i);
    }
    if (views.empty()) continue;
    const bool captured = is_capturing(stream);
    size_t n = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const uint64_t seq = captured ? capture(rows[i]) : ring_.reserve();
      begun.path = 0;
      if (seq == 0) continue;
      rows[n] = rows[i];
      views[n] = views[i];
      which[n] = which[i];
      rows[n++].seq = seq;
      if (!captured) waiting_.emplace(seq, Waiting{});
    }
    if (n == 0) continue;
    const int code = unlocked(lock, [&] {
      return library.scan_many(rings_[device], views.data(), raw(rows[0]), static_cast<uint32_t>(n), stream);
    });
    if (code == 0) continue;
    for (size_t i = 0; i < n; ++i) statuses[which[i]] = ScanStatus::kDevice;
    if (captured) replays_.undo(rows[0].seq);
    else lose(code);
  }
}

bool DevicePath::repeat(const at::Tensor& t, uint64_t seq, Record& header) {
  header.seq = 0;
  void* stream = current_stream(t);
  std::lock_guard<std::mutex> lock(mutex_);
  const bool captured = is_capturing(stream);
  if (captured != Replays::is_id(seq)) return false;
  if (captured) {
    header.seq = replays_.repeat(seq, header);
    if (header.seq != 0) captured_last = {number_, header.call};
    return header.seq != 0;
  }
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

void DevicePath::append_replayed(const Record& record, std::vector<Record>& out) {
  ring_.append(record);
  if (!(record.flags & (kFlagLink | kFlagEnter))) out.push_back(record);
}

void DevicePath::finish(const Record& record, std::vector<Record>& out) {
  if (record.flags & kFlagReplay) {
    replays_.take(record, [&](const Record& one) { append_replayed(one, out); });
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
  bool idle = n_launching_ == 0;  // as of before the poll: nothing that was launched is still to come
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
  if (flushed_) replays_.finish([&](const Record& one) { append_replayed(one, out); });
  flushed_ = false;
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
  std::lock_guard<std::mutex> lock(mutex_);
  flushed_ = true;
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
