// Producers hammer a small ring while a consumer drains it: no record lost, torn, repeated or out of order, and every
// refusal counted. Usage: ring_stress THREADS RECORDS_EACH CAPACITY
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "buffer/ring.h"

using nanscan::Record;
using nanscan::Ring;

namespace {

// A checksum over every field but seq, kept in n_zero.
uint64_t checksum(Record record) {
  record.seq = 0;
  record.n_zero = 0;
  uint64_t words[16], sum = 1469598103934665603u;
  memcpy(words, &record, sizeof(record));
  for (uint64_t word : words) sum = (sum ^ word) * 1099511628211u;
  return sum;
}

Record made_by(uint64_t thread, uint64_t i) {
  Record record{};
  record.call = thread;
  record.step = i;
  record.site = static_cast<uint32_t>(i * 2654435761u);
  record.flags = static_cast<uint16_t>(i);
  record.n = i * i;
  record.n_nan = thread * 77;
  record.mean = static_cast<double>(i) / 3.0;
  record.first_bad = -static_cast<int64_t>(i);
  record.shape = static_cast<uint32_t>(thread);
  record.phase = static_cast<uint8_t>(thread);
  record.n_zero = checksum(record);
  return record;
}

int fail(const char* what, uint64_t found, uint64_t expected) {
  std::fprintf(stderr, "%s: found %" PRIu64 ", expected %" PRIu64 "\n", what, found, expected);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t n_threads = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 8;
  const uint64_t n_each = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 20000;
  Ring ring(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 256);

  std::vector<uint64_t> refused(n_threads, 0);
  std::vector<std::vector<bool>> accepted(n_threads);
  std::atomic<uint64_t> running{n_threads};
  std::vector<std::thread> producers;
  for (uint64_t t = 0; t < n_threads; ++t) {
    producers.emplace_back([&, t] {
      for (uint64_t i = 0; i < n_each; ++i) {
        const bool in = ring.append(made_by(t, i));
        accepted[t].push_back(in);
        refused[t] += !in;
        if (!in) std::this_thread::yield();
      }
      running.fetch_sub(1);
    });
  }

  std::vector<std::vector<bool>> seen(n_threads, std::vector<bool>(n_each, false));
  std::vector<uint64_t> next(n_threads, 0);
  uint64_t n_seen = 0, last_seq = 0;
  std::vector<Record> out(100);
  for (bool last_round = false;;) {
    const size_t n = ring.drain(out.data(), out.size());
    for (size_t k = 0; k < n; ++k) {
      const Record& record = out[k];
      if (record.seq != last_seq + 1) return fail("sequence number", record.seq, last_seq + 1);
      last_seq = record.seq;
      if (record.n_zero != checksum(record)) return fail("torn record, seq", record.seq, 0);
      if (record.call >= n_threads || record.step >= n_each) return fail("unknown producer", record.call, 0);
      if (seen[record.call][record.step]) return fail("record twice", record.step, 0);
      if (record.step < next[record.call]) return fail("a producer out of order", record.step, next[record.call]);
      next[record.call] = record.step + 1;
      seen[record.call][record.step] = true;
    }
    n_seen += n;
    if (n == 0 && last_round) break;
    if (n == 0) {
      last_round = running.load() == 0;
      std::this_thread::yield();
    }
  }
  for (std::thread& producer : producers) producer.join();

  uint64_t n_refused = 0;
  for (uint64_t t = 0; t < n_threads; ++t) {
    n_refused += refused[t];
    for (uint64_t i = 0; i < n_each; ++i) {
      if (accepted[t][i] != seen[t][i]) return fail("record lost or invented, thread", t, i);
    }
  }
  if (n_seen + n_refused != n_threads * n_each) return fail("records", n_seen + n_refused, n_threads * n_each);
  if (ring.dropped() != n_refused) return fail("dropped()", ring.dropped(), n_refused);
  if (ring.appended() != n_seen) return fail("appended()", ring.appended(), n_seen);
  if (ring.size() != 0) return fail("size()", ring.size(), 0);
  std::printf("seen %" PRIu64 " dropped %" PRIu64 "\n", n_seen, n_refused);
  return 0;
}
