// What an autograd node kept of its forward pass, looked at once it has made a bad gradient: whether the square root was 0,
// which exponent a power had.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <vector>

#include "hooks/op_call.h"

namespace nanscan {

// Adds to `call.details` what `node` has saved, if one of its results is newly bad. Takes the GIL. Silent where the user
// has hooks on saved tensors (offloading, checkpointing): looking would run them once more.
void describe_saved(Session& session, const torch::autograd::Node& node, RunningCall& call,
                    const std::vector<CallOutput>& outputs);

}  // namespace nanscan
