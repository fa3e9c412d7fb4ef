#include "hooks/autograd_hook.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "hooks/guard.h"

namespace nanscan {
namespace {

std::atomic<BackwardEndCallback> backward_end_callback{nullptr};

void append_links(Session& session, const GradTap& tap) {
  const auto write = [&](const Party& p, uint64_t code) {
    Record link{};
    link.flags = kFlagLink;
    link.phase = kPhaseBackward;
    link.call = tap.value;
    link.site = p.site;
    link.n = code;
    link.n_nan = p.call;
    link.n_posinf = p.parent_call;
    link.n_neginf = p.parent_site;
    session.append(link);
  };
  for (uint32_t i = 0; i < tap.n_makers.load(std::memory_order_acquire); ++i) write(tap.makers[i], kLinkGradProducer);
  for (uint32_t i = 0; i < tap.n_readers.load(std::memory_order_acquire); ++i) write(tap.readers[i], kLinkGradConsumer);
}

void observe(const GradTap& tap, const at::Tensor& grad) {
  Session& session = *tap.session;
  Record rec{};
  if (tap.n_makers.load(std::memory_order_acquire) + tap.n_readers.load(std::memory_order_acquire) == 0) return;
  const bool made = tap.n_makers.load(std::memory_order_acquire) > 0;
  rec.site = made ? tap.makers[0].site + kGradOutputSite : tap.readers[0].site - kInputSite + kGradInputSite;
  rec.call = tap.value;
  rec.phase = kPhaseBackward;
  // On a device nobody knows yet: the links are written, and read only if it comes back bad.
  if (session.record(grad, rec) && ((rec.flags & kFlagBad) || rec.seq != 0)) append_links(session, tap);
}

// Runs on whatever thread the engine uses, without the GIL.
class TapHook : public torch::autograd::FunctionPreHook {
 public:
  TapHook(std::shared_ptr<GradTap> tap, uint32_t index) : tap(std::move(tap)), index(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    const std::shared_ptr<GradTap> now = tap.load(std::memory_order_acquire);
    if (!process_inert().load(std::memory_order_relaxed) && now->session->watching()) {
      InsideHook inside;
      request_backward_end(now->session);
      if (!inside.reentered() && index < grads.size() && grads[index].defined()) observe(*now, grads[index]);
    }
    return grads;
  }

  // Compiled autograd asks every hook to describe itself and raises on one that does not. Nothing of ours belongs in
  // its graph: such a backward is not observed at module level.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

  std::atomic<std::shared_ptr<GradTap>> tap;  // a leaf's is replaced each step, while an engine thread may run
  const uint32_t index;
};

}  // namespace

namespace {

std::shared_ptr<GradTap> new_tap(const std::shared_ptr<Session>& session) {
  auto tap = std::make_shared<GradTap>();
  tap->session = session;
  tap->value = session->next_id();
  tap->step = session->step.load(std::memory_order_relaxed);
  return tap;
}

}  // namespace

std::shared_ptr<GradTap> tap_gradient(const at::Tensor& t, const std::shared_ptr<Session>& session) {
  const auto& node = t.grad_fn();
  if (!node) return nullptr;
  auto tap = new_tap(session);
  node->add_pre_hook(std::make_unique<TapHook>(tap, t.output_nr()));
  return tap;
}

std::shared_ptr<GradTap> tap_leaf(const at::Tensor& t, const std::shared_ptr<Session>& session, std::shared_ptr<void>& keep) {
  // Spelled by its type: a node pointer is a shared_ptr in older torch and an intrusive_ptr in newer.
  auto node = torch::autograd::impl::grad_accumulator(t);
  if (!node) return nullptr;
  keep = std::make_shared<decltype(node)>(node);
  // The node can outlive the graph (DDP keeps them): reuse our hook there, or one would be added per step. A pre-hook
  // only: a post hook on this node makes gradients share memory.
  for (const auto& hook : node->pre_hooks()) {
    auto* ours = dynamic_cast<TapHook*>(hook.get());
    if (ours == nullptr) continue;
    std::shared_ptr<GradTap> tap = ours->tap.load(std::memory_order_acquire);
    if (tap->session != session && !tap->session->closed) continue;
    if (tap->session != session || tap->step != session->step) {
      tap = new_tap(session);
      ours->tap.store(tap, std::memory_order_release);
    }
    return tap;
  }
  auto tap = new_tap(session);
  node->add_pre_hook(std::make_unique<TapHook>(tap, 0));
  return tap;
}

void request_backward_end(const std::shared_ptr<Session>& session) {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task < 0 || session->callback_for.exchange(task, std::memory_order_acq_rel) == task) return;
  const uint64_t bad_before = session->n_bad.load(std::memory_order_acquire);
  torch::autograd::Engine::get_default_engine().queue_callback([session, bad_before] {
    if (process_inert().load(std::memory_order_relaxed) || !session->watching()) return;
    session->after_backward.store(true, std::memory_order_relaxed);
    {
      InsideHook inside;
      session->scan_grads(kPhaseBackward);
      session->poll_device();
    }
    const auto callback = backward_end_callback.load(std::memory_order_acquire);
    if (callback != nullptr && session->n_bad.load(std::memory_order_acquire) != bad_before) callback(*session);
  });
}

void set_backward_end_callback(BackwardEndCallback callback) {
  backward_end_callback.store(callback, std::memory_order_release);
}

}  // namespace nanscan
