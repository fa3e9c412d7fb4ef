// Where launches get their memory: everything is taken when the ring is opened, and handed out under the ring's mutex.
// Offsets and bookkeeping only; no CUDA here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace nanscan::cuda {

// Scratch areas. Launches on one stream follow each other, so a stream has one area; a graph may be replayed on another
// stream than it was captured on, so each captured stream has one of its own, for good.
// A stream is known by its handle: one that is destroyed while its last scan runs, and whose handle the next stream
// gets, would share its area with that one. (torch never destroys the streams of its pool.)
class Areas {
 public:
  static constexpr int kStreams = 32;
  static constexpr int kCaptures = 32;
  static constexpr int kShared = kStreams + kCaptures;  // for streams that found none: they have to take turns
  static constexpr int kCount = kShared + 1;
  static constexpr int kNone = -1;

  // capture: the id of the capture that the stream is in, 0 if in none. kNone: no area is left for captures.
  int of(const void* stream, unsigned long long capture) {
    const bool captured = capture != 0;
    auto& keys = keys_[captured];
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == Key{stream, capture}) return static_cast<int>(i) + (captured ? kStreams : 0);
    }
    if (keys.size() == static_cast<size_t>(captured ? kCaptures : kStreams)) return captured ? kNone : kShared;
    keys.push_back({stream, capture});
    return static_cast<int>(keys.size()) - 1 + (captured ? kStreams : 0);
  }

 private:
  using Key = std::pair<const void*, unsigned long long>;
  std::array<std::vector<Key>, 2> keys_;  // [captured]
};

// A piece of the table memory, at the same offset in pinned and in device memory.
struct Lease {
  size_t offset;
  size_t bytes;
  uint32_t slot;    // whose word the device sets to `number` when it is done with the piece
  uint64_t number;  // of the lease, from 1
};

// Table memory: pieces come from the front and come back from the end, oldest first, once the device has released them.
// Captured tables are read again at every replay: theirs is a part that never comes back.
class Tables {
 public:
  static constexpr size_t kBytes = size_t{16} << 20;
  static constexpr size_t kCapturedBytes = size_t{4} << 20;
  static constexpr size_t kTotalBytes = kBytes + kCapturedBytes;
  static constexpr uint32_t kSlots = 64;  // tables under way; one more serves all captured ones, which nobody awaits
  static constexpr size_t kAlign = 256;

  // released: [kSlots] numbers as the device last wrote them, read by load(slot). False when there is no room now.
  template <typename LoadReleased>
  bool take(size_t bytes, bool captured, LoadReleased load, Lease& lease) {
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    if (captured) {
      if (bytes > kCapturedBytes - captured_) return false;
      lease = {kBytes + captured_, bytes, kSlots, 0};
      captured_ += bytes;
      return true;
    }
    while (!under_way_.empty() && load(under_way_.front().slot) == under_way_.front().number) under_way_.pop_front();
    if (under_way_.empty()) front_ = 0;
    if (under_way_.size() == kSlots) return false;
    size_t at = front_;
    if (!under_way_.empty()) {
      const size_t back = under_way_.front().offset;
      if (at <= back) {  // wrapped: the free part lies between. Never filled up, or full would look like empty
        if (bytes >= back - at) return false;
      } else if (bytes > kBytes - at) {
        at = 0;
        if (bytes >= back) return false;
      }
    }
    if (bytes > kBytes - at) return false;
    number_ += 1;
    lease = {at, bytes, static_cast<uint32_t>(number_ % kSlots), number_};
    under_way_.push_back(lease);
    front_ = at + bytes;
    return true;
  }

  // The lease that was taken last, of which nothing was launched.
  void give_back(const Lease& lease) {
    if (lease.number == 0) {
      captured_ -= lease.bytes;
      return;
    }
    under_way_.pop_back();
    front_ = lease.offset;
    number_ -= 1;
  }

 private:
  std::deque<Lease> under_way_;
  size_t front_ = 0;
  size_t captured_ = 0;
  uint64_t number_ = 0;
};

}  // namespace nanscan::cuda
