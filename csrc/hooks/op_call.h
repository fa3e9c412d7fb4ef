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
  uint16_t argument = 0;  // place in the schema
  uint16_t item = 0;      // place in the list that the argument is, if it is one
  bool listed = false;
};

// A tensor of integers or a mask among the arguments.
struct Counts {
  at::Tensor tensor;
  uint16_t argument;
  uint16_t item;
  bool listed;
};

// A Python number among the arguments.
struct Scalar {
  uint16_t argument;
  bool listed;  // one of several: dim=[0, 1]
  double value;
};

struct RunningCall {
  const OpInfo* info = nullptr;
  uint64_t call = 0;
  uint32_t op = 0;
  uint32_t site = kNoSite;
  uint32_t line = 0;
  uint64_t forward = 0;  // a node: call id of the forward op that made it
  uint32_t behind = 0;   // a node: name of the node inside which it was made, plus 1; 0 for none
  uint16_t bits = 0;  // CallBit
  uint8_t kind = kCallOp;
  Phase phase = kPhaseForward;
  std::vector<CallInput> inputs;
  std::vector<at::Tensor> written;
  std::vector<at::Tensor> updated;  // running statistics: written besides, and no result of the call
  std::vector<Scalar> scalars;
  std::vector<Counts> counts;
  std::vector<Record> details;  // found while it ran; what else is known is added as it is written

  void clear() {
    info = nullptr;
    scalars.clear();
    counts.clear();
    details.clear();
    inputs.clear();
    written.clear();
    updated.clear();
    line = 0;
    bits = 0;
    behind = 0;
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
  uint16_t item = 0;  // place in the list that it was written in, if it was one
  bool legal = false;
};

// The result by which a call is known to have made something bad: nullptr if it made nothing that it was not given.
const CallOutput* born_in(const RunningCall& call, const std::vector<CallOutput>& outputs);

// Per thread: the one outermost call that runs, an op or an extension. What runs inside it is part of it.
struct OpThread {
  bool running = false;
  RunningCall call;
  std::vector<CallOutput> outputs;

  void clear() {
    running = false;
    outputs.clear();
    call.clear();
  }
};

OpThread& op_thread();

// The thread's outermost call begins / has ended, with what it read in `call.inputs` and what it made in `outputs`.
// `first_node`: at::sequence_number::peek() as it began; the autograd nodes made since get its name and line.
void begin_call(Session& session, OpThread& thread, uint32_t op);
void end_call(Session& session, OpThread& thread, int64_t first_node);

// A read finds bad what was clean when it was last seen: somebody wrote there without the dispatcher.
void note_change(Session& session, CallInput& in, uint8_t now);

// What came of a call: its results are known from here on, and it is recorded if something about it is bad, or if that
// cannot be known yet.
void record_outcome(Session& session, RunningCall& call, const std::vector<CallOutput>& outputs, bool bad);

// Writes the call record and, for a bad result, the statistics of what it made and read. Rescans inputs that were known
// clean: one that is bad by now was written behind the dispatcher's back.
void write_call(Session& session, RunningCall& call, const std::vector<CallOutput>& outputs);

// A value left the program's watched part: the output of an outermost module call, or a check. Writes a call record if
// it is bad. Returns true then.
bool observe_escape(Session& session, const at::Tensor& t, CallKind kind, uint32_t site, Phase phase);

}  // namespace nanscan
