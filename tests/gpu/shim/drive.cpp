// Runs a script against the library's C entry points: lines on stdin, tensors' bytes in a file, records to another.
// usage: drive DATA OUT < SCRIPT. Every call that returns an error prints "error CODE"; counters print themselves.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "record/record.h"
#include "scan/scan_cuda.h"

extern "C" {
uint32_t nanscan_standin_run(uint64_t seed, uint32_t max_launches);
int nanscan_standin_capture(void* stream, int begin);
int nanscan_standin_replay(void* stream);
}

using nanscan::Record;

struct Tensor {
  std::unique_ptr<char[]> memory;  // exactly as long as the tensor's storage: what is beyond is not ours to read
  nanscan_tensor view;
};

static void check(int code) {
  if (code != 0) std::printf("error %d\n", code);
}

static Tensor read_tensor(std::istream& in, std::FILE* data) {
  Tensor t;
  size_t bytes, misalign, offset;
  t.view = {};
  in >> t.view.dtype >> t.view.flags >> bytes >> misalign >> offset >> t.view.numel >> t.view.n_dims;
  for (int d = 0; d < t.view.n_dims && d < NANSCAN_MAX_DIMS; ++d) in >> t.view.sizes[d];
  for (int d = 0; d < t.view.n_dims && d < NANSCAN_MAX_DIMS; ++d) in >> t.view.strides[d];
  t.memory.reset(new char[bytes + misalign]);
  if (std::fread(t.memory.get() + misalign, 1, bytes, data) != bytes) std::exit(2);
  t.view.data = t.memory.get() + misalign + offset;
  return t;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::FILE* data = std::fopen(argv[1], "rb");
  std::FILE* out = std::fopen(argv[2], "wb");
  if (data == nullptr || out == nullptr) return 2;
  nanscan_ring* ring = nullptr;
  std::vector<Tensor> tensors;
  uint64_t launch = 0;
  const auto header_of = [&](size_t id, uint64_t step) {
    Record header{};
    header.seq = ++launch;
    header.step = step;
    header.site = static_cast<uint32_t>(id);
    header.output_index = 7;
    header.device = 3;
    header.phase = 2;
    return header;
  };
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string verb;
    uint64_t stream = 0, step = 0;
    in >> verb;
    if (verb == "open") {
      uint32_t capacity;
      in >> capacity;
      check(nanscan_cuda_open(0, capacity, &ring));
    } else if (verb == "tensor") {
      tensors.push_back(read_tensor(in, data));
    } else if (verb == "scan") {
      size_t id;
      in >> stream >> step >> id;
      const Record header = header_of(id, step);
      check(nanscan_cuda_scan(ring, &tensors[id].view, reinterpret_cast<const nanscan_record*>(&header),
                              reinterpret_cast<void*>(stream)));
    } else if (verb == "many") {
      in >> stream >> step;
      std::vector<nanscan_tensor> views;
      std::vector<Record> headers;
      for (size_t id; in >> id;) {
        views.push_back(tensors[id].view);
        headers.push_back(header_of(id, step));
      }
      check(nanscan_cuda_scan_many(ring, views.data(), reinterpret_cast<const nanscan_record*>(headers.data()),
                                   static_cast<uint32_t>(views.size()), reinterpret_cast<void*>(stream)));
    } else if (verb == "capture") {
      int begin;
      in >> stream >> begin;
      check(nanscan_standin_capture(reinterpret_cast<void*>(stream), begin));
    } else if (verb == "replay") {
      in >> stream;
      check(nanscan_standin_replay(reinterpret_cast<void*>(stream)));
    } else if (verb == "run") {
      uint64_t seed;
      uint32_t max;
      in >> seed >> max;
      nanscan_standin_run(seed, max);
    } else if (verb == "flush") {
      check(nanscan_cuda_flush(ring));
    } else if (verb == "poll") {
      uint32_t max, n = 0;
      in >> max;
      std::vector<Record> records(max);
      std::vector<uint64_t> stamps(max);
      check(nanscan_cuda_poll(ring, reinterpret_cast<nanscan_record*>(records.data()), stamps.data(), max, &n));
      for (uint32_t i = 0; i < n; ++i) {
        std::fwrite(&stamps[i], 8, 1, out);
        std::fwrite(&records[i], sizeof(Record), 1, out);
      }
    } else if (verb == "counters") {
      uint64_t launched, finished, dropped;
      check(nanscan_cuda_counters(ring, &launched, &finished, &dropped));
      std::printf("counters %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", launched, finished, dropped);
    } else if (!verb.empty()) {
      std::printf("unknown verb %s\n", verb.c_str());
      return 2;
    }
  }
  check(nanscan_cuda_close(ring));
  std::fclose(out);
  std::fclose(data);
  return 0;
}
