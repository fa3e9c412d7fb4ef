#include "hooks/late_calls.h"

#include <cstring>

namespace nanscan {

void LateCalls::resolve(const Record* records, size_t n, std::vector<Record>& out) {
  for (size_t i = 0; i < n; ++i) {
    const Record& record = records[i];
    if (!(record.flags & kFlagLate)) {
      out.push_back(record);
    } else if (record.flags & kFlagCall) {
      take_call(record, out);
    } else {
      take_statistics(record);
    }
  }
}

// Of a result: it waits for its call. Of memory that no call wrote: known under an id of its own.
void LateCalls::take_statistics(const Record& record) {
  if (statistics_.empty()) statistics_.resize(kStatistics);
  if (!(record.flags & kFlagInput)) {
    if (made_.size() >= kWaiting) made_.clear();  // their calls were dropped, or a graph replays what none belongs to
    made_.push_back(record);
    if (statistics_of(record.call) != nullptr && record.output_index != 0) return;
  } else if (const uint8_t bits = bits_of(record)) {
    mark_bad(record.call, bits | (record.flags & kFlagKnown ? kValueUninit : kValueOutside));
  }
  statistics_[record.call % kStatistics] = record;
}

void LateCalls::take_call(const Record& record, std::vector<Record>& out) {
  CallRecord call;
  std::memcpy(&call, &record, sizeof(call));
  call.flags &= static_cast<uint16_t>(~kFlagLate);
  uint8_t made_bits = call.output_bits;
  std::vector<Record> made, others;  // of other threads' calls, whose own records come later
  for (const Record& result : made_) {
    if (result.call != call.call) {
      others.push_back(result);
    } else if (!(result.flags & kFlagKnown) && bits_of(result)) {
      made_bits |= bits_of(result);
      made.push_back(result);
    }
  }
  made_ = std::move(others);

  // What it read, bad ones first; what is left of a storage that it wrote a part of counts as made.
  uint64_t bad[kMaxCallInputs], rest[kMaxCallInputs], ordinals[kMaxCallInputs];
  uint32_t n_bad = 0, n_rest = 0, n_read = 0;
  for (uint32_t i = 0; i < call.n_inputs; ++i) {
    uint64_t value = call.inputs[i] >> 8;
    uint8_t bits = static_cast<uint8_t>(call.inputs[i]);
    const bool remains = (value & kRestOfStorage) != 0;
    value &= ~kRestOfStorage;
    if (bits & kValueLate) bits = static_cast<uint8_t>((bits & ~kValueLate) | bits_of_value(value));
    if (remains) made_bits |= bits & kBadBits;
    else ordinals[n_read++] = value;
    if (!(bits & kBadBits)) bits &= kValueParam;
    (bits & kBadBits ? bad[n_bad++] : rest[n_rest++]) = value << 8 | bits;
  }
  if (!(made_bits & kBadBits) && n_bad == 0) return;
  std::memcpy(call.inputs, bad, n_bad * sizeof(uint64_t));
  std::memcpy(call.inputs + n_bad, rest, n_rest * sizeof(uint64_t));
  call.output_bits = made_bits;
  if (made_bits & kBadBits) mark_bad(call.call, made_bits & kBadBits);

  // One sequence number for all of it: the order of the ring stays that of the numbers.
  out.emplace_back();
  std::memcpy(&out.back(), &call, sizeof(call));
  for (Record& result : made) {
    result.flags &= static_cast<uint16_t>(~kFlagLate);
    result.seq = call.seq;
    out.push_back(result);
  }
  for (uint32_t i = 0; i < n_read; ++i) {
    const Record* known = statistics_of(ordinals[i]);
    if (known == nullptr) continue;
    Record input = *known;
    input.seq = call.seq;
    input.step = call.step;
    input.call = call.call;
    input.flags = kFlagInput | kFlagOp | (known->flags & kFlagBad);
    input.output_index = static_cast<uint16_t>(i);
    input.phase = call.phase;
    out.push_back(input);
  }
}

uint8_t LateCalls::bits_of_value(uint64_t value) const {
  const auto found = bad_.find(value);
  return found == bad_.end() ? 0 : found->second;
}

void LateCalls::mark_bad(uint64_t value, uint8_t bits) {
  const auto [it, fresh] = bad_.try_emplace(value, bits);
  if (!fresh) {
    it->second |= bits;
    return;
  }
  bad_order_.push_back(value);
  if (bad_order_.size() > kBadValues) {
    bad_.erase(bad_order_.front());
    bad_order_.pop_front();
  }
}

const Record* LateCalls::statistics_of(uint64_t value) const {
  if (statistics_.empty()) return nullptr;
  const Record& record = statistics_[value % kStatistics];
  return record.call == value && value != 0 ? &record : nullptr;
}

}  // namespace nanscan
