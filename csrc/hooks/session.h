// State of one scanner on the write side: the ring, the step clock's stamps, the names' ids and the counters.
// Hooks of any thread share it; nothing here judges a value.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "buffer/ring.h"
#include "hooks/device_path.h"
#include "hooks/late_calls.h"
#include "hooks/op_history.h"
#include "hooks/storages.h"
#include "record/record.h"
#include "scan/scan.h"

namespace nanscan {

constexpr uint32_t kNoSite = 0xFFFFFFFFu;
// Sites of a module relative to its base: output, input, gradient of the output, gradient of the input.
constexpr uint32_t kOutputSite = 0, kInputSite = 1, kGradOutputSite = 2, kGradInputSite = 3;

using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

inline WeakImpl no_impl() { return WeakImpl(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()); }

// torch's version counter, or 0 where reading it throws (inference tensors have none).
inline uint32_t version_of(const at::Tensor& t) {
  auto* impl = t.unsafeGetTensorImpl();
  return impl->is_inference() ? 0 : impl->version_counter().current_version();
}

// Shapes are interned: a record has room for an id only. Asked for bad records alone, so a lock is cheap enough.
class ShapeTable {
 public:
  uint32_t id_of(at::IntArrayRef sizes);
  std::vector<int64_t> at(uint32_t id) const;

 private:
  static constexpr size_t kMaxShapes = 4096;  // then id 0, "not recorded": memory stays bounded with ragged batches
  mutable std::mutex mutex_;
  std::vector<std::vector<int64_t>> shapes_{{}};
};

// A parameter or buffer that is scanned as a whole. Weak: a scanner never keeps a model alive.
struct Watched {
  WeakImpl tensor;
  uint32_t site;  // PARAM (its gradient is site + 1) or BUFFER
  bool parameter;
  uint32_t version;  // when the value was last scanned
  // The gradient last scanned, to skip a second look at an unchanged one.
  WeakImpl grad;
  uint32_t grad_version = 0;
};

struct TracedChild {
  uint64_t call = 0;
  uint8_t bits = 0;  // ValueBit
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  explicit Session(size_t capacity) : number(next_number()), ring(capacity), device(ring, capacity) {}

  const uint64_t number;  // what caches compare: a later session may get this one's address
  Ring ring;
  DevicePath device;
  LateCalls late_calls;  // guarded by whoever drains
  Storages storages;  // op level only
  OpHistory history;  // the same
  ShapeTable shapes;
  std::atomic<uint64_t> step{0};
  std::atomic<uint64_t> batch{0};  // root forward calls so far
  std::atomic<uint64_t> n_scans{0};
  std::atomic<uint64_t> n_unreadable_calls{0};
  std::atomic<uint64_t> n_bad{0};          // bad records so far
  std::atomic<uint64_t> n_bad_drained{0};  // its value at the last drain: a difference means news for the read side
  std::atomic<bool> op_level{false};        // ops are observed; modules only mark where they run
  std::atomic<bool> in_optimizer{false};
  std::atomic<bool> in_scale{false};        // a GradScaler multiplies a loss
  std::atomic<bool> after_backward{false};  // a backward has ended and no root forward has begun since
  std::atomic<bool> forward_seen{false};    // a root forward has begun in this step
  std::atomic<bool> has_model{false};
  std::atomic<bool> active{true};   // false on steps that `every` or `schedule` leaves out
  std::atomic<bool> closed{false};
  std::atomic<int> callback_for{-1};  // graph task that already has our end-of-backward callback
  std::atomic<void*> backward_end{nullptr};  // a Python callable, owned by the binding; this half knows no Python
  std::array<std::atomic<uint64_t>, kScanStatusCount> unscanned{};

  // Ids of calls and of values come from one counter, from 1.
  uint64_t next_id() { return last_id_.fetch_add(1, std::memory_order_relaxed) + 1; }

  bool watching() const {
    return active.load(std::memory_order_relaxed) && !closed.load(std::memory_order_relaxed);
  }

  // The last calls with a bad result, by id: a backward that begins at one of them has a bad loss.
  void note_bad_call(uint64_t call) { bad_calls_[call % bad_calls_.size()].store(call, std::memory_order_relaxed); }
  bool is_bad_call(uint64_t call) const { return bad_calls_[call % bad_calls_.size()].load(std::memory_order_relaxed) == call; }
  std::atomic<int> loss_of{-1};  // graph task whose first node was looked at

  // Scan `t` and append the record. Returns false when it could not be scanned (counted by reason). On a device the
  // numbers come later: rec.seq is then the record's place in the ring, and 0 otherwise.
  bool record(const at::Tensor& t, Record& rec);
  // The same for a value whose record has, or had, the place `late`: nothing is read again.
  bool record_again(const at::Tensor& t, uint64_t late, Record& rec);
  // Do the numbers of this tensor come later?
  bool is_late(const at::Tensor& t) const {
    return device.any() && t.defined() && on_device(t) && device.is_open(device_index(t));
  }
  // Devices on which a tensor was met before they were opened, as bits: whoever can allocate opens them.
  std::atomic<uint32_t> unopened{0};
  // Op level: the value that `t` holds as it is read, by storages.read() or, on a device, by launching what it takes.
  ValueState state_of(const at::Tensor& t);
  void note_unopened(const at::Tensor& t);
  // Takes over what devices have finished. Never blocks.
  void poll_device();
  // A parameter or buffer on a device that was bad when its scan came back last; false if it was not.
  bool bad_value(uint32_t site, Record& rec) const;
  // Was this parameter written since its scan was last launched? Asked of a device's tensors, whose values nobody knows
  // when a call ends; only the first to ask is told.
  bool written_since_scanned(const at::Tensor& t);
  // Counts a scan, or the reason why there was none. True if there was one.
  bool count(ScanStatus status);
  // Append without scanning (links, markers). Stamps the step.
  void append(Record& rec);

  // Call id of the module with this OUTPUT site in the running batch of a compiled forward: there is no frame to hold
  // it, and a child has to name its parent's before the parent has ended.
  uint64_t traced_call_id(uint32_t site);
  // The last module inside the one with this site that made something bad in the running batch; bits 0 if none did.
  TracedChild traced_child(uint32_t site);
  void set_traced_child(uint32_t site, TracedChild child);
  void set_traced_call_id(uint32_t site, uint64_t call);

  void watch(const at::Tensor& t, uint32_t site, bool parameter);
  void clear_watched();
  uint32_t watched_site(const at::Tensor& t) const;  // kNoSite if unknown
  uint32_t watched_storage(const at::Tensor& t) const;  // the same by memory: a view of a parameter counts
  // One pass over all gradients / parameters / buffers. [n_watched] records at most.
  // A gradient that was scanned before and changed since (clipping, unscaling) gets `phase`, a fresh one kPhaseBackward;
  // an unchanged one is not scanned again.
  void scan_grads(Phase phase);
  void scan_values(Phase phase);

 private:
  // What a record about a tensor on a device says before its numbers are there.
  void head(const at::Tensor& t, Record& rec);
  void record_all(const std::vector<at::Tensor>& tensors, std::vector<Record>& records);

  static uint64_t next_number() {
    static std::atomic<uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }

  std::atomic<uint64_t> last_id_{0};
  std::array<std::atomic<uint64_t>, 1024> bad_calls_{};
  mutable std::mutex watched_mutex_;
  std::vector<Watched> watched_;
  std::unordered_map<const void*, size_t> position_;  // in watched_, by TensorImpl
  std::unordered_map<const void*, uint32_t> storage_site_;
  std::unordered_map<uint32_t, Record> bad_values_;  // by site; device tensors only
  std::atomic<size_t> n_bad_values_{0};              // its size
  std::mutex traced_mutex_;
  std::unordered_map<uint32_t, std::pair<uint64_t, uint64_t>> traced_;  // site -> (batch, call)
  std::unordered_map<uint32_t, std::pair<uint64_t, TracedChild>> traced_children_;  // parent's site -> (batch, child)
};

}  // namespace nanscan
