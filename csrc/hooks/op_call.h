// What the observer keeps of the call that runs on this thread, and how it turns into records.
#pragma once

#include <vector>

#include "hooks/op_table.h"
#include "hooks/session.h"
#include "record/call_record.h"

namespace nanscan {

// A tensor the call reads, with the state it was in. The reference lasts as long as the call.
struct CallInput {
  at::Tensor tensor;
  uint64_t value = 0;
  uint8_t bits = 0;
  bool written = false;
  bool scanned_now = false;
};

struct RunningCall {
  uint64_t call = 0;
  uint32_t op = 0;
  uint32_t site = kNoSite;
  uint32_t line = 0;
  uint64_t forward = 0;  // a node: call id of the forward op that made it
  uint16_t bits = 0;  // CallBit
  uint8_t kind = kCallOp;
  Phase phase = kPhaseForward;
  std::vector<CallInput> inputs;
  std::vector<at::Tensor> written;

  void clear() {
    inputs.clear();
    written.clear();
    line = 0;
    bits = 0;
  }
  bool bad_input() const {
    for (const auto& in : inputs) {
      if (in.bits & kBadBits) return true;
    }
    return false;
  }
};

// One result of a call, scanned.
struct CallOutput {
  at::Tensor tensor;
  Record record{};
  uint32_t index = 0;
  bool legal = false;
};

// Writes the call record and, for a bad result, the statistics of what it made and read. Rescans inputs that were known
// clean: one that is bad by now was written behind the dispatcher's back.
void write_call(Session& session, RunningCall& call, const std::vector<CallOutput>& outputs);

// A value left the program's watched part: the output of an outermost module call, or a check. Writes a call record if
// it is bad. Returns true then.
bool observe_escape(Session& session, const at::Tensor& t, CallKind kind, uint32_t site, Phase phase);

}  // namespace nanscan
