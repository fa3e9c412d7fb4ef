// A wrapped call of code that no dispatcher sees (pybind, ctypes, numpy), at op level: judged like a custom op. Since such
// code may write whatever it was given and raises no version, its arguments are read before it and again after it.
#pragma once

#include <vector>

#include "hooks/session.h"

namespace nanscan {

// The call `op` begins on this thread, on `given`. Returns its id, or 0 where it is part of a call that runs already.
uint64_t begin_extension(Session& session, uint32_t op, const std::vector<at::Tensor>& given);
// It returned `results`. Nothing happens unless begin_extension() gave this id.
void end_extension(Session& session, uint64_t call, const std::vector<at::Tensor>& results);
// It raised. 0: whichever runs on this thread, if one does.
void drop_extension(uint64_t call);

// Whether two looks at one tensor saw the same content, as far as statistics can tell.
bool same_content(const Record& a, const Record& b);

}  // namespace nanscan
