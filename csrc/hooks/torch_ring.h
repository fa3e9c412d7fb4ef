// Records of a device whose kernels are not here, on their way to the host: rows of numbers that are launched on the tensor's
// stream, copied to pinned memory behind it, and taken from there when the event after the copy has come. Only a flush waits.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "hooks/torch_scan.h"
#include "record/record.h"
#include "scan/scan_cuda.h"

namespace nanscan {

// Is the stream capturing a graph? An event that is asked for while one captures would end that.
template <typename Stream>
constexpr bool tells_capture() {
  return requires(const Stream& stream) { stream.is_capturing(); };  // torch 2.13
}
template <typename Stream>
bool is_capturing(const Stream& stream) {
  if constexpr (tells_capture<Stream>()) return stream.is_capturing();
  return false;
}

class TorchRing {
 public:
  // Takes the pinned memory, for `capacity` records and some that are in pieces. The CPU stands in for a device: then records
  // are held until they are released, or flushed.
  TorchRing(c10::Device device, size_t capacity);

  c10::Stream stream() const;
  bool captures() const { return !stands_in() && is_capturing(stream()); }

  // Launches the scans of [n] tensors on the device's current stream; `headers`, with dtype, come back by poll() with their
  // numbers. Without room they are dropped, and counted: then a record of no kind comes for each. Throws what torch throws,
  // and nothing has been launched then that anybody would see.
  void scan(const nanscan_tensor* tensors, const Record* headers, uint32_t n, void* stream);
  // Records that are there, at most max; those of one stream in its order. Never waits.
  uint32_t poll(Record* out, uint64_t* stamps, uint32_t max);
  // Waits for all of them. Not while the stream captures: then what is under way comes later.
  void flush();
  void counters(uint64_t& launched, uint64_t& finished, uint64_t& dropped);
  // The stand-in's: lets up to n launches go; returns how many.
  uint32_t release(uint32_t n);

 private:
  static constexpr size_t kMoreRows = 1 << 12;  // beside one for each record: tensors of several pieces have more

  struct Row {
    size_t of;  // which of `headers`
    Piece piece;
    RowOf by = RowOf::kOperators;
  };
  // Of one call, from the moment its rows are taken until its records have been handed over.
  struct Launch {
    std::vector<Record> headers;
    std::vector<Row> rows;
    size_t first = 0;    // of the pinned rows
    size_t skipped = 0;  // rows in front of it that were too few before the end
    void* stream = nullptr;
    std::shared_ptr<c10::Event> event;  // none with the stand-in
    bool launched = false, released = false, over = false;
  };

  bool stands_in() const { return device_.is_cpu(); }
  Launch* take(const Record* headers, uint32_t n, std::vector<Row> rows, void* stream);
  void launch(Launch& launch, const std::vector<at::Tensor>& parts);
  bool is_there(const Launch& launch) const;
  void collect();
  void finish(Launch& launch);
  void forget();
  std::shared_ptr<c10::Event> spare_event();

  const c10::Device device_;
  const size_t n_rows_;
  at::Tensor pinned_;  // [n_rows_, kRowWords] int64
  std::mutex mutex_;   // never held while torch launches, or Python runs: either may want the GIL
  size_t head_ = 0, tail_ = 0;  // rows taken, and given back, so far
  std::list<Launch> launches_;  // in the order in which their rows were taken
  std::deque<Record> ready_;
  std::vector<std::shared_ptr<c10::Event>> spare_;
  uint64_t n_launched_ = 0, n_polled_ = 0, n_dropped_ = 0;  // records
};

}  // namespace nanscan
