// Op level on a device. When an op ends nobody knows whether its results are bad, so every call writes its record, and its
// results' statistics are launched before it. As the records come out of the ring, in the order of the program and with
// all numbers there, each call learns what it read and made; a healthy one is dropped here, a bad one looks like the CPU's.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "record/call_record.h"
#include "record/record.h"

namespace nanscan {

class LateCalls {
 public:
  // Appends to `out` what the judges are to see of records [n].
  void resolve(const Record* records, size_t n, std::vector<Record>& out);

  // Results whose call has not come.
  size_t waiting() const { return made_.size(); }

 private:
  static constexpr size_t kStatistics = 1 << 14;  // values whose numbers are remembered: 2 MiB, taken with the first
  static constexpr size_t kBadValues = 1 << 16;
  static constexpr size_t kWaiting = 1 << 12;

  void take_statistics(const Record& record);
  void take_call(const Record& record, std::vector<Record>& out);
  uint8_t bits_of_value(uint64_t value) const;
  void mark_bad(uint64_t value, uint8_t bits);
  const Record* statistics_of(uint64_t value) const;

  std::vector<Record> made_;        // results of calls whose own records come next
  std::vector<Record> statistics_;  // [kStatistics] by value modulo
  std::unordered_map<uint64_t, uint8_t> bad_;  // ValueBit of the bad values
  std::deque<uint64_t> bad_order_;
};

}  // namespace nanscan
