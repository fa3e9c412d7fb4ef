#include "hooks/torch_device.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "buffer/device_library.h"
#include "hooks/kernel_call.h"
#include "hooks/torch_ring.h"

namespace nanscan {
namespace {

enum Code { kDone = 0, kFailed, kCaptured };

bool stand_in = false;
thread_local std::string last_failure;  // of this thread's last call
std::mutex rings_mutex;
std::vector<TorchRing*> rings;

TorchRing& of(nanscan_ring* ring) { return *reinterpret_cast<TorchRing*>(ring); }

// No exception crosses the entry points.
template <typename F>
int guarded(const F& f) {
  try {
    f();
    return kDone;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    last_failure = text.substr(0, std::min<size_t>(text.find('\n'), 300));
  } catch (...) {
    last_failure = "of no kind that is known";
  }
  return kFailed;
}

int abi() { return NANSCAN_CUDA_ABI; }

const char* error(int code) { return code == kCaptured ? "a graph is being captured" : last_failure.c_str(); }

int open(int device, uint32_t capacity, nanscan_ring** out) {
  const c10::Device place = stand_in ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  return guarded([&] {
    auto ring = std::make_unique<TorchRing>(place, capacity);
    const std::lock_guard<std::mutex> lock(rings_mutex);
    rings.push_back(ring.get());
    *out = reinterpret_cast<nanscan_ring*>(ring.release());
  });
}

int close(nanscan_ring* ring) {
  {
    const std::lock_guard<std::mutex> lock(rings_mutex);
    rings.erase(std::find(rings.begin(), rings.end(), &of(ring)));
  }
  // Copies that are under way have their memory for as long as they need it: the pinned allocator sees to that.
  return guarded([&] { delete &of(ring); });
}

int scan_many(nanscan_ring* ring, const nanscan_tensor* tensors, const nanscan_record* headers, uint32_t n, void* stream) {
  if (of(ring).captures() || (stand_in && reinterpret_cast<uintptr_t>(stream) == kCapturing)) return kCaptured;
  return guarded([&] {
    std::vector<Record> records(reinterpret_cast<const Record*>(headers), reinterpret_cast<const Record*>(headers) + n);
    for (uint32_t i = 0; i < n; ++i) records[i].dtype = static_cast<uint16_t>(tensors[i].dtype);
    of(ring).scan(tensors, records.data(), n, stream);
  });
}

int scan(nanscan_ring* ring, const nanscan_tensor* tensor, const nanscan_record* header, void* stream) {
  return scan_many(ring, tensor, header, 1, stream);
}

int poll(nanscan_ring* ring, nanscan_record* out, uint64_t* stamps, uint32_t max, uint32_t* n) {
  *n = 0;
  return guarded([&] { *n = of(ring).poll(reinterpret_cast<Record*>(out), stamps, max); });
}

int flush(nanscan_ring* ring) {
  return guarded([&] { of(ring).flush(); });
}

int counters(nanscan_ring* ring, uint64_t* launched, uint64_t* finished, uint64_t* dropped) {
  of(ring).counters(*launched, *finished, *dropped);
  return kDone;
}

// The stream's own device is not told, so each of ours is asked whether it is the current one there. A stream that is
// nobody's current one is not capturing: what is captured goes to the current stream.
int capturing(void* stream, int* yes) {
  *yes = 0;
  if (stand_in) {
    *yes = reinterpret_cast<uintptr_t>(stream) == kCapturing;
    return kDone;
  }
  return guarded([&] {
    const std::lock_guard<std::mutex> lock(rings_mutex);
    for (const TorchRing* ring : rings) {
      const c10::Stream current = ring->stream();
      if (current.native_handle() == stream && is_capturing(current)) *yes = 1;
    }
  });
}

}  // namespace

void use_torch_device(PyObject* launch, bool only_kernel, bool cpu) {
  if (!cpu && !tells_capture<c10::Stream>()) {
    throw std::runtime_error("this torch does not tell whether a stream captures a graph (2.13 does)");
  }
  DeviceLibrary library{abi, error, open, close, scan, scan_many, poll, flush, counters, capturing};
  library.stand_in = cpu;
  library.unlocked = true;
  if (device_library() == nullptr) {  // otherwise the next call throws
    stand_in = cpu;
    kernel().set(launch, only_kernel);
  }
  use_device_library(library);
}

uint32_t release_stand_in(uint32_t n) {
  const std::lock_guard<std::mutex> lock(rings_mutex);
  uint32_t done = 0;
  for (TorchRing* ring : rings) done += ring->release(n);
  return done;
}

}  // namespace nanscan
