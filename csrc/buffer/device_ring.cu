// The C entry points of scan/scan_cuda.h: memory, launches, and the host's end of the ring.
//
// It stands here and not under scan/: a ring is more than a scan, and buffer may include scan, not the other way round.
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>

#include "buffer/device_memory.h"
#include "buffer/launch.cuh"
#include "buffer/table_layout.cuh"

namespace nanscan::cuda {
namespace {

constexpr uint32_t kMaxCapacity = 1u << 24;     // 2 GiB of records
constexpr uint32_t kReplayCounters = 1u << 16;  // captured launches of a ring's life
constexpr Cut kAlone{kThreads, kInFlight, kMaxBlocks};

// Makes a device current for a scope: torch's thread may have another one.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    error_ = cudaGetDevice(&before_);
    if (error_ != cudaSuccess || before_ == device) return;
    error_ = cudaSetDevice(device);
    changed_ = error_ == cudaSuccess;
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_;
};

// What the ring has in pinned memory but for slots and stamps, whose number is the caller's.
struct Pinned {
  RingBoard board;
  uint64_t released[Tables::kSlots + 1];
  alignas(Tables::kAlign) char tables[Tables::kTotalBytes];
};

// On the device. Up to the partials it starts as zeros; the rest is written before it is read.
struct OnTheDevice {
  RingCursor cursor;
  unsigned long long replays[kReplayCounters];
  unsigned tickets[Areas::kCount];
  alignas(Tables::kAlign) MomentsWords partials[Areas::kCount][kMaxBlocks];
  alignas(Tables::kAlign) char tables[Tables::kTotalBytes];
};

uint64_t load_acquire(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

}  // namespace
}  // namespace nanscan::cuda

struct nanscan_ring {
  int device = 0;
  uint64_t capacity = 0;
  nanscan::Record* slots = nullptr;  // [capacity] pinned, like the two below
  uint64_t* stamps = nullptr;        // [capacity]
  nanscan::cuda::Pinned* pinned = nullptr;
  nanscan::cuda::OnTheDevice* memory = nullptr;
  cudaEvent_t turn = nullptr;  // the shared scratch area is free

  std::mutex launching;
  nanscan::cuda::Areas areas;
  nanscan::cuda::Tables tables;
  uint32_t n_replay_counters = 0;  // given out
  std::atomic<uint64_t> launched{0};

  std::mutex reading;
  uint64_t consumed = 0;  // records polled
  uint64_t seen = 0;      // records found published, consumed ones included
  uint64_t finished = 0;  // of these, the ones outside graphs

  nanscan::cuda::DeviceRing on_device() const {
    return {slots, stamps, &pinned->board, &memory->cursor, capacity};
  }
};

namespace nanscan::cuda {
namespace {

cudaError_t release(nanscan_ring& ring) {
  cudaError_t first = cudaSuccess;
  for (const cudaError_t error : {ring.turn != nullptr ? cudaEventDestroy(ring.turn) : cudaSuccess,
                                  cudaFree(ring.memory), cudaFreeHost(ring.pinned), cudaFreeHost(ring.stamps),
                                  cudaFreeHost(ring.slots)}) {
    if (first == cudaSuccess) first = error;
  }
  return first;
}

// Pinned memory of which the first n_zeros bytes are zero.
template <typename T>
cudaError_t pin(T*& memory, uint64_t n, size_t n_zeros) {
  const cudaError_t error = cudaHostAlloc(&memory, n * sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable);
  if (error == cudaSuccess) std::memset(static_cast<void*>(memory), 0, n_zeros);
  return error;
}

cudaError_t acquire(nanscan_ring& ring) {
  cudaError_t error = load_kernels();
  if (error == cudaSuccess) error = pin(ring.slots, ring.capacity, 0);
  if (error == cudaSuccess) error = pin(ring.stamps, ring.capacity, ring.capacity * sizeof(uint64_t));
  if (error == cudaSuccess) error = pin(ring.pinned, 1, offsetof(Pinned, tables));
  if (error == cudaSuccess) error = cudaMalloc(&ring.memory, sizeof(OnTheDevice));
  if (error == cudaSuccess) error = cudaMemset(ring.memory, 0, offsetof(OnTheDevice, partials));
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&ring.turn, cudaEventDisableTiming);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();  // the zeros are there before any stream looks
  return error;
}

// The id of the capture that the stream is in, 0 if in none.
cudaError_t capture_of(cudaStream_t stream, unsigned long long& id) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  id = 0;
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, &id);
  if (error != cudaSuccess) return error;
  if (status == cudaStreamCaptureStatusInvalidated) return cudaErrorStreamCaptureInvalidated;
  if (status == cudaStreamCaptureStatusNone) id = 0;
  return cudaSuccess;
}

// Under ring.launching, on its device.
cudaError_t scan_one_tensor(nanscan_ring& ring, const nanscan_tensor& tensor, const Record& header, cudaStream_t stream,
                            unsigned long long capture) {
  Launch launch{};
  if (!plan(tensor, kAlone, launch.work, launch.layout)) return cudaErrorInvalidValue;
  const int area = ring.areas.of(stream, capture);
  if (area == Areas::kNone) return cudaErrorLaunchOutOfResources;
  launch.header = header;
  launch.scratch = {&ring.memory->tickets[area], ring.memory->partials[area]};
  if (capture != 0) {
    if (ring.n_replay_counters == kReplayCounters) return cudaErrorLaunchOutOfResources;
    launch.replays = &ring.memory->replays[ring.n_replay_counters];
  }
  const bool shared = area == Areas::kShared;
  cudaError_t error = shared ? cudaStreamWaitEvent(stream, ring.turn, 0) : cudaSuccess;
  if (error == cudaSuccess) {
    error = launch_scan(launch.work.dtype, launch, ring.on_device(), launch.work.n_blocks, stream);
  }
  if (error != cudaSuccess) return error;
  if (capture != 0) {
    ring.n_replay_counters += 1;
  } else {
    ring.launched.fetch_add(1, std::memory_order_relaxed);
  }
  return shared ? cudaEventRecord(ring.turn, stream) : cudaSuccess;
}

// Under ring.launching, on its device: one copy, and one launch per dtype.
cudaError_t scan_table(nanscan_ring& ring, const nanscan_tensor* tensors, const Record* headers, uint32_t n,
                       const TableSize& size, const Lease& lease, cudaStream_t stream, unsigned long long* replays) {
  char* from = ring.pinned->tables + lease.offset;
  char* to = ring.memory->tables + lease.offset;
  const ByDType by = lay_out(tensors, headers, n, size, from, to);
  cudaError_t error = cudaMemcpyAsync(to, from, size.partials_at(n), cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) {
    ring.tables.give_back(lease);
    return error;
  }
  Launch launch{};
  launch.replays = replays;
  launch.table.layouts = reinterpret_cast<const Layout*>(to + size.layouts_at(n));
  launch.table.n_done = reinterpret_cast<unsigned*>(to + size.n_done_at(n));
  launch.table.released = &ring.pinned->released[lease.slot];
  launch.table.number = lease.number;
  launch.table.n_all = n;
  for (int t = 0; t < kNumDTypes && error == cudaSuccess; ++t) {
    launch.table.entries = reinterpret_cast<Entry*>(to) + by.begin[t];
    launch.table.n = by.begin[t + 1] - by.begin[t];
    if (launch.table.n == 0) continue;
    error = launch_scan(static_cast<uint8_t>(t), launch, ring.on_device(), by.n_blocks[t], stream);
  }
  return error;  // if it is one, the lease is lost: the copy may still be reading it
}

// Under ring.launching, on its device: the first `n` of the tensors, by a table or one by one.
cudaError_t scan_group(nanscan_ring& ring, const nanscan_tensor* tensors, const Record* headers, uint32_t n,
                       const TableSize& size, cudaStream_t stream, unsigned long long capture) {
  const auto released = [&ring](uint32_t slot) { return load_acquire(&ring.pinned->released[slot]); };
  const bool counter_left = capture == 0 || ring.n_replay_counters < kReplayCounters;
  Lease lease;
  if (!counter_left || !ring.tables.take(size.bytes(n), capture != 0, released, lease)) {
    for (uint32_t i = 0; i < n; ++i) {
      const cudaError_t error = scan_one_tensor(ring, tensors[i], headers[i], stream, capture);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
  unsigned long long* replays = capture != 0 ? &ring.memory->replays[ring.n_replay_counters] : nullptr;
  const cudaError_t error = scan_table(ring, tensors, headers, n, size, lease, stream, replays);
  if (error != cudaSuccess) return error;
  if (capture != 0) {
    ring.n_replay_counters += 1;
  } else {
    ring.launched.fetch_add(n, std::memory_order_relaxed);
  }
  return cudaSuccess;
}

cudaError_t scan_all(nanscan_ring& ring, const nanscan_tensor* tensors, const Record* headers, uint32_t n,
                     cudaStream_t stream) {
  for (uint32_t i = 0; i < n; ++i) {  // all or nothing: refuse before anything is launched
    Work work{};
    Layout layout{};
    if (!plan(tensors[i], kAmongMany, work, layout)) return cudaErrorInvalidValue;
  }
  const OnDevice on_device(ring.device);
  if (on_device.error() != cudaSuccess) return on_device.error();
  const std::lock_guard<std::mutex> lock(ring.launching);
  unsigned long long capture;
  cudaError_t error = capture_of(stream, capture);
  // Half of the memory at most, so that two calls' tables find room; what captures leave never comes back.
  const size_t max_bytes = capture != 0 ? Tables::kCapturedBytes / 2 : Tables::kBytes / 2;
  for (uint32_t done = 0; error == cudaSuccess && done < n;) {
    TableSize size;
    const uint32_t fit = measure(tensors + done, n - done, max_bytes, size);
    error = scan_group(ring, tensors + done, headers + done, fit, size, stream, capture);
    done += fit;
  }
  return error;
}

// Under ring.reading: looks at records published since.
void look(nanscan_ring& ring) {
  while (ring.seen - ring.consumed < ring.capacity) {
    const uint64_t at = ring.seen & (ring.capacity - 1);
    if (load_acquire(&ring.stamps[at]) != ring.seen + 1) return;
    ring.finished += (ring.slots[at].flags & kFlagReplay) == 0;
    ring.seen += 1;
  }
}

}  // namespace
}  // namespace nanscan::cuda

using nanscan::Record;
using namespace nanscan::cuda;

extern "C" {

int nanscan_cuda_abi(void) { return NANSCAN_CUDA_ABI; }

const char* nanscan_cuda_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

int nanscan_cuda_open(int device, uint32_t capacity, nanscan_ring** out) {
  if (out == nullptr || capacity > kMaxCapacity) return cudaErrorInvalidValue;
  *out = nullptr;
  const OnDevice on_device(device);
  if (on_device.error() != cudaSuccess) return on_device.error();
  auto ring = std::make_unique<nanscan_ring>();
  ring->device = device;
  for (ring->capacity = 2; ring->capacity < capacity;) ring->capacity <<= 1;
  const cudaError_t error = acquire(*ring);
  if (error != cudaSuccess) {
    release(*ring);
    return error;
  }
  *out = ring.release();
  return cudaSuccess;
}

int nanscan_cuda_close(nanscan_ring* ring) {
  if (ring == nullptr) return cudaSuccess;
  const std::unique_ptr<nanscan_ring> owned(ring);
  const OnDevice on_device(ring->device);
  if (on_device.error() != cudaSuccess) return on_device.error();
  const cudaError_t waited = cudaDeviceSynchronize();
  const cudaError_t released = release(*ring);
  return waited != cudaSuccess ? waited : released;
}

int nanscan_cuda_scan(nanscan_ring* ring, const nanscan_tensor* tensor, const nanscan_record* header, void* stream) {
  const OnDevice on_device(ring->device);
  if (on_device.error() != cudaSuccess) return on_device.error();
  const std::lock_guard<std::mutex> lock(ring->launching);
  unsigned long long capture;
  const cudaError_t error = capture_of(static_cast<cudaStream_t>(stream), capture);
  if (error != cudaSuccess) return error;
  return scan_one_tensor(*ring, *tensor, *reinterpret_cast<const Record*>(header), static_cast<cudaStream_t>(stream),
                         capture);
}

int nanscan_cuda_scan_many(nanscan_ring* ring, const nanscan_tensor* tensors, const nanscan_record* headers, uint32_t n,
                           void* stream) {
  return scan_all(*ring, tensors, reinterpret_cast<const Record*>(headers), n, static_cast<cudaStream_t>(stream));
}

int nanscan_cuda_poll(nanscan_ring* ring, nanscan_record* out, uint64_t* stamps, uint32_t max, uint32_t* n) {
  const std::lock_guard<std::mutex> lock(ring->reading);
  look(*ring);
  const uint64_t there = ring->seen - ring->consumed;
  *n = there < max ? static_cast<uint32_t>(there) : max;
  for (uint32_t i = 0; i < *n; ++i) {
    const uint64_t ticket = ring->consumed + i;
    std::memcpy(reinterpret_cast<Record*>(out) + i, &ring->slots[ticket & (ring->capacity - 1)], sizeof(Record));
    stamps[i] = ticket + 1;
  }
  ring->consumed += *n;
  __atomic_store_n(&ring->pinned->board.consumed, ring->consumed, __ATOMIC_RELEASE);
  return cudaSuccess;
}

int nanscan_cuda_flush(nanscan_ring* ring) {
  const OnDevice on_device(ring->device);
  return on_device.error() != cudaSuccess ? on_device.error() : cudaDeviceSynchronize();
}

int nanscan_cuda_counters(nanscan_ring* ring, uint64_t* launched, uint64_t* finished, uint64_t* dropped) {
  const std::lock_guard<std::mutex> lock(ring->reading);
  const uint64_t* lost = ring->pinned->board.dropped;
  look(*ring);
  const uint64_t outside = load_acquire(&lost[0]), replayed = load_acquire(&lost[1]);
  *finished = ring->finished + outside;
  *dropped = outside + replayed;
  *launched = ring->launched.load(std::memory_order_relaxed);
  return cudaSuccess;
}

int nanscan_cuda_capturing(void* stream, int* yes) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
  *yes = status != cudaStreamCaptureStatusNone;
  return error;
}

}  // extern "C"
