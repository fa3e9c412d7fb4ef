// The tensors of one module's or extension's call at module level: what is noted of them as it begins, and what is recorded
// when it has ended.
#pragma once

#include <torch/csrc/python_headers.h>

#include <memory>
#include <vector>

#include "hooks/module_hook.h"
#include "hooks/thread_state.h"

namespace nanscan {

// Whose calls they are.
struct Tap {
  std::shared_ptr<Session> session;
  TapOptions options;
};

// Lets other Python threads run during scans of this many elements, if that takes longer than handing the GIL over does.
class ReleaseGil {
 public:
  explicit ReleaseGil(int64_t numel) : saved_(numel < kFrom ? nullptr : PyEval_SaveThread()) {}
  ~ReleaseGil() {
    if (saved_ != nullptr) PyEval_RestoreThread(saved_);
  }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  static constexpr int64_t kFrom = 1 << 16;
  PyThreadState* saved_;
};

// The value is read by the call of `frame`: take note of its state, and watch its gradient.
void see_input(const Tap& tap, ThreadState& state, Frame& frame, const at::Tensor& t, uint32_t ordinal);
// One output tensor. Returns true when it is bad, or when that is not known yet.
bool see_output(const Tap& tap, ThreadState& state, const Frame& frame, const at::Tensor& t, uint32_t ordinal, bool top,
                bool recompute);
// Which of the tensors it was given an extension has written: they are its results, after those it returned.
void add_written(Frame& frame, PyObject* given, std::vector<at::Tensor>& results);

// The call went bad: say in what state its inputs were, and its own parameters and buffers, and where it ran. On the
// healthy path none of this is looked at.
// The same on a device, where nobody knows yet whether the call went bad: said of every call, read only if it did. A
// value that some hook has seen is not read again.
void explain_late_input(const Tap& tap, ThreadState& state, const Frame& frame, const at::Tensor& t, uint32_t ordinal);
void explain_input(const Tap& tap, const Frame& frame, const at::Tensor& t, uint32_t ordinal);
void explain_own_tensors(const Tap& tap, const Frame& frame, PyObject* module, const char* attribute);
void append_link(Session& session, uint64_t call, uint64_t code, uint32_t site, uint64_t other_call, uint32_t ordinal);

}  // namespace nanscan
