// Blocks of one thread: a function call each, in an order by seed.
#include "cuda_shim.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

namespace shim {
namespace {
uint64_t state = 1;
std::map<int, std::unique_ptr<char[]>> arrays;  // of the block that runs
}  // namespace

unsigned block_index;

void die(const char* why) {
  std::fprintf(stderr, "SHIM ERROR: %s (block %u)\n", why, block_index);
  std::abort();
}
void seed(uint64_t value) { state = value * 0x9E3779B97F4A7C15u | 1; }
uint64_t random() {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}
void* shared(int site, size_t bytes) {
  auto& array = arrays[site];
  if (!array) array.reset(new char[bytes]);
  return array.get();
}
void run_grid(unsigned n_blocks, unsigned n_threads, void (*body)(void*), void* context) {
  if (n_threads != 1) die("SHIM_SOLO runs blocks of one thread");
  std::vector<unsigned> order(n_blocks);
  std::iota(order.begin(), order.end(), 0u);
  for (unsigned i = n_blocks; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  for (unsigned block : order) {
    block_index = block;
    body(context);
  }
}
}  // namespace shim
