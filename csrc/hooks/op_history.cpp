#include "hooks/op_history.h"

#include <algorithm>
#include <cmath>

namespace nanscan {

uint64_t OpHistory::key_of(const OpPlace& place) {
  uint64_t key = (static_cast<uint64_t>(place.site) << 32) ^ (static_cast<uint64_t>(place.op) << 16) ^ place.line;
  key ^= key >> 31;
  key *= 0x9E3779B97F4A7C15ull;
  return (key ^ key >> 29) | 1;  // 0 is a free slot
}

void OpHistory::note(const OpPlace& place, uint64_t step, const Record& made) {
  if (!(made.min <= made.max)) return;  // nothing finite
  const double absmax = std::max(std::abs(made.min), std::abs(made.max));
  const uint64_t key = key_of(place);
  std::lock_guard<std::mutex> lock(mutex_);
  if (slots_.empty()) slots_.resize(kSlots);
  Slot& slot = slots_[key >> 1 & (kSlots - 1)];
  if (slot.key != key) {
    slot.key = key;
    slot.n = 0;
  }
  Past& last = slot.past[(slot.n + kSteps - 1) % kSteps];
  if (slot.n > 0 && last.step == step) {
    last.absmax = std::max(last.absmax, absmax);
    return;
  }
  slot.past[slot.n++ % kSteps] = {step, absmax};
}

size_t OpHistory::before(const OpPlace& place, uint64_t step, std::array<Past, kSteps>& past) const {
  const uint64_t key = key_of(place);
  std::lock_guard<std::mutex> lock(mutex_);
  if (slots_.empty()) return 0;
  const Slot& slot = slots_[key >> 1 & (kSlots - 1)];
  if (slot.key != key) return 0;
  size_t n = 0;
  for (uint64_t i = slot.n > kSteps ? slot.n - kSteps : 0; i < slot.n; ++i) {
    const Past& one = slot.past[i % kSteps];
    if (one.step < step) past[n++] = one;
  }
  return n;
}

}  // namespace nanscan
