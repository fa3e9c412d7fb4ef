// What a hook keeps per thread: the stack of module calls and the values seen lately.
#pragma once

#include <utility>
#include <vector>

#include "hooks/values.h"

namespace nanscan {

// A tensor that a module was called with, as it was at the call.
struct SeenInput {
  const c10::TensorImpl* impl = nullptr;
  uint32_t version = 0;
  uint32_t site = kNoSite;  // where it had been seen before; kNoSite: nowhere
  uint64_t call = 0;
  bool known = false;    // some other call, or the data, handed it over
  bool counted = false;  // the counts below are its state before the call
  uint64_t late = 0;     // on a device: where they will be, see SeenValue
  bool changed = false;  // an extension's: went bad between its last sighting and this call, with no write seen
  bool written = false;  // an extension's: by this call
  uint64_t n_nan = 0, n_posinf = 0, n_neginf = 0;
};

// Tensors remembered per module call; further ones are scanned afresh when it goes bad. Of an extension's, every one.
constexpr size_t kMaxInputs = 12;

struct Frame {
  uint64_t session = 0;        // its number: a frame that an interrupt left behind may outlive its session
  uint32_t site = kNoSite;     // the module's OUTPUT site
  uint64_t call = 0;
  uint64_t parent_call = 0;
  uint32_t parent_site = kNoSite;
  std::vector<SeenInput> inputs;  // as `kept` and `before`, it keeps its storage from call to call
  std::vector<Record> before;     // [inputs] of an extension, scanned as the call began
  std::vector<std::shared_ptr<void>> kept;  // AccumulateGrad nodes that this call's forward is about to use
};

struct ThreadState {
  std::vector<Frame> stack;
  size_t depth = 0;  // frames in use; the vector keeps its storage
  SeenValues values;
  std::vector<at::Tensor> tensors;  // scratch of the running hook; empty between hooks, so that nothing is kept alive

  Frame& push() {
    if (depth == stack.size()) stack.emplace_back();
    return stack[depth++];
  }
  // Takes off the frames of `session` from position `from` on; those of other sessions stay, in order. Two sessions on
  // one module run their hooks in the same order before and after it: their calls overlap and do not nest.
  void remove(const Session* session, size_t from) {
    size_t kept = from;
    for (size_t i = from; i < depth; ++i) {
      if (stack[i].session == session->number) {
        stack[i].kept.clear();  // an interrupted call's leaves must not wait for the slot's next use
      } else {
        if (kept != i) std::swap(stack[kept], stack[i]);
        ++kept;
      }
    }
    depth = kept;
  }
  // The innermost frame of `session`, or nullptr outside its modules.
  Frame* top(const Session* session) {
    for (size_t i = depth; i-- > 0;) {
      if (stack[i].session == session->number) return &stack[i];
    }
    return nullptr;
  }
};

ThreadState& thread_state();

}  // namespace nanscan
