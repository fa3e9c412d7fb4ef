// What a cause rule wants to know of a call that made something bad, and nothing else needs: its numbers, and of each
// tensor the elements that the first bad element was computed from. Looked up on the CPU, when the result is bad.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "hooks/op_call.h"

namespace nanscan {

// Keeps the Python numbers among the arguments: the argument list does not outlive the start of the call.
void take_scalars(const c10::IValue& v, uint32_t argument, std::vector<Scalar>& scalars);

// Index of the first bad element; of a result with both sorts of the first NaN, since the Inf may have been given.
int64_t first_bad(const CallOutput& out);

// Appends to `details` what is known of the arguments of `call`, seen from its bad result `out`.
void describe_arguments(Session& session, const RunningCall& call, const CallOutput& out, std::vector<Record>& details);

// The same for a value with a name of its own: a tensor (whole and, if it has the result's shape or one that broadcasts to
// it, the element at the first bad place) or numbers.
void describe_tensor(Session& session, uint32_t name, const at::Tensor& t, const CallOutput& out, std::vector<Record>& details);
void describe_numbers(uint32_t name, const std::vector<double>& numbers, std::vector<Record>& details);

// Says in `details` that op `op` made `out`, inside the node that is judged.
void describe_inner(uint32_t op, const CallOutput& out, std::vector<Record>& details);

// Says in `details` inside which node the node that is judged was made.
void describe_behind(const RunningCall& call, std::vector<Record>& details);

// What was made at this place in earlier steps.
void describe_past(const Session& session, const RunningCall& call, std::vector<Record>& details);

}  // namespace nanscan
