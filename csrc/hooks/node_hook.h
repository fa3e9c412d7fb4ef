// Autograd nodes at op level: judged by their incoming gradients and their results, not by the ops inside.
#pragma once

#include <ATen/record_function.h>

#include <memory>

#include "hooks/forward_map.h"
#include "hooks/op_call.h"
#include "hooks/session.h"

namespace nanscan {

// A node's apply begins on this thread / ends. Results are seen in a post hook of the node, after end_node().
std::unique_ptr<at::ObserverContext> begin_node(Session& session, const at::RecordFunction& fn);
void end_node();

// Whether an autograd node runs on this thread: ops inside one are neither scanned nor named.
bool inside_node();
// A Python autograd.Function's backward runs, and nothing bad was made in it so far; and the line where that changed.
bool node_wants_line();
void set_node_line(uint32_t line);
// The call of that node, if nothing is known so far of how it made something bad; nullptr otherwise.
RunningCall* node_without_details();
// Where a node that is made inside the running one comes from: an op of a forward that is run again, a line of a Python
// backward, or else (double backward) the op behind the running node.
ForwardOp made_inside_node(const Session& session, uint32_t op);
// Whether this thread is inside a backward pass at all.
bool in_graph_task();

}  // namespace nanscan
