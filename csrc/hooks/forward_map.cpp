#include "hooks/forward_map.h"

#include <ATen/record_function.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace nanscan {
namespace {

constexpr size_t kEntries = 1 << 16;  // nodes remembered per thread: 2.5 MiB, taken when the thread runs its first op

struct Entry {
  int64_t seq = -1;
  ForwardOp op;
};

struct Ring {
  std::mutex mutex;  // the engine may read from another thread
  std::vector<Entry> entries = std::vector<Entry>(kEntries);
};

std::mutex rings_mutex;
std::unordered_map<uint64_t, std::weak_ptr<Ring>> rings;

Ring& own_ring() {
  static thread_local std::shared_ptr<Ring> ring = [] {
    auto fresh = std::make_shared<Ring>();
    std::lock_guard<std::mutex> lock(rings_mutex);
    rings[at::RecordFunction::currentThreadId()] = fresh;
    return fresh;
  }();
  return *ring;
}

}  // namespace

void note_forward(int64_t first, int64_t last, const ForwardOp& op) {
  Ring& ring = own_ring();
  std::lock_guard<std::mutex> lock(ring.mutex);
  for (int64_t seq = first; seq < last; ++seq) ring.entries[static_cast<size_t>(seq) % kEntries] = {seq, op};
}

bool find_forward(uint64_t thread, int64_t seq, ForwardOp& op) {
  if (seq < 0) return false;
  std::shared_ptr<Ring> ring;
  {
    std::lock_guard<std::mutex> lock(rings_mutex);
    const auto it = rings.find(thread);
    if (it != rings.end()) ring = it->second.lock();
  }
  if (!ring) return false;
  std::lock_guard<std::mutex> lock(ring->mutex);
  const Entry& entry = ring->entries[static_cast<size_t>(seq) % kEntries];
  if (entry.seq != seq) return false;
  op = entry.op;
  return true;
}

}  // namespace nanscan
