// The ring that kernels write to: slots in pinned host memory that the device sees, a cursor in device memory.
//
// As buffer/ring.h: a record takes a ticket, is written, and is published by its stamp, ticket + 1; when the ring is
// full the newest record is dropped and counted, and takes no ticket. The host reads slots and stamps as plain memory;
// it never asks the device anything.
//
// Admitted race: a block may find the ring full while the host is just freeing slots; its record is then dropped.
#pragma once

#include "scan/accumulate.h"
#include "scan/cuda/device.cuh"

namespace nanscan::cuda {

// Device memory.
struct RingCursor {
  unsigned long long tickets;     // given out
  unsigned long long freed;       // the host's `consumed` as last looked up: a read over the bus takes a microsecond
  unsigned long long dropped[2];  // in graph replays: [1]
};

// Pinned host memory; each word has one writer.
struct RingBoard {
  uint64_t consumed;    // the host's: records it has taken
  uint64_t dropped[2];  // the device's copy of RingCursor's
};

struct DeviceRing {
  Record* slots;       // [capacity] pinned
  uint64_t* stamps;    // [capacity] pinned; ticket + 1 of the record in the slot
  RingBoard* board;    // pinned
  RingCursor* cursor;  // device
  uint64_t capacity;   // a power of two

  // One thread calls it, once per record.
  NANSCAN_D void append(const Record& record) const {
    unsigned long long ticket = load_shared_word(&cursor->tickets);
    for (;;) {
      if (ticket - load_shared_word(&cursor->freed) >= capacity) {
        const unsigned long long consumed = load_mapped(&board->consumed);
        if (ticket - consumed >= capacity) {
          // A stale ticket is behind what was consumed meanwhile; then the difference wraps, and a fresh one decides.
          const unsigned long long now = load_shared_word(&cursor->tickets);
          if (now == ticket) return drop((record.flags & kFlagReplay) != 0);
          ticket = now;
          continue;
        }
        atomicMax(&cursor->freed, consumed);
      }
      const unsigned long long seen = atomicCAS(&cursor->tickets, ticket, ticket + 1);
      if (seen == ticket) break;
      ticket = seen;
    }
    const uint64_t at = ticket & (capacity - 1);
    slots[at] = record;
    __threadfence_system();  // the record is in the host's memory before its stamp
    store_mapped(&stamps[at], ticket + 1);
  }

 private:
  // Atomics on host memory are not atomic for the host, so the count lives on the device and is copied out. Whoever
  // finds that it grew after his copy copies again: the last copy is the whole count.
  NANSCAN_D void drop(bool replay) const {
    unsigned long long* count = &cursor->dropped[replay];
    unsigned long long copied = atomicAdd(count, 1ull) + 1;
    for (;;) {
      store_mapped(&board->dropped[replay], copied);
      __threadfence_system();
      const unsigned long long now = load_shared_word(count);
      if (now == copied) return;
      copied = now;
    }
  }
};

}  // namespace nanscan::cuda
