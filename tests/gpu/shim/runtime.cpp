// See runtime.h. One lock around everything: kernels run under it, one at a time.
#include "cuda_shim.h"

#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace {

struct Task {
  std::function<void()> run;
  std::function<bool()> ready;  // empty: always
  bool is_kernel = false;
};

struct Stream {
  std::deque<Task> queue;
  unsigned long long capture = 0;  // id while capturing
  std::vector<Task> graph;         // what was captured last
};

std::recursive_mutex mutex;
std::map<void*, Stream> streams;
unsigned long long captures = 0;
thread_local int current_device = 0;
using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t enqueue(void* stream, Task task) {
  const Lock lock(mutex);
  Stream& s = streams[stream];
  if (s.capture != 0) {
    s.graph.push_back(std::move(task));
  } else {
    s.queue.push_back(std::move(task));
  }
  return cudaSuccess;
}

// One task of a stream picked at random. False: nothing can run.
bool step(bool& was_kernel) {
  std::vector<Stream*> ready;
  for (auto& [_, stream] : streams) {
    if (stream.queue.empty()) continue;
    const Task& next = stream.queue.front();
    if (!next.ready || next.ready()) ready.push_back(&stream);
  }
  if (ready.empty()) return false;
  Stream& picked = *ready[shim::random() % ready.size()];
  const Task task = std::move(picked.queue.front());
  picked.queue.pop_front();
  was_kernel = task.is_kernel;
  task.run();
  return true;
}

}  // namespace

struct ShimEvent {
  uint64_t recorded = 0, reached = 0;
};

namespace shim {
cudaError_t enqueue_kernel(cudaStream_t stream, std::function<void()> run) {
  return enqueue(stream, {std::move(run), {}, true});
}
}  // namespace shim

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device > 7) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock(mutex);
  for (bool was_kernel; step(was_kernel);) {
  }
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorLaunchOutOfResources: return "too many resources requested for launch";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
  }
  return "unrecognized error code";
}

cudaError_t shim_allocate(void** memory, size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, {[=] { std::memcpy(to, from, bytes); }, {}, false});
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  unsigned long long id;
  return cudaStreamGetCaptureInfo(stream, status, &id);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id) {
  const Lock lock(mutex);
  const auto found = streams.find(stream);
  *id = found != streams.end() ? found->second.capture : 0;
  *status = *id != 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new ShimEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return enqueue(stream, {[event, n = ++event->recorded] { event->reached = n; }, {}, false});
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return enqueue(stream, {[] {}, [event, n = event->recorded] { return event->reached >= n; }, false});
}

uint32_t nanscan_standin_run(uint64_t seed, uint32_t max_launches) {
  const Lock lock(mutex);
  shim::seed(seed);
  uint32_t n = 0;
  for (bool was_kernel; n < max_launches && step(was_kernel);) n += was_kernel;
  return n;
}
uint32_t nanscan_standin_queued(void) {
  const Lock lock(mutex);
  uint32_t n = 0;
  for (const auto& [_, stream] : streams) {
    for (const Task& task : stream.queue) n += task.is_kernel;
  }
  return n;
}
int nanscan_standin_capture(void* stream, int begin) {
  const Lock lock(mutex);
  Stream& s = streams[stream];
  if ((begin != 0) == (s.capture != 0)) return cudaErrorInvalidValue;
  if (begin != 0) s.graph.clear();
  s.capture = begin != 0 ? ++captures : 0;
  return cudaSuccess;
}
int nanscan_standin_replay(void* stream) {
  const Lock lock(mutex);
  Stream& s = streams[stream];
  if (s.capture != 0) return cudaErrorStreamCaptureUnsupported;
  s.queue.insert(s.queue.end(), s.graph.begin(), s.graph.end());
  return cudaSuccess;
}
