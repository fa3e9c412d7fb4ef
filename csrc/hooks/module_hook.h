// The C++ half of a module's forward hooks: one ModuleTap object per watched module, called once before and once after
// its forward. The Python half (nanscan/hooks/module_hook.py) only decides whether we are being compiled.
#pragma once

#include <torch/csrc/python_headers.h>

#include <memory>

#include "hooks/session.h"

namespace nanscan {

struct TapOptions {
  uint32_t site = 0;         // the module's OUTPUT site
  bool root = false;         // its calls are batches, its inputs are always scanned
  bool eager_inputs = false; // writes its input in place: the input must be scanned before the call
  bool extension = false;    // no module: code that no dispatcher sees, and that may write whatever it is given
  uint32_t op = 0;           // its name's id
};

// New reference to a ModuleTap with methods enter(args, kwargs) and leave(module, args, kwargs, output) -> int.
// leave() returns kAttendBad when something bad was recorded and the outermost call just ended, kAttendFull when the
// ring is more than half full; 0 otherwise.
PyObject* new_module_tap(std::shared_ptr<Session> session, const TapOptions& options);

constexpr long kAttendBad = 1, kAttendFull = 2;

// The value that this thread has seen lately for `session` and whose memory the address points into, or undefined.
at::Tensor known_value_at(const Session& session, const void* address);
// Forget the values that this thread has seen for `session`: their taps keep it alive.
void forget_values(const Session& session);
// Forget what this thread remembers (tests, interpreter exit).
void clear_thread_state();
// Depth of the module stack of the calling thread, and the OUTPUT site of the innermost watched module (kNoSite: none).
size_t module_depth();
uint32_t current_module_site(const Session& session);
uint64_t current_call(const Session& session);
// Drop the calling thread's frames of `session`: at a step boundary no module of it can be running, unless a forward
// was left by an exception that hooks are not told of (KeyboardInterrupt).
void reset_stack(const Session& session);

}  // namespace nanscan
