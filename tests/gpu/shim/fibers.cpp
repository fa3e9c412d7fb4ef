// The schedule of the fibers that CUDA threads are. One OS thread, so a run repeats exactly by its seed.
//
// Compiled without sanitizers (SHIM_ASAN, SHIM_TSAN say what the kernels have): its own memory is of no interest, and
// templates of std:: must not merge with the kernels' instrumented copies; hence the own random numbers, too.
// ThreadSanitizer learns of the fibers, that switching between them orders nothing, and of the orders that CUDA gives:
// barriers and fences. Shuffles give none, as in CUDA. So a race is found whatever the interleaving, also between
// blocks.
#include "cuda_shim.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

extern "C" {
#ifdef SHIM_TSAN
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void* __tsan_get_current_fiber();
void __tsan_acquire(void*);
void __tsan_release(void*);
#else
static void* __tsan_create_fiber(unsigned) { return nullptr; }
static void __tsan_destroy_fiber(void*) {}
static void __tsan_switch_to_fiber(void*, unsigned) {}
static void* __tsan_get_current_fiber() { return nullptr; }
static void __tsan_acquire(void*) {}
static void __tsan_release(void*) {}
#endif
#ifdef SHIM_ASAN
void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
#else
static void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
static void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif
}

namespace shim {
namespace {

constexpr size_t kStack = 128 << 10;
constexpr size_t kGuard = 4096;
constexpr size_t kBlocksAtOnce = 3;

enum class State { kRuns, kAtBarrier, kInWarp, kDone };
struct Block;
struct Fiber {
  Ids ids;
  ucontext_t context;  // for the first entry
  void* jump[5];       // for the later ones: swapcontext asks the kernel for the signal mask each time
  bool started = false;
  char* stack;
  void* tsan;
  void* fake_stack = nullptr;  // AddressSanitizer's
  State state = State::kRuns;
  Block* block;
  int line = 0;       // of the barrier
  unsigned mask = 0;  // of the warp operation
};
struct Warp {
  uint64_t in[32], out[2][32];  // two: a lane may come to the next operation before another left this one
  unsigned arrived = 0;
  int generation = 0;
};
struct Block {
  std::vector<Fiber*> fibers;
  std::vector<Warp> warps;
  std::map<int, void*> arrays;
  unsigned waiting = 0, done = 0;
  char barrier_edge;
};

uint64_t state = 1;
Fiber root;
Fiber* me = &root;
const void* root_stack;
size_t root_stack_bytes;
void (*body_now)(void*);
void* context_now;
char launch_edge, fence_edge;
std::vector<char*> free_stacks;

[[gnu::noinline]] void go_on(Fiber* to) {  // not in the function that set the jump: a rule of the builtin
  if (to->started) __builtin_longjmp(to->jump, 1);
  to->started = true;
  setcontext(&to->context);
}

[[gnu::noinline]] void switch_to(Fiber* to) {
  Fiber* from = me;
  me = to;
  current = &to->ids;
  __sanitizer_start_switch_fiber(from->state == State::kDone ? nullptr : &from->fake_stack,
                                 to == &root ? root_stack : to->stack, to == &root ? root_stack_bytes : kStack);
  __tsan_switch_to_fiber(to->tsan, 1);  // 1: the switch itself orders nothing
  if (__builtin_setjmp(from->jump) == 0) go_on(to);
  __sanitizer_finish_switch_fiber(me->fake_stack, nullptr, nullptr);  // `from` again
}
void yield() { switch_to(&root); }

void enter() {
  __sanitizer_finish_switch_fiber(nullptr, &root_stack, &root_stack_bytes);
  body_now(context_now);
  me->state = State::kDone;
  me->block->done += 1;
  __tsan_release(&launch_edge);
  yield();
}

char* new_stack() {
  if (free_stacks.empty()) {
    void* memory = mmap(nullptr, kStack + kGuard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, kGuard, PROT_NONE) != 0) die("no memory for more fibers");
    return static_cast<char*>(memory) + kGuard;
  }
  char* stack = free_stacks.back();
  free_stacks.pop_back();
  return stack;
}

std::unique_ptr<Block> new_block(unsigned index, unsigned n_threads) {
  auto block = std::make_unique<Block>();
  block->warps.resize((n_threads + 31) / 32);
  for (unsigned t = 0; t < n_threads; ++t) {
    Fiber* f = new Fiber;
    f->ids = {t, index};
    f->block = block.get();
    f->stack = new_stack();
    f->tsan = __tsan_create_fiber(0);
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = kStack;
    f->context.uc_link = nullptr;
    makecontext(&f->context, enter, 0);
    block->fibers.push_back(f);
  }
  return block;
}

void recycle(Block& block) {
  for (Fiber* f : block.fibers) {
    free_stacks.push_back(f->stack);
    delete f;
  }
  for (auto& [_, array] : block.arrays) std::free(array);
}

[[noreturn]] void deadlock(const Block& block) {
  int count[4] = {};
  for (const Fiber* f : block.fibers) count[static_cast<int>(f->state)] += 1;
  std::fprintf(stderr, "SHIM ERROR: deadlock in block %u: %d at a barrier, %d in a warp operation, %d exited\n",
               block.fibers[0]->ids.block, count[1], count[2], count[3]);
  std::abort();
}

template <typename T>
void shuffle(std::vector<T>& items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random() % i]);
}

}  // namespace

Ids* current = &root.ids;

void die(const char* why) {
  std::fprintf(stderr, "SHIM ERROR: %s (block %u, thread %u)\n", why, current->block, current->thread);
  std::fflush(nullptr);
  std::abort();
}

void seed(uint64_t value) { state = value * 0x9E3779B97F4A7C15u | 1; }
uint64_t random() {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

// ThreadSanitizer in GCC ignores fences: modelled as acquiring and releasing one object.
void fence() {
  __tsan_release(&fence_edge);
  __tsan_acquire(&fence_edge);
  yield();
}

void maybe_yield() {
  if (me != &root && random() % 4 == 0) yield();
}

void barrier(int line) {
  Block* block = me->block;
  me->line = line;
  __tsan_release(&block->barrier_edge);
  if (block->done != 0) die("__syncthreads() after a thread of the block has exited");
  if (++block->waiting == block->fibers.size()) {
    for (const Fiber* f : block->fibers) {
      if (f != me && f->line != line) die("threads of a block wait at different __syncthreads()");
    }
    block->waiting = 0;
    for (Fiber* f : block->fibers) {
      if (f->state == State::kAtBarrier) f->state = State::kRuns;
    }
  } else {
    me->state = State::kAtBarrier;
  }
  yield();
  __tsan_acquire(&block->barrier_edge);
}

const uint64_t* exchange(unsigned mask, uint64_t value) {
  Block* block = me->block;
  const unsigned lane = me->ids.thread & 31u, first = me->ids.thread & ~31u;
  Warp& warp = block->warps[first / 32];
  if ((mask >> lane & 1) == 0) die("a lane is not in its own mask");
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    if (first + i >= block->fibers.size()) die("the mask names lanes that the block does not have");
    const Fiber* f = block->fibers[first + i];
    if (f->state == State::kDone) die("a lane named in the mask has exited");
    if (f->state == State::kInWarp && f->mask != mask) die("lanes of one warp call with different masks");
  }
  warp.in[lane] = value;
  me->mask = mask;
  warp.arrived |= 1u << lane;
  const int generation = warp.generation;
  if (warp.arrived == mask) {
    for (int i = 0; i < 32; ++i) warp.out[generation & 1][i] = warp.in[i];
    warp.arrived = 0;
    warp.generation += 1;
    for (unsigned i = 0; i < 32; ++i) {
      if (mask >> i & 1) block->fibers[first + i]->state = State::kRuns;
    }
    if (random() & 1) yield();
  } else {
    me->state = State::kInWarp;
    yield();
  }
  return warp.out[generation & 1];
}

void* shared(int site, size_t bytes) {
  void*& array = me->block->arrays[site];
  if (array == nullptr) {
    array = std::malloc(bytes);
    for (size_t i = 0; i < bytes; ++i) static_cast<volatile char*>(array)[i] = char(0xA5);  // never zero by luck
    __tsan_release(&array);
  } else {
    __tsan_acquire(&array);
  }
  return array;
}

void run_grid(unsigned n_blocks, unsigned n_threads, void (*body)(void*), void* context) {
  body_now = body;
  context_now = context;
  root.tsan = __tsan_get_current_fiber();
  root.started = true;
  __tsan_release(&launch_edge);
  std::vector<unsigned> order(n_blocks);
  for (unsigned i = 0; i < n_blocks; ++i) order[i] = i;
  shuffle(order);
  std::vector<std::unique_ptr<Block>> live, dead;
  for (size_t next = 0; next < order.size() || !live.empty();) {
    while (live.size() < kBlocksAtOnce && next < order.size()) live.push_back(new_block(order[next++], n_threads));
    std::vector<Fiber*> ready;
    for (auto& block : live) {
      for (Fiber* f : block->fibers) {
        if (f->state == State::kRuns) ready.push_back(f);
      }
    }
    if (ready.empty()) deadlock(*live[0]);
    shuffle(ready);
    for (Fiber* f : ready) {
      if (f->state == State::kRuns) switch_to(f);
    }
    for (size_t i = 0; i < live.size();) {
      if (live[i]->done != live[i]->fibers.size()) {
        ++i;
        continue;
      }
      for (Fiber* f : live[i]->fibers) __tsan_destroy_fiber(f->tsan);
#ifdef SHIM_TSAN
      dead.push_back(std::move(live[i]));  // nothing would order these fibers and new ones on their stacks
#else
      recycle(*live[i]);
#endif
      live.erase(live.begin() + static_cast<long>(i));
    }
  }
  __tsan_acquire(&launch_edge);  // only now: the fibers have no other order with whoever uses the memory next
  for (auto& block : dead) recycle(*block);
}

}  // namespace shim
