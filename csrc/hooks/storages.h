// What is known of every value at op level. A value is (weak reference to a StorageImpl, our own write epoch, geometry):
// torch's version counter does not identify one, since several ops return a storage first seen as zeros, and fused
// updates write without raising it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "record/call_record.h"
#include "record/record.h"
#include "scan/scan.h"

namespace nanscan {

// Does the address point into this memory? Not into one that is on another device, or that torch lets nobody look at.
inline bool contains(const c10::StorageImpl& storage, const void* address) noexcept {
  try {
    if (!storage.device().is_cpu()) return false;
    const auto* begin = static_cast<const char*>(storage.data());
    return address >= begin && address < begin + storage.nbytes();
  } catch (const std::exception&) {
    return false;
  }
}

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// The state of a tensor as it is read: which value its memory holds, and what is in it (ValueBit).
struct ValueState {
  uint64_t value = 0;
  uint8_t bits = 0;
  bool scanned_now = false;
};

// One storage. `bits` and `whole` say what is known of all of it; one geometry is kept besides, since a partly bad
// storage is mostly read through the same view again and again.
struct StorageState {
  WeakStorage ref;
  uint64_t epoch = 0;
  uint64_t value = 0;      // call that wrote it last; for memory nobody wrote, an id of its own
  uint8_t bits = 0;
  c10::ScalarType dtype;   // of the tensor it was last seen through
  bool whole = false;      // every element was seen since the last write that could have changed it
  uint64_t geometry = 0;   // hash of the view below, 0 = none
  uint8_t geometry_bits = 0;
  uint32_t site = 0xFFFFFFFFu;  // where it was last seen clean
  uint32_t line = 0;

  StorageState(WeakStorage ref, c10::ScalarType dtype) : ref(std::move(ref)), dtype(dtype) {}
};

class Storages {
 public:
  // State of `t` before it is read. Scans what has not been seen yet; new_value is the id given to memory that no
  // observed call wrote.
  ValueState read(const at::Tensor& t, uint64_t new_value);
  // The same on a device, where nothing can be looked at: which value it is. scanned_now: of one that no observed call
  // made, and that the caller has to launch a scan of, under the id that is returned.
  ValueState read_late(const at::Tensor& t, uint64_t new_value);
  // Whether anything is known of this memory.
  bool knows(const at::Tensor& t) const;
  // An observed call wrote `t` on a device. Returns the value that the rest of the storage holds, 0 if there is none.
  uint64_t write_late(const at::Tensor& t, uint64_t call, uint32_t site, uint32_t line);
  // An observed call wrote `t`, and left `bits` there. The rest of the storage keeps what it had.
  void write(const at::Tensor& t, uint64_t call, uint8_t bits, uint32_t site, uint32_t line);
  // A factory returned memory that nobody has filled.
  void mark_uninitialised(const at::Tensor& t, uint64_t call, uint32_t site, uint32_t line);
  // The memory of `t` was filled by somebody whom nobody saw: nothing is known of it from here on.
  void forget(const at::Tensor& t);
  // Where the memory of `t` was last written or seen, for "finite when last written at".
  bool last_seen(const at::Tensor& t, uint32_t& site, uint32_t& line) const;
  // After a rescan found `t` bad though it was known clean.
  void set_changed(const at::Tensor& t, uint64_t value, uint8_t bits);
  // The live storage that this address points into, flat and whole; undefined if none is known.
  at::Tensor containing(const void* address) const;
  // Drops entries of dead storages: called at step boundaries, so that memory follows what is alive.
  void sweep();
  size_t size() const;
  void clear();

 private:
  StorageState* find(const c10::StorageImpl* impl);
  StorageState& insert(const at::Tensor& t);

  mutable std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, StorageState> states_;
  size_t sweep_at_ = 4096;
};

}  // namespace nanscan
