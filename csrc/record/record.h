// One record: what one look at one tensor found out. The contract between kernels, ring, Python and log.
//
// Plain and dumb on purpose: 128 bytes, little endian, no pointers, no constructors. nanscan/record.py mirrors it as a
// numpy dtype; tests/record compares the two offset by offset. No torch and no std:: containers here, since device code
// includes this file too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace nanscan {

// Element type of the scanned tensor. Values are stored in logs: append, never renumber.
enum class DType : uint16_t {
  kUnknown = 0,
  kF64 = 1,
  kF32 = 2,
  kF16 = 3,
  kBF16 = 4,
  kF8E4M3FN = 5,    // 4 exponent bits, no infinity, NaN = 0x7f and 0xff, largest 448
  kF8E5M2 = 6,      // a float16 with two mantissa bits: has infinities and NaN
  kF8E4M3FNUZ = 7,  // no infinity, no negative zero, NaN = 0x80, largest 240
  kF8E5M2FNUZ = 8,  // the same with 5 exponent bits, largest 57344
  kC64 = 9,         // pairs of f32
  kC128 = 10,       // pairs of f64
};
constexpr int kNumDTypes = 11;

// When in a training step the value was seen.
enum Phase : uint8_t { kPhaseNone = 0, kPhaseData = 1, kPhaseForward = 2, kPhaseBackward = 3, kPhaseOptimizer = 4 };

// What a record is about. A record without kFlagLink and kFlagEnter carries statistics.
enum Flag : uint16_t {
  kFlagBad = 1,         // n_nan + n_posinf + n_neginf > 0; set by whoever finishes the record
  kFlagInput = 2,       // statistics of an input of call `call`; output_index is its ordinal among that call's tensors
  kFlagParam = 4,       // statistics of the module's own parameter or buffer, taken because the call's output was bad
  kFlagLink = 8,        // no statistics: a fact about a call or a value, see Link
  kFlagEnter = 16,      // no statistics: the root's forward call `call` begins; n = batch number, counting from 0
  kFlagRecompute = 32,  // forward run again inside a backward (activation checkpointing)
  kFlagTop = 64,        // output of an outermost module call
  kFlagChanged = 128,   // input seen clean earlier at the same version, bad now: written behind the dispatcher's back
  kFlagKnown = 256,     // the input's state had been seen before, as some module's output or a root input
  kFlagCall = 512,      // the slot holds a CallRecord (record/call_record.h), not statistics
  kFlagReplay = 1024,   // from a captured launch: step is that of the capture plus the number of replays before this one
  kFlagLate = 2048,     // op level on a device: a call, or the statistics of a value, that waits to be put together
  kFlagOp = 4096,       // statistics of what one op or node read or made; they belong to its call record
  kFlagDetail = 8192,   // for the cause rules, of call `call`: an argument's name, number or part, or a value that a node
                        // had saved; see call_record.h
};

// What a kFlagLink record says; the code stands in n.
enum Link : uint64_t {
  kLinkParent = 1,           // site = parent's OUTPUT site, call = child call, n_nan = parent call id
  kLinkProducerOfInput = 2,  // call = reading call, output_index = input ordinal, site = where the input was last seen,
                             // n_nan = that call's id
  kLinkGradProducer = 3,     // call = value id of a bad gradient, output_index = ordinal; site = OUTPUT site of a
                             // module that made the value, n_nan = its call, n_posinf = that call's parent call,
                             // n_neginf = parent's OUTPUT site (0xFFFFFFFF: none)
  kLinkGradConsumer = 4,     // the same for a module that read the value: site = its INPUT site
  kLinkReplayEnd = 5,        // the records of one replay of a graph end here
  kLinkArgument = 6,         // kFlagDetail: site = name id of the argument; min = its value if it is a number, n_nan = 1 if
                             // that is one of a list; shape if it is a tensor; output_index = Detail
  kLinkInnerOp = 7,          // kFlagDetail: site = name id of the op inside a Python backward that made the value, or of
                             // the node behind this one; output_index = Detail
  kLinkPast = 8,             // kFlagDetail: min = max|x| of what the same op at the same place had made in step n_nan
};

// Meaning of the statistics:
// - n counts elements; n_nan, n_posinf, n_neginf, n_zero, n_subnormal are disjoint subsets of them.
// - A complex element counts once, by its worse part: NaN, then +Inf, then -Inf (so (-inf, +inf) is a +Inf); zero only
//   if both parts are zero; subnormal if it is finite and any part is subnormal.
// - min, max, mean and m2 (sum of squared deviations from mean) run over the parts of the finite elements: the elements
//   themselves, or both parts of each complex element of which neither part is NaN or Inf. So the number of values
//   behind the moments is n_parts * (n - n_nan - n_posinf - n_neginf), with n_parts 2 for complex and 1 otherwise, and
//   std = sqrt(m2 / that number), L2 norm = hypot(sqrt(m2), sqrt(that number) * mean).
// - With no finite element min = +inf, max = -inf (the identity of the merge), mean = m2 = 0. The host shows NaN.
// - m2 may be +inf where squared deviations of float64 values overflow; it is never NaN.
// - first_bad is a flat index in row-major order of the tensor's shape, whatever its strides.
struct Record {
  uint64_t seq;   // 1-based ticket of the ring, doubles as the slot's publication stamp; 0 = never published
  uint64_t call;  // module-call id, from 1, 0 = none; for a gradient the forward call that made the value
  uint64_t step;
  uint32_t site;
  uint16_t dtype;  // DType
  uint16_t flags;  // Flag bits
  uint64_t n;
  uint64_t n_nan;
  uint64_t n_posinf;
  uint64_t n_neginf;
  uint64_t n_zero;
  uint64_t n_subnormal;
  double min;
  double max;
  double mean;
  double m2;
  int64_t first_bad;      // -1 = none
  uint32_t shape;         // interned shape id, 0 = not recorded
  uint16_t output_index;  // ordinal among the call's output tensors
  int8_t device;          // CUDA ordinal, -1 = cpu
  uint8_t phase;          // Phase
};

constexpr size_t kRecordBytes = 128;

static_assert(sizeof(Record) == kRecordBytes, "a record is 128 bytes");
static_assert(std::is_trivial<Record>::value && std::is_standard_layout<Record>::value, "a record is copied as bytes");
static_assert(offsetof(Record, seq) == 0, "");
static_assert(offsetof(Record, call) == 8, "");
static_assert(offsetof(Record, step) == 16, "");
static_assert(offsetof(Record, site) == 24, "");
static_assert(offsetof(Record, dtype) == 28, "");
static_assert(offsetof(Record, flags) == 30, "");
static_assert(offsetof(Record, n) == 32, "");
static_assert(offsetof(Record, n_nan) == 40, "");
static_assert(offsetof(Record, n_posinf) == 48, "");
static_assert(offsetof(Record, n_neginf) == 56, "");
static_assert(offsetof(Record, n_zero) == 64, "");
static_assert(offsetof(Record, n_subnormal) == 72, "");
static_assert(offsetof(Record, min) == 80, "");
static_assert(offsetof(Record, max) == 88, "");
static_assert(offsetof(Record, mean) == 96, "");
static_assert(offsetof(Record, m2) == 104, "");
static_assert(offsetof(Record, first_bad) == 112, "");
static_assert(offsetof(Record, shape) == 120, "");
static_assert(offsetof(Record, output_index) == 124, "");
static_assert(offsetof(Record, device) == 126, "");
static_assert(offsetof(Record, phase) == 127, "");
#if defined(__BYTE_ORDER__)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are little endian; this machine is not");
#endif

}  // namespace nanscan
