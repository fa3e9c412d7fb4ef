// LateCalls: what comes out of the ring of ops on a device, put together.
#include <cstdio>
#include <cstring>
#include <vector>

#include "hooks/late_calls.cpp"

using namespace nanscan;

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);    \
      return 1;                                                       \
    }                                                                 \
  } while (0)

namespace {

uint64_t seq = 0;

Record result(uint64_t call, bool bad) {
  Record rec{};
  rec.seq = ++seq;
  rec.call = call;
  rec.flags = kFlagLate | kFlagOp;
  rec.n = 4;
  rec.n_nan = bad ? 1 : 0;
  return rec;
}

Record call(uint64_t number, std::vector<uint64_t> reads = {}) {
  CallRecord rec{};
  rec.seq = ++seq;
  rec.call = number;
  rec.flags = kFlagCall | kFlagLate;
  for (const uint64_t value : reads) rec.inputs[rec.n_inputs++] = value << 8 | kValueLate;
  Record out;
  std::memcpy(&out, &rec, sizeof(out));
  return out;
}

std::vector<Record> resolve(LateCalls& calls, const std::vector<Record>& records) {
  std::vector<Record> out;
  calls.resolve(records.data(), records.size(), out);
  return out;
}

}  // namespace

int main() {
  LateCalls calls;
  CHECK(resolve(calls, {result(1, false), call(1)}).empty());  // healthy

  std::vector<Record> out = resolve(calls, {result(2, true), call(2, {1})});
  CHECK(out.size() == 3 && out[0].flags == kFlagCall && out[0].call == 2);
  CHECK(out[1].n_nan == 1 && out[2].flags == (kFlagInput | kFlagOp) && out[2].n_nan == 0);
  CHECK(out[0].seq == out[1].seq && out[0].seq == out[2].seq);  // the order of the ring is that of the numbers

  out = resolve(calls, {result(3, false), call(3, {2})});  // reads what went bad, and makes nothing bad
  CHECK(out.size() == 2 && (out[1].flags & kFlagBad) == 0 && out[1].n_nan == 1);

  // Two threads: results of both, then the calls. Neither loses what it made.
  out = resolve(calls, {result(4, true), result(5, true), call(4), call(5)});
  CHECK(out.size() == 4 && out[0].call == 4 && out[1].call == 4 && out[2].call == 5 && out[3].call == 5);
  out = resolve(calls, {result(6, true)});  // in pieces
  CHECK(out.empty() && resolve(calls, {result(7, false), call(7)}).empty());
  CHECK(resolve(calls, {call(6)}).size() == 2);

  // Results whose calls never come (a full ring, a graph's replays) do not pile up, and hide nothing later.
  for (uint64_t number = 100; number < 100000; ++number) resolve(calls, {result(number, true)});
  CHECK(calls.waiting() <= 4096);
  CHECK(resolve(calls, {result(200000, true), call(200000)}).size() == 2);
  return 0;
}
