#include "buffer/device_library.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <stdexcept>

namespace nanscan {
namespace {

std::atomic<const DeviceLibrary*> loaded{nullptr};
std::mutex mutex;

template <typename F>
void find(void* handle, const char* name, F& into) {
  void* symbol = dlsym(handle, name);
  if (symbol == nullptr) throw std::runtime_error(std::string("it has no ") + name);
  into = reinterpret_cast<F>(symbol);
}

DeviceLibrary entry_points(void* handle) {
  DeviceLibrary library{};
  find(handle, "nanscan_cuda_abi", library.abi);
  const int abi = library.abi();
  if (abi != NANSCAN_CUDA_ABI) {
    throw std::runtime_error("its interface is number " + std::to_string(abi) + ", this core speaks " + std::to_string(NANSCAN_CUDA_ABI));
  }
  find(handle, "nanscan_cuda_error", library.error);
  find(handle, "nanscan_cuda_open", library.open);
  find(handle, "nanscan_cuda_close", library.close);
  find(handle, "nanscan_cuda_scan", library.scan);
  find(handle, "nanscan_cuda_scan_many", library.scan_many);
  find(handle, "nanscan_cuda_poll", library.poll);
  find(handle, "nanscan_cuda_flush", library.flush);
  find(handle, "nanscan_cuda_counters", library.counters);
  find(handle, "nanscan_cuda_capturing", library.capturing);
  return library;
}

}  // namespace

const DeviceLibrary* device_library() { return loaded.load(std::memory_order_acquire); }

void use_device_library(const DeviceLibrary& library) {
  std::lock_guard<std::mutex> lock(mutex);
  if (device_library() != nullptr) throw std::runtime_error("a device library is loaded already");
  loaded.store(new DeviceLibrary(library), std::memory_order_release);
}

void load_device_library(const std::string& path, bool stand_in) {
  std::lock_guard<std::mutex> lock(mutex);
  if (device_library() != nullptr) throw std::runtime_error("a device library is loaded already");
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  try {
    auto* library = new DeviceLibrary(entry_points(handle));
    library->stand_in = stand_in;
    loaded.store(library, std::memory_order_release);
  } catch (...) {
    dlclose(handle);
    throw;
  }
}

}  // namespace nanscan
