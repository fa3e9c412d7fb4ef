// One observed call (an op, an autograd node, a place where a value leaves the program) in the form of a record: the same
// 128 bytes, the same ring, told apart by kFlagCall. Written only when a value around it is non-finite, so a healthy step
// leaves none. The statistics of its tensors follow as ordinary records with the same `call`.
#pragma once

#include "record/record.h"

namespace nanscan {

enum CallKind : uint8_t {
  kCallOp = 0,     // an outermost op that is not a pure composite
  kCallNode = 1,   // an autograd node: inputs are incoming gradients, outputs its results
  kCallTop = 2,    // the output of an outermost module call
  kCallCheck = 3,  // nanscan.check
  kCallLoss = 4,   // a backward pass begins at this value
  kCallLeaf = 5,   // a gradient arrives at a leaf (AccumulateGrad)
};

enum CallBit : uint16_t {
  kCallConstant = 1,      // a non-finite Python number was passed, or the op only makes constants
  kCallWritesParam = 2,   // an argument it writes is a watched parameter or buffer
  kCallSelects = 4,       // its result consists of elements of its inputs (where, index, cat, clamp ...)
  kCallHost = 8,          // a value left for the host (.item())
  kCallNoTensors = 16,    // no tensor among the inputs
  kCallRecompute = 32,    // forward run again inside a backward
  kCallScales = 64,       // a GradScaler multiplies a loss: what overflows there is its to judge
};

// What a value holds, and what is known of it.
enum ValueBit : uint8_t {
  kHasNan = 1,
  kHasPosInf = 2,
  kHasNegInf = 4,
  kValueOutside = 8,   // no observed call wrote it
  kValueUninit = 16,   // only an uninitialised factory produced the memory
  kValueChanged = 32,  // clean when it was last seen, bad now, and no observed write in between
  kValueParam = 64,    // a watched parameter or buffer
  kValueLate = 128,    // on a device: what it holds is said by the record of the call that made it
};
// In an entry of CallRecord::inputs: not read, but what is left of the storage that the call wrote a part of.
constexpr uint64_t kRestOfStorage = 1ull << 54;
constexpr uint8_t kBadBits = kHasNan | kHasPosInf | kHasNegInf;

// NaN / +Inf / -Inf bits of a record.
inline uint8_t bits_of(const Record& rec) {
  return static_cast<uint8_t>((rec.n_nan ? kHasNan : 0) | (rec.n_posinf ? kHasPosInf : 0) | (rec.n_neginf ? kHasNegInf : 0));
}

// What output_index of a kFlagDetail record says: the ordinal of a tensor among the call's inputs, that of a tensor of
// integers plus kDetailCounts, or one of the others. With kFlagInput such a record has the statistics of those elements of the tensor that the first bad
// element of the result was computed from; with kFlagParam, of a saved tensor as a whole.
enum Detail : uint16_t {
  kDetailCounts = 0x8000,
  kDetailNumber = 0xFFFF,  // an argument that is a Python number
  kDetailSaved = 0xFFFE,   // a value that an autograd node had saved of its forward
  kDetailBehind = 0xFFFC,  // the node inside which this one was made: double backward
  kDetailInner = 0xFFFD,   // the op inside a Python backward: its name, and with kFlagParam its result
};

constexpr uint32_t kMaxCallInputs = 8;  // further inputs are dropped, bad ones first kept

struct CallRecord {
  uint64_t seq;
  uint64_t call;
  uint64_t step;
  uint32_t site;      // OUTPUT site of the module it ran in, kNoSite outside
  uint16_t bits;      // CallBit
  uint16_t flags;     // kFlagCall, kFlagRecompute
  uint32_t op;        // name id
  uint32_t line;      // source line id, 0 = not known
  uint8_t kind;       // CallKind
  uint8_t n_inputs;   // entries below
  uint8_t n_outputs;  // entries of `outputs`
  uint8_t output_bits;  // ValueBit of all outputs together (legal ones left out)
  uint32_t thread;
  // [n_inputs] value id << 8 | ValueBit; of a node the last one is the call id of the forward op that made it
  uint64_t inputs[kMaxCallInputs];
  // The value id of its (first) result. Several results of one call share the id.
  uint64_t output;
  uint8_t padding_[6];
  int8_t device;
  uint8_t phase;
};

static_assert(sizeof(CallRecord) == sizeof(Record), "a call record travels in the ring of records");
static_assert(offsetof(CallRecord, seq) == offsetof(Record, seq), "");
static_assert(offsetof(CallRecord, call) == offsetof(Record, call), "");
static_assert(offsetof(CallRecord, step) == offsetof(Record, step), "");
static_assert(offsetof(CallRecord, site) == offsetof(Record, site), "");
static_assert(offsetof(CallRecord, flags) == offsetof(Record, flags), "");
static_assert(offsetof(CallRecord, inputs) == 48, "");
static_assert(offsetof(CallRecord, phase) == offsetof(Record, phase), "");

}  // namespace nanscan
