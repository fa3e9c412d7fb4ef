// From an autograd node back to the forward op that made it: by forward thread and sequence number.
#pragma once

#include <cstdint>

namespace nanscan {

struct ForwardOp {
  uint32_t site = 0xFFFFFFFFu;  // OUTPUT site of the module it ran in
  uint32_t line = 0;
  uint32_t op = 0;
  uint64_t call = 0;
  bool recompute = false;  // run again inside a backward (activation checkpointing)
  uint32_t node = 0;       // name of the node that ran around it (double backward), plus 1; 0 for none
};

// The calling thread's nodes with sequence numbers [first, last) were made by `op`.
void note_forward(int64_t first, int64_t last, const ForwardOp& op);

// Found if it was noted and is among the last 65,536 nodes of its thread.
bool find_forward(uint64_t thread, int64_t seq, ForwardOp& op);

}  // namespace nanscan
