// What the ops at each place have made in the last steps, as one number per step: the largest finite |x|. Kept while
// everything is fine, so that a report can say whether a value grew into the fault or jumped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "record/record.h"

namespace nanscan {

// An op at a place of the program. The same line in two modules is two places.
struct OpPlace {
  uint32_t site;
  uint32_t op;
  uint32_t line;
};

class OpHistory {
 public:
  static constexpr size_t kSteps = 8;
  struct Past {
    uint64_t step;
    double absmax;
  };

  void note(const OpPlace& place, uint64_t step, const Record& made);
  // The steps before `step`, oldest first. Returns how many there are.
  size_t before(const OpPlace& place, uint64_t step, std::array<Past, kSteps>& past) const;

 private:
  struct Slot {
    uint64_t key = 0;
    uint64_t n = 0;  // steps ever noted
    std::array<Past, kSteps> past{};
  };
  static constexpr size_t kSlots = 1 << 12;  // 0.6 MiB, taken with the first; then a place takes over another one's
  static uint64_t key_of(const OpPlace& place);

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
};

}  // namespace nanscan
