// The host's part of a launch, without a device: kernel arguments as bytes, for the PTX interpreter. Addresses are those
// of the interpreter's memory. Compiled by nvcc, since the headers hold device code beside the structs.
#include <cstring>

#include "buffer/device_ring.cuh"
#include "buffer/table_layout.cuh"
#include "scan/cuda/kernel.cuh"

using namespace nanscan;
using namespace nanscan::cuda;

namespace {
template <typename T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}
}  // namespace

extern "C" {

uint64_t size_of_launch() { return sizeof(Launch); }
uint64_t size_of_ring() { return sizeof(DeviceRing); }
uint64_t size_of_partial() { return sizeof(MomentsWords); }
int threads_of_block() { return kThreads; }

// Blocks of the grid; 0: the tensor cannot be read.
uint32_t fill_one(const nanscan_tensor* tensor, const Record* header, uint64_t ticket, uint64_t partials,
                  uint64_t replays, void* out) {
  Launch launch{};
  if (!plan(*tensor, Cut{kThreads, kInFlight, kMaxBlocks}, launch.work, launch.layout)) return 0;
  launch.header = *header;
  launch.scratch = {at<unsigned>(ticket), at<MomentsWords>(partials)};
  launch.replays = at<unsigned long long>(replays);
  std::memcpy(out, &launch, sizeof(launch));
  return launch.work.n_blocks;
}

uint64_t table_bytes(const nanscan_tensor* tensors, uint32_t n) {
  TableSize size;
  return measure(tensors, n, ~size_t{0}, size) == n ? size.bytes(n) : 0;
}

void fill_ring(uint64_t slots, uint64_t stamps, uint64_t board, uint64_t cursor, uint64_t capacity,
               void* out) {
  const DeviceRing ring{at<Record>(slots), at<uint64_t>(stamps), at<RingBoard>(board), at<RingCursor>(cursor),
                        capacity};
  std::memcpy(out, &ring, sizeof(ring));
}

// The table into host (as it would be copied to device), and per dtype a launch and the blocks of its grid.
void fill_many(const nanscan_tensor* tensors, const Record* headers, uint32_t n, char* host, uint64_t device,
               uint64_t released, char* launches, uint32_t* n_blocks) {
  TableSize size;
  measure(tensors, n, ~size_t{0}, size);
  const ByDType by = lay_out(tensors, headers, n, size, host, at<char>(device));
  for (int t = 0; t < kNumDTypes; ++t) {
    Launch launch{};
    launch.table.entries = at<Entry>(device) + by.begin[t];
    launch.table.layouts = at<Layout>(device + size.layouts_at(n));
    launch.table.n_done = at<unsigned>(device + size.n_done_at(n));
    launch.table.released = at<uint64_t>(released);
    launch.table.number = 77;
    launch.table.n = by.begin[t + 1] - by.begin[t];
    launch.table.n_all = n;
    std::memcpy(launches + t * sizeof(Launch), &launch, sizeof(launch));
    n_blocks[t] = by.n_blocks[t];
  }
}
}
