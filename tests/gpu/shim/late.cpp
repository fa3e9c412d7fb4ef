// The stand-in as tests of the host side want it: a scan reads its tensor at once (memory of the CPU is reused as soon as
// torch frees it, and no stream keeps the order), and only its record is late. Held records are let go when the test says
// so, picking streams at random; in a stream the order stays.
//
// Compiled together with the library's source, whose entry points are renamed to inner_* by the command line.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "record/record.h"
#include "scan/scan_cuda.h"

using nanscan::Record;

extern "C" {
int inner_open(int device, uint32_t capacity, nanscan_ring** out);
int inner_close(nanscan_ring* ring);
int inner_scan(nanscan_ring* ring, const nanscan_tensor* tensor, const nanscan_record* header, void* stream);
int inner_scan_many(nanscan_ring* ring, const nanscan_tensor* tensors, const nanscan_record* headers, uint32_t n, void* stream);
int inner_poll(nanscan_ring* ring, nanscan_record* out, uint64_t* stamps, uint32_t max, uint32_t* n);
int inner_counters(nanscan_ring* ring, uint64_t* launched, uint64_t* finished, uint64_t* dropped);
uint32_t nanscan_standin_run(uint64_t seed, uint32_t max_launches);
int nanscan_standin_replay(void* stream);
}

namespace {

struct Held {
  std::map<void*, std::deque<Record>> streams;
  std::deque<Record> ready;
  uint64_t stamps = 0;
};

std::mutex mutex;
std::map<nanscan_ring*, Held> rings;
uint32_t fail_in = 0;  // launches until one fails; 0: none does
bool lost = false;     // then all fail after it, and what is held never comes
uint64_t n_launches = 0;

// Runs what was launched, and holds what came of it.
void collect(nanscan_ring* ring, void* stream) {
  nanscan_standin_run(1, ~0u);
  std::vector<Record> out(256);
  std::vector<uint64_t> stamps(out.size());
  for (uint32_t n = 1; n != 0;) {
    inner_poll(ring, reinterpret_cast<nanscan_record*>(out.data()), stamps.data(), static_cast<uint32_t>(out.size()), &n);
    auto& held = rings[ring].streams[stream];
    held.insert(held.end(), out.begin(), out.begin() + n);
  }
}

bool fails() {
  ++n_launches;
  if (lost && fail_in == 1) return true;  // stays so
  return fail_in != 0 && --fail_in == 0;
}

uint64_t held_of(const Held& ring) {
  uint64_t n = 0;
  for (const auto& [_, records] : ring.streams) {
    n += std::count_if(records.begin(), records.end(), [](const Record& r) { return !(r.flags & nanscan::kFlagReplay); });
  }
  return n;
}

}  // namespace

extern "C" {

NANSCAN_CUDA_API int nanscan_cuda_open(int device, uint32_t capacity, nanscan_ring** out) { return inner_open(device, capacity, out); }

NANSCAN_CUDA_API int nanscan_cuda_close(nanscan_ring* ring) {
  const std::lock_guard<std::mutex> lock(mutex);
  rings.erase(ring);
  return inner_close(ring);
}

NANSCAN_CUDA_API int nanscan_cuda_scan(nanscan_ring* ring, const nanscan_tensor* tensor, const nanscan_record* header, void* stream) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (fails()) return 999;
  const int code = inner_scan(ring, tensor, header, stream);
  collect(ring, stream);
  return code;
}

NANSCAN_CUDA_API int nanscan_cuda_scan_many(nanscan_ring* ring, const nanscan_tensor* tensors, const nanscan_record* headers, uint32_t n,
                                            void* stream) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (fails()) return 999;
  const int code = inner_scan_many(ring, tensors, headers, n, stream);
  collect(ring, stream);
  return code;
}

NANSCAN_CUDA_API int nanscan_cuda_poll(nanscan_ring* ring, nanscan_record* out, uint64_t* stamps, uint32_t max, uint32_t* n) {
  const std::lock_guard<std::mutex> lock(mutex);
  Held& held = rings[ring];
  for (*n = 0; *n < max && !held.ready.empty(); ++*n) {
    std::memcpy(reinterpret_cast<Record*>(out) + *n, &held.ready.front(), sizeof(Record));
    stamps[*n] = ++held.stamps;
    held.ready.pop_front();
  }
  return 0;
}

NANSCAN_CUDA_API int nanscan_cuda_flush(nanscan_ring* ring) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (lost && fail_in == 1) return 999;
  for (auto& [_, records] : rings[ring].streams) {
    rings[ring].ready.insert(rings[ring].ready.end(), records.begin(), records.end());
    records.clear();
  }
  return 0;
}

NANSCAN_CUDA_API int nanscan_cuda_counters(nanscan_ring* ring, uint64_t* launched, uint64_t* finished, uint64_t* dropped) {
  const std::lock_guard<std::mutex> lock(mutex);
  const int code = inner_counters(ring, launched, finished, dropped);
  *finished -= held_of(rings[ring]);
  return code;
}

// Lets up to max_records of every ring go; returns how many.
NANSCAN_CUDA_API uint32_t nanscan_late_release(uint64_t seed, uint32_t max_records) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::mt19937_64 random(seed);
  uint32_t n = 0;
  for (auto& [_, ring] : rings) {
    for (uint32_t left = max_records; left > 0; --left, ++n) {
      std::vector<std::deque<Record>*> some;
      for (auto& [stream, records] : ring.streams) {
        if (!records.empty()) some.push_back(&records);
      }
      if (some.empty()) break;
      auto& records = *some[random() % some.size()];
      ring.ready.push_back(records.front());
      records.pop_front();
    }
  }
  return n;
}

NANSCAN_CUDA_API int nanscan_late_replay(void* stream) {
  const std::lock_guard<std::mutex> lock(mutex);
  const int code = nanscan_standin_replay(stream);
  for (auto& [ring, _] : rings) collect(ring, stream);
  return code;
}

// The n-th launch from now fails; 0: none does.
NANSCAN_CUDA_API void nanscan_late_fail(uint32_t n) {
  const std::lock_guard<std::mutex> lock(mutex);
  fail_in = n;
  lost = false;
}

// From the n-th launch on, all fail, and so does every flush: the device is gone.
NANSCAN_CUDA_API void nanscan_late_lose(uint32_t n) {
  const std::lock_guard<std::mutex> lock(mutex);
  fail_in = n;
  lost = true;
}

NANSCAN_CUDA_API uint64_t nanscan_late_launches(void) {
  const std::lock_guard<std::mutex> lock(mutex);
  return n_launches;
}
}
