// What is known of each op before it runs: decided once per op, from its schema and from the rules that are data.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace nanscan {

enum OpRule : uint32_t {
  kOpTransparent = 1,  // a pure composite: the ops inside are the ones to see
  kOpLook = 2,         // looks at data or returns an alias of it: no scan, no reader of bad memory
  kOpUninit = 4,       // returns memory that nobody has filled
  kOpConstant = 8,     // makes constants out of Python numbers
  kOpSelects = 16,     // its result consists of elements of its inputs, or it compares
  kOpHost = 32,        // hands a value to the host
  kOpOverwrites = 64,  // fills the argument it writes without reading it
  kOpFilled = 128,     // its argument was filled without an op: torch.tensor(list) allocates and writes by itself
};

// Which elements of an argument an element of the result is computed from.
enum class Relation : uint8_t {
  kNone,     // not known
  kElement,  // the one at the same place, after broadcasting
  kAlong,    // of the first argument, those along the dimensions that `dim` names, or all
  kProduct,  // a row of one factor and a column of the other
  kItem,     // all of the list's tensor with the same place
};

struct OpInfo {
  std::string name;
  uint32_t id = 0;
  uint32_t rules = 0;
  uint32_t own_rules = 0;  // those of them that the schema says
  uint64_t written = 0;      // bit i: argument i is written
  uint64_t overwritten = 0;  // bit i: argument i is written and not read
  uint64_t updated = 0;      // bit i: argument i is a running statistic, which the schema does not mark as written
  uint64_t legal = 0;        // bit i: output i may be non-finite (bookkeeping of the op)
  std::vector<uint32_t> arguments;  // name ids
  Relation relation = Relation::kNone;
  uint16_t dim_argument = 0xFFFF;
  uint16_t training_argument = 0xFFFF;  // whether the running statistics are updated
  uint16_t product_argument = 0;  // the first factor
};

// Rules by name ("aten::where"), and outputs that may be non-finite. Replaces what was there; takes effect for all ops.
void set_op_rules(const std::unordered_map<std::string, uint32_t>& rules, const std::unordered_map<std::string, uint64_t>& legal);

// The op behind a range, or nullptr when it is none (an autograd or user range).
const OpInfo* op_info(const at::RecordFunction& fn);

// Interned names: ops and autograd nodes share the ids.
uint32_t name_id(const char* name);
std::string name_of(uint32_t id);

}  // namespace nanscan
