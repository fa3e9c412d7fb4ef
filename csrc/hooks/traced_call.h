#pragma once

#include <vector>

#include "hooks/session.h"

namespace nanscan {

// The root's forward begins inside a graph.
void traced_begin(Session& session, uint32_t site, const std::vector<at::Tensor>& inputs);

// A module's forward ended inside a graph. parent_site is kNoSite for none. Returns true when an output is bad.
bool traced_call(Session& session, uint32_t site, uint32_t parent_site, bool root, const std::vector<at::Tensor>& inputs,
                 const std::vector<at::Tensor>& outputs);

// A parameter of the module with OUTPUT site `module_site`, whose traced call was bad: recorded if it is bad itself.
void traced_parameter(Session& session, const at::Tensor& t, uint32_t site, uint32_t module_site);

}  // namespace nanscan
