// Tensors on a device: the scan is launched here and finished whenever the device gets to it. The session's ring keeps
// the record's place until then, so whoever drains it sees the order of the program, late but never out of turn.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "buffer/device_library.h"
#include "buffer/ring.h"
#include "hooks/replays.h"
#include "record/record.h"
#include "scan/scan.h"

namespace nanscan {

// Is the tensor on a device whose kernels are loaded?
inline bool on_device(const at::Tensor& t) {
  const DeviceLibrary* library = device_library();
  if (library == nullptr) return false;
  const auto type = t.unsafeGetTensorImpl()->device().type();
  return library->stand_in ? type == c10::DeviceType::CPU : type == c10::DeviceType::CUDA;
}

// Ordinal of its device; the CPU, which stands in for a device in tests, counts as the first.
inline int device_index(const at::Tensor& t) {
  const int index = t.unsafeGetTensorImpl()->device().index();
  return index < 0 ? 0 : index;
}

class DevicePath {
 public:
  DevicePath(Ring& ring, size_t capacity);
  ~DevicePath();

  // Takes the device's memory. Not in a hook: it allocates, which no stream capture survives. False: see error().
  bool open(int device);

  // Launches the scan of `t`. `header` gets its place in the ring as seq, or an id of its own when it is captured into a
  // graph; 0 when it was finished at once (no elements, appended) or could not be done (the status says why).
  ScanStatus launch(const at::Tensor& t, Record& header);
  // The same for many, in one or two launches for each device.
  void launch_many(const std::vector<at::Tensor>& tensors, const std::vector<Record>& headers, std::vector<ScanStatus>& statuses);
  // One more record about a value whose scan is under way or was finished lately: `header` with those numbers. False
  // when it was too long ago, or on the other side of a capture.
  bool repeat(const at::Tensor& t, uint64_t seq, Record& header);
  // A record without numbers. True when it belongs to a call that is being captured: then it is written by each replay,
  // and not now.
  bool captures(const Record& record);

  // Takes over what the devices have finished. Never blocks. on_record(record) for each record that got its numbers.
  template <typename F>
  void poll(const F& on_record);
  // Waits for the devices first. For people, not for hooks.
  void flush();

  bool is_open(int device) const { return device >= 0 && device < kMaxDevices && open_[device].load(std::memory_order_acquire); }
  bool any() const { return any_.load(std::memory_order_relaxed); }
  // Launches whose records have not been taken over yet; those in graphs do not count.
  size_t pending() const;
  // Why a device could not be opened, or was lost; "" if neither.
  std::string error() const;
  uint64_t dropped() const;

 private:
  static constexpr int kMaxDevices = 16;
  static constexpr size_t kResults = 8192;  // records remembered for repeat(): 1 MiB

  struct Waiting {
    std::vector<std::pair<uint64_t, Record>> repeats;  // their places and headers
  };

  nanscan_ring* ring_of(const at::Tensor& t);
  bool is_capturing(void* stream);
  uint64_t capture(const Record& header);
  template <typename F>
  int unlocked(std::unique_lock<std::mutex>& lock, const F& launch);
  void take_finished(std::vector<Record>& out);
  void finish(const Record& record, std::vector<Record>& out);
  void append_replayed(const Record& record, std::vector<Record>& out);
  void lose(int code);
  void give_up();

  Ring& ring_;
  const size_t capacity_;
  const uint64_t number_;  // what the thread's notes are compared with: a later path may get this one's address
  const int process_;
  std::atomic<bool> any_{false};
  std::array<std::atomic<bool>, kMaxDevices> open_{};
  mutable std::mutex mutex_;
  std::array<nanscan_ring*, kMaxDevices> rings_{};
  std::unordered_map<uint64_t, Waiting> waiting_;  // by place in the ring
  std::vector<Record> results_;                    // [kResults] by place modulo, taken when a device is opened
  std::vector<Record> inbox_;                      // [n] scratch of poll
  std::vector<uint64_t> stamps_;
  Replays replays_;
  size_t n_launching_ = 0;  // threads in unlocked(): what they have a place for may not be known to the device yet
  bool flushed_ = false;  // replays that are not whole by now will not become so
  std::string error_;
};

// The numbers of `from` under the header `to`.
inline void copy_numbers(const Record& from, Record& to) {
  to.dtype = from.dtype;
  to.flags = static_cast<uint16_t>((to.flags & ~kFlagBad) | (from.flags & kFlagBad));
  to.n = from.n;
  to.n_nan = from.n_nan;
  to.n_posinf = from.n_posinf;
  to.n_neginf = from.n_neginf;
  to.n_zero = from.n_zero;
  to.n_subnormal = from.n_subnormal;
  to.min = from.min;
  to.max = from.max;
  to.mean = from.mean;
  to.m2 = from.m2;
  to.first_bad = from.first_bad;
}

template <typename F>
void DevicePath::poll(const F& on_record) {
  std::vector<Record> fresh;
  take_finished(fresh);
  for (const Record& record : fresh) on_record(record);
}

// Tests with the stand-in: the stream that the calling thread launches on.
void set_stand_in_stream(void* stream);

}  // namespace nanscan
