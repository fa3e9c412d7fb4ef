#include "hooks/op_table.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <shared_mutex>

namespace nanscan {
namespace {

std::shared_mutex mutex;
std::unordered_map<std::string, uint32_t> rules_by_name;
std::unordered_map<std::string, uint64_t> legal_by_name;
// By the schema's own name string, which lives as long as the op is registered. Only ops are cached: a range's name is
// a temporary whose address means nothing.
std::unordered_map<const char*, OpInfo> infos;
std::deque<std::string> names;
std::unordered_map<std::string, uint32_t> ids;

std::atomic<uint64_t> ops_gone{0};  // ops unregistered so far: the cached pointers may be another op's by now

// A library that is unloaded or defined again (a notebook cell run twice) frees its schemas, and with them our keys.
class Unregistered : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& /*op*/) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    std::unique_lock<std::shared_mutex> lock(mutex);
    const auto found = infos.find(op.schema().name().c_str());
    if (found == infos.end()) return;
    retired.push_back(infos.extract(found));  // a call that runs may hold it
    ops_gone.fetch_add(1, std::memory_order_release);
  }

 private:
  std::deque<std::unordered_map<const char*, OpInfo>::node_type> retired;
};

void listen() {
  // Kept for the life of the process: the dispatcher would call every listener again for every op on the way in.
  static auto* handle = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Unregistered>()));
  (void)handle;
}

bool torchs_own(const std::string& ns) { return ns == "aten" || ns == "prim" || ns == "prims"; }

void relate(OpInfo& info, const c10::FunctionSchema& schema, const c10::OperatorHandle* handle) {
  const auto& arguments = schema.arguments();
  bool factors = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    info.arguments.push_back(name_id(name.c_str()));
    if ((name == "running_mean" || name == "running_var") && arguments[i].alias_info() == nullptr) info.updated |= 1ull << i;
    if (name == "training" || name == "train" || name == "use_input_stats") info.training_argument = static_cast<uint16_t>(i);
    if (name == "dim") info.dim_argument = static_cast<uint16_t>(i);
    if (name == "mat2" || name == "batch2" || name == "vec") {
      factors = true;
      info.product_argument = static_cast<uint16_t>(i - 1);
    }
  }
  const bool foreach = info.name.find("::_foreach_") != std::string::npos;
  if (factors) info.relation = Relation::kProduct;
  else if (foreach && info.name.find("_norm") != std::string::npos) info.relation = Relation::kItem;
  else if (foreach || info.name.find("::_fused_") != std::string::npos) info.relation = Relation::kElement;
  else if (handle != nullptr && handle->hasTag(at::Tag::pointwise)) info.relation = Relation::kElement;
  else if (info.dim_argument != 0xFFFF) info.relation = Relation::kAlong;
}

OpInfo describe(const c10::OperatorName& op, const c10::FunctionSchema& schema) {
  OpInfo info;
  info.name = op.name;
  info.id = name_id(op.name.c_str());
  const auto handle = c10::Dispatcher::singleton().findSchema(op);
  const auto ns = op.getNamespace();
  // A plain m.def("f", &f) registers as a composite too, yet it is the user's op and nothing inside it has a name.
  if (handle && ns && torchs_own(std::string(*ns)) &&
      handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    info.own_rules |= kOpTransparent;
  }
  relate(info, schema, handle ? &*handle : nullptr);
  const auto& arguments = schema.arguments();
  const auto rule = rules_by_name.find(op.name);
  const uint32_t given = rule == rules_by_name.end() ? 0 : rule->second;
  const bool overwrites = (given & (kOpConstant | kOpOverwrites)) != 0;
  for (size_t i = 0; i < arguments.size() && i < 64; ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    info.written |= 1ull << i;
    if (overwrites || arguments[i].is_out()) info.overwritten |= 1ull << i;
  }
  bool all_alias = !schema.returns().empty() && info.written == 0;
  for (const auto& r : schema.returns()) all_alias = all_alias && r.alias_info() != nullptr && !r.alias_info()->isWrite();
  if (all_alias || (ns && *ns == "nanscan")) info.own_rules |= kOpLook;  // our own look inside compiled graphs
  info.rules = info.own_rules | given;
  const auto legal = legal_by_name.find(op.name);
  if (legal != legal_by_name.end()) info.legal = legal->second;
  return info;
}

}  // namespace

uint32_t name_id(const char* name) {
  static std::mutex ids_mutex;
  std::lock_guard<std::mutex> lock(ids_mutex);
  auto [it, fresh] = ids.try_emplace(name, static_cast<uint32_t>(names.size()));
  if (fresh) names.emplace_back(name);
  return it->second;
}

std::string name_of(uint32_t id) { return id < names.size() ? names[id] : std::string(); }

void set_op_rules(const std::unordered_map<std::string, uint32_t>& rules, const std::unordered_map<std::string, uint64_t>& legal) {
  std::unique_lock<std::shared_mutex> lock(mutex);
  rules_by_name = rules;
  legal_by_name = legal;
  for (auto& [name, info] : infos) {
    const auto rule = rules_by_name.find(info.name);
    info.rules = info.own_rules | (rule == rules_by_name.end() ? 0 : rule->second);
    const auto legal_outputs = legal_by_name.find(info.name);
    info.legal = legal_outputs == legal_by_name.end() ? 0 : legal_outputs->second;
  }
}

const OpInfo* op_info(const at::RecordFunction& fn) {
  static thread_local std::unordered_map<const char*, const OpInfo*> seen;
  static thread_local uint64_t seen_until = 0;
  const uint64_t gone = ops_gone.load(std::memory_order_acquire);
  if (seen_until != gone) {
    seen.clear();
    seen_until = gone;
  }
  const char* key = fn.name();
  const auto it = seen.find(key);
  if (it != seen.end()) return it->second;
  const auto op = fn.operator_name();
  if (!op) return nullptr;
  listen();  // without our lock: the dispatcher calls the listener with its own lock held
  std::unique_lock<std::shared_mutex> lock(mutex);
  auto found = infos.find(key);
  if (found == infos.end()) {
    const auto schema = fn.operator_schema();
    if (!schema) return nullptr;
    found = infos.emplace(key, describe(*op, *schema)).first;  // unordered_map: addresses of values stay
  }
  seen.emplace(key, &found->second);
  return &found->second;
}

}  // namespace nanscan
