#include "hooks/node_hook.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstring>
#include <exception>

#include "hooks/autograd_hook.h"
#include "hooks/forward_map.h"
#include "hooks/guard.h"
#include "hooks/module_hook.h"
#include "hooks/op_call.h"
#include "hooks/op_hook.h"
#include "hooks/op_tensors.h"
#include "hooks/saved_values.h"
#include "hooks/source_line.h"
#include "record/call_record.h"

namespace nanscan {
namespace {

struct NodeContext : at::ObserverContext {};

struct RunningNode {
  RunningCall call;
  const void* node = nullptr;
  bool python = false;      // a Python autograd.Function's backward
  bool wants_line = false;  // one in which nothing bad was made so far
  size_t depth = 0;         // module calls that ran when it began: deeper ones are a forward run again
};

// The nodes that run on this thread (re-entrant backward nests them), and the one whose apply has just returned.
struct NodeThread {
  std::vector<RunningNode> running;
  RunningCall done;
  const void* done_node = nullptr;
};

NodeThread& node_thread() {
  static thread_local NodeThread state;
  return state;
}

void see_results(Session& session, const torch::autograd::Node& node, RunningCall& call,
                 const torch::autograd::variable_list& results) {
  std::vector<CallOutput> outputs;
  bool bad = call.bad_input();
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& t = results[i];
    if (!t.defined()) continue;
    bool passed_on = false;
    for (const auto& in : call.inputs) passed_on = passed_on || shares_memory(in.tensor, t);
    CallOutput out;
    out.tensor = t;
    out.index = static_cast<uint32_t>(i);
    // An incoming gradient handed on (a view, an add): what is in it is known.
    if (passed_on && !bad) continue;
    if (!scan_result(session, t, out.record)) continue;
    bad = bad || bits_of(out.record) != 0;
    outputs.push_back(std::move(out));
  }
  if (bad) describe_saved(session, node, call, outputs);
  // Late ones that only hand a gradient on say nothing new, and there are many of them.
  if (bad || !outputs.empty()) record_outcome(session, call, outputs, bad);
}

class ResultHook : public torch::autograd::FunctionPostHook {
 public:
  explicit ResultHook(std::shared_ptr<Session> session, const torch::autograd::Node* node) : session_(std::move(session)), node_(node) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& results,
                                            const torch::autograd::variable_list& /*incoming*/) override {
    NodeThread& thread = node_thread();
    if (thread.done_node == node_ && !process_inert().load(std::memory_order_relaxed) && session_->watching() &&
        observing(*session_)) {
      InsideHook inside;
      thread.done_node = nullptr;
      try {  // what is thrown here would come out of the user's backward()
        if (!inside.reentered()) see_results(*session_, *node_, thread.done, results);
      } catch (...) {
        session_->n_unreadable_calls.fetch_add(1, std::memory_order_relaxed);
      }
      thread.done.clear();
    }
    return results;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

  const std::shared_ptr<Session> session_;
  const torch::autograd::Node* node_;  // the one that holds this hook
};

bool is_accumulate(const char* name) { return std::strstr(name, "AccumulateGrad") != nullptr; }

// A Python autograd.Function's node is called after its class; torch's own end in a digit.
bool is_python(const char* name) {
  const size_t n = std::strlen(name);
  return n > 8 && std::strcmp(name + n - 8, "Backward") == 0;
}

}  // namespace

bool node_wants_line() { return inside_node() && node_thread().running.back().wants_line; }

void set_node_line(uint32_t line) {
  if (line == 0 || !node_wants_line()) return;
  RunningNode& running = node_thread().running.back();
  if (running.call.bad_input()) return;
  running.call.line = line;
  running.wants_line = false;
}

RunningCall* node_without_details() {
  if (!node_wants_line()) return nullptr;
  RunningCall& call = node_thread().running.back().call;
  return call.bad_input() || !call.details.empty() ? nullptr : &call;
}

bool inside_node() { return !node_thread().running.empty(); }

ForwardOp made_inside_node(const Session& session, uint32_t op) {
  const RunningNode& running = node_thread().running.back();
  if (module_depth() > running.depth) return {current_module_site(session), capture_line(), op, 0, true};
  return {running.call.site, running.python ? capture_line() : running.call.line, op, 0, false, running.call.op + 1};
}

bool in_graph_task() { return torch::autograd::get_current_graph_task_id() >= 0; }

namespace {

void take_node(Session& session, NodeThread& thread, const at::RecordFunction& fn) {
  const auto shared = session.shared_from_this();
  request_backward_end(shared);
  if (is_accumulate(fn.name())) {  // never a post hook there: gradients would come to share memory
    for (const auto& v : fn.inputs()) {
      if (v.isTensor()) observe_escape(session, v.toTensor(), kCallLeaf, kNoSite, kPhaseBackward);
    }
    return;
  }
  const auto node = torch::autograd::get_current_node();
  if (!node) return;
  bool ours = false;
  for (const auto& hook : node->post_hooks()) {
    const auto* result = dynamic_cast<const ResultHook*>(hook.get());
    ours = ours || (result != nullptr && result->session_ == shared);
  }
  if (!ours) node->add_post_hook(std::make_unique<ResultHook>(shared, node.get()));
  RunningNode& running = thread.running.back();
  RunningCall& call = running.call;
  running.node = node.get();
  running.python = running.wants_line = is_python(fn.name());
  call.call = session.next_id();
  call.kind = kCallNode;
  call.op = name_id(fn.name());
  call.phase = kPhaseBackward;
  ForwardOp forward;
  if (find_forward(fn.forwardThreadId(), fn.seqNr(), forward)) {
    call.site = forward.site;
    call.line = forward.line;
    call.forward = forward.call;
    call.behind = forward.node;
    if (forward.recompute) call.bits |= kCallRecompute;
    const int task = torch::autograd::get_current_graph_task_id();
    const bool bad_loss = session.is_bad_call(forward.call);
    if (session.loss_of.exchange(task, std::memory_order_relaxed) != task && (bad_loss || session.device.any())) {
      CallRecord loss{};
      loss.call = session.next_id();
      loss.site = forward.site;
      loss.line = forward.line;
      loss.flags = static_cast<uint16_t>(kFlagCall | (bad_loss ? 0 : kFlagLate));
      loss.op = forward.op;
      loss.kind = kCallLoss;
      loss.n_inputs = 1;
      loss.inputs[0] = forward.call << 8 | (bad_loss ? kHasNan : kValueLate);
      loss.device = -1;
      loss.phase = kPhaseBackward;
      session.append(reinterpret_cast<Record&>(loss));
    }
  }
  for (const auto& v : fn.inputs()) {
    if (!v.isTensor() || !scannable(session, v.toTensor())) continue;
    const ValueState state = session.state_of(v.toTensor());
    call.inputs.push_back({v.toTensor(), state.value, state.bits, false, state.scanned_now});
  }
}

}  // namespace

std::unique_ptr<at::ObserverContext> begin_node(Session& session, const at::RecordFunction& fn) {
  NodeThread& thread = node_thread();
  thread.running.emplace_back();
  thread.running.back().depth = module_depth();
  auto context = std::make_unique<NodeContext>();
  thread.done_node = nullptr;
  thread.done.clear();
  InsideHook inside;
  if (inside.reentered() || !session.watching()) return context;
  try {
    take_node(session, thread, fn);
  } catch (...) {  // torch would swallow it, and never say that the node has ended
    session.n_unreadable_calls.fetch_add(1, std::memory_order_relaxed);
  }
  return context;
}

void end_node() {
  NodeThread& thread = node_thread();
  if (thread.running.empty()) return;
  thread.done = std::move(thread.running.back().call);
  thread.done_node = thread.running.back().node;
  thread.running.pop_back();
  if (std::uncaught_exceptions() > 0) thread.done.clear();  // no post hook will run: let go of its gradients
}

}  // namespace nanscan
