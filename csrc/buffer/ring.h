// A bounded ring of records: many producers, one consumer at a time, no lock on the way in.
//
// Append takes a ticket (compare-and-swap on tail_), writes the slot's payload, then publishes it by a release store of
// the ticket into the slot's own seq. Drain reads slots in ticket order and stops at the first one not published yet,
// so records come out in the order of their tickets and never half written.
// When the ring is full the newest record is dropped and counted: the earliest records matter most here, and memory
// never grows. A dropped record takes no ticket: the sequence numbers that come out have no holes.
//
// A record whose numbers come later (a device has to compute them) reserves its slot, and so its place in the order, and
// is published when they are there: until then the drain waits at that slot without blocking anybody.
//
// Admitted races, all harmless:
// - append may find the ring full while a drain is just freeing slots; that record is then dropped and counted.
// - size(), dropped() and appended() are snapshots taken while others write.
// - a producer that dies between ticket and publication (a fork in that moment, a killed thread, a device that is lost)
//   blocks the drain at its slot for good. Children after a fork must not use the parent's ring.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "record/record.h"

namespace nanscan {

class Ring {
 public:
  // capacity_pow2: slots, rounded up to a power of two (at least 2). All memory is taken, and touched, here.
  explicit Ring(size_t capacity_pow2) : capacity_(round_up(capacity_pow2)), mask_(capacity_ - 1) {
    void* memory = ::operator new(capacity_ * sizeof(Record), std::align_val_t{kLine});
    std::memset(memory, 0, capacity_ * sizeof(Record));
    slots_.reset(static_cast<Record*>(memory));
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Copies the record in and gives it the next sequence number (record.seq is ignored). False when full: then the
  // record is gone and dropped() has grown by one. Any thread, lock-free.
  bool append(const Record& record) noexcept {
    const uint64_t seq = reserve();
    if (seq != 0) publish(seq, record);
    return seq != 0;
  }

  // The next sequence number and its slot, to be published later; 0 when full (counted as dropped).
  uint64_t reserve() noexcept {
    uint64_t ticket = tail_.load(std::memory_order_relaxed);
    for (;;) {
      // Acquire pairs with drain's release: the consumer's copy of the old payload happens before our overwrite.
      const uint64_t head = head_.load(std::memory_order_acquire);
      // Signed: others and a drain may have overtaken our stale ticket; then the swap below fails and retries.
      if (static_cast<int64_t>(ticket - head) >= static_cast<int64_t>(capacity_)) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
        return 0;
      }
      if (tail_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_relaxed)) return ticket + 1;
    }
  }

  // Fills the slot that reserve() gave (record.seq is ignored). Once for each.
  void publish(uint64_t seq, const Record& record) noexcept {
    Record& slot = slots_.get()[(seq - 1) & mask_];
    // Everything but seq, which a draining thread may be polling right now.
    std::memcpy(bytes(slot) + sizeof(slot.seq), bytes(record) + sizeof(record.seq), sizeof(Record) - sizeof(slot.seq));
    store_release(&slot.seq, seq);
  }

  // Copies up to max records to out, in sequence order, and frees their slots. Returns how many.
  size_t drain(Record* out /* [max] */, size_t max) noexcept {
    const std::lock_guard<std::mutex> lock(drain_mutex_);
    uint64_t head = head_.load(std::memory_order_relaxed);
    size_t n = 0;
    for (; n < max; ++n, ++head) {
      const Record& slot = slots_.get()[head & mask_];
      if (load_acquire(&slot.seq) != head + 1) break;  // not published yet, or nothing there
      std::memcpy(&out[n], &slot, sizeof(Record));
    }
    head_.store(head, std::memory_order_release);
    return n;
  }

  size_t capacity() const noexcept { return capacity_; }
  // Tickets taken and not drained: published or about to be.
  size_t size() const noexcept {
    const uint64_t head = head_.load(std::memory_order_acquire);  // first: tail never runs behind it
    return static_cast<size_t>(tail_.load(std::memory_order_acquire) - head);
  }
  uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }
  uint64_t drained() const noexcept { return head_.load(std::memory_order_acquire); }
  uint64_t appended() const noexcept { return tail_.load(std::memory_order_acquire); }

 private:
  static constexpr size_t kLine = 128;  // two cache lines: adjacent-line prefetch makes pairs of 64 share

  struct Free {
    void operator()(Record* slots) const { ::operator delete(slots, std::align_val_t{kLine}); }
  };

  static size_t round_up(size_t wanted) {
    size_t capacity = 2;
    while (capacity < wanted && capacity < (size_t{1} << 40)) capacity <<= 1;
    return capacity;
  }
  static char* bytes(Record& record) { return reinterpret_cast<char*>(&record); }
  static const char* bytes(const Record& record) { return reinterpret_cast<const char*>(&record); }
  // seq is a plain integer in a plain struct, touched atomically (std::atomic_ref is C++20).
  static void store_release(uint64_t* seq, uint64_t value) { __atomic_store_n(seq, value, __ATOMIC_RELEASE); }
  static uint64_t load_acquire(const uint64_t* seq) { return __atomic_load_n(seq, __ATOMIC_ACQUIRE); }

  const size_t capacity_;
  const uint64_t mask_;
  std::unique_ptr<Record, Free> slots_;  // [capacity_] records
  std::mutex drain_mutex_;
  alignas(kLine) std::atomic<uint64_t> tail_{0};  // tickets given out
  alignas(kLine) std::atomic<uint64_t> head_{0};  // tickets drained
  alignas(kLine) std::atomic<uint64_t> dropped_{0};
};

}  // namespace nanscan
