#pragma once

#include <vector>

#include "hooks/session.h"

namespace nanscan {

// The root's forward begins inside a graph.
void traced_begin(Session& session, uint32_t site, const std::vector<at::Tensor>& inputs);

// A module's forward ended inside a graph. parent_site is kNoSite for none. Returns true when an output is bad.
bool traced_call(Session& session, uint32_t site, uint32_t parent_site, bool root, const std::vector<at::Tensor>& inputs,
                 const std::vector<at::Tensor>& outputs);

}  // namespace nanscan
