// Gradients as they reach a value: one C++ pre-hook on the autograd node that made it. No identity node is inserted and
// no reference to a gradient outlives the hook, so accumulation order, stealing and peak memory stay as they were.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <memory>

#include "hooks/session.h"

namespace nanscan {

// A module call that made or read the value.
struct Party {
  uint32_t site = kNoSite;  // its OUTPUT (maker) or INPUT (reader) site
  uint64_t call = 0;
  uint64_t parent_call = 0;
  uint32_t parent_site = kNoSite;
};

// What is known of one value whose gradient is watched. Written during forward, read in backward.
struct GradTap {
  static constexpr uint32_t kMaxParties = 6;

  std::shared_ptr<Session> session;
  uint64_t value = 0;  // id, from the same counter as calls
  uint64_t step = 0;   // in which it was made
  std::array<Party, kMaxParties> makers{}, readers{};
  // Release/acquire: an engine thread may run while another thread's forward still adds a reader.
  std::atomic<uint32_t> n_makers{0}, n_readers{0};

  void add_maker(const Party& p) { add(makers, n_makers, p); }
  void add_reader(const Party& p) { add(readers, n_readers, p); }

 private:
  static void add(std::array<Party, kMaxParties>& parties, std::atomic<uint32_t>& n, const Party& p) {
    const uint32_t i = n.load(std::memory_order_relaxed);
    if (i >= kMaxParties) return;  // a value read by more modules than this keeps its first readers
    parties[i] = p;
    n.store(i + 1, std::memory_order_release);
  }
};

// Watch the gradient of a value made by an autograd node. Returns nullptr when there is nothing to hook.
std::shared_ptr<GradTap> tap_gradient(const at::Tensor& t, const std::shared_ptr<Session>& session);

// The same for a leaf (a parameter passed as an argument): the tap sits on its AccumulateGrad node, which torch keeps
// only as long as somebody needs it. `keep` holds it until the module's own forward has linked it into the graph.
std::shared_ptr<GradTap> tap_leaf(const at::Tensor& t, const std::shared_ptr<Session>& session, std::shared_ptr<void>& keep);

// Asks the engine to run `session`'s end-of-backward pass (parameter gradients) once for the running graph task.
void request_backward_end(const std::shared_ptr<Session>& session);

// Called without the GIL at the end of a backward in which `session` saw something; may throw into backward().
using BackwardEndCallback = void (*)(Session&);
void set_backward_end_callback(BackwardEndCallback callback);

}  // namespace nanscan
