// The ring on one thread: order, wrap-around, overflow, partial drains.
#include <cstdio>
#include <vector>

#include "buffer/ring.h"

using nanscan::Record;
using nanscan::Ring;

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);    \
      return 1;                                                       \
    }                                                                 \
  } while (0)

int main() {
  CHECK(Ring(0).capacity() == 2);
  CHECK(Ring(5).capacity() == 8);
  CHECK(Ring(64).capacity() == 64);

  Ring ring(4);
  std::vector<Record> out(10);
  CHECK(ring.drain(out.data(), 10) == 0);
  CHECK(ring.size() == 0);

  Record record{};
  for (uint64_t i = 1; i <= 6; ++i) {  // WHEN six come to four slots
    record.n = i;
    record.seq = 999;  // is not the caller's to choose
    CHECK(ring.append(record) == (i <= 4));
  }
  CHECK(ring.size() == 4 && ring.dropped() == 2 && ring.appended() == 4);
  CHECK(ring.drain(out.data(), 3) == 3);  // THEN the earliest are there, in order
  for (uint64_t i = 0; i < 3; ++i) CHECK(out[i].seq == i + 1 && out[i].n == i + 1);

  record.n = 7;
  CHECK(ring.append(record));  // sequence numbers have no hole where records were dropped
  CHECK(ring.drain(out.data(), 10) == 2);
  CHECK(out[0].seq == 4 && out[0].n == 4 && out[1].seq == 5 && out[1].n == 7);

  for (uint64_t lap = 0; lap < 1000; ++lap) {  // many times around
    for (uint64_t i = 0; i < 3; ++i) {
      record.n = 3 * lap + i;
      CHECK(ring.append(record));
    }
    CHECK(ring.drain(out.data(), 10) == 3);
    for (uint64_t i = 0; i < 3; ++i) CHECK(out[i].n == 3 * lap + i && out[i].seq == 6 + 3 * lap + i);
  }
  CHECK(ring.dropped() == 2 && ring.appended() == 3005 && ring.size() == 0);

  // A reserved slot keeps its place, and what comes later waits behind it.
  const uint64_t first = ring.reserve();
  record.n = 20;
  CHECK(first == 3006 && ring.append(record));
  const uint64_t third = ring.reserve();
  CHECK(ring.drain(out.data(), 10) == 0 && ring.size() == 3);
  record.n = 30;
  ring.publish(third, record);
  CHECK(ring.drain(out.data(), 10) == 0);
  record.n = 10;
  ring.publish(first, record);
  CHECK(ring.drain(out.data(), 10) == 3);
  CHECK(out[0].n == 10 && out[1].n == 20 && out[2].n == 30 && out[2].seq == 3008);
  for (int i = 0; i < 4; ++i) CHECK(ring.reserve() != 0);
  CHECK(ring.reserve() == 0 && ring.dropped() == 3);
  return 0;
}
