#include "hooks/replays.h"

#include "hooks/device_path.h"

namespace nanscan {

Replays::Graph& Replays::running() {
  if (begins_ || graphs_.back().entries.size() >= (size_t{1} << kIndexBits) - 1) graphs_.emplace_back();
  begins_ = false;
  return graphs_.back();
}

uint64_t Replays::id_of_next() const {
  return kBit | static_cast<uint64_t>(graphs_.size() - 1) << kIndexBits | graphs_.back().entries.size();
}

Replays::Graph* Replays::graph_of(uint64_t id) {
  const uint64_t number = (id & ~kBit) >> kIndexBits;
  return is_id(id) && number < graphs_.size() ? &graphs_[number] : nullptr;
}

uint64_t Replays::launch(const Record& header) {
  Graph& graph = running();
  const uint64_t id = id_of_next();
  graph.entries.push_back({header, index_of(id)});
  graph.n_launches += 1;
  return id;
}

void Replays::undo(uint64_t id) {
  Graph* graph = graph_of(id);
  while (graph != nullptr && graph->entries.size() > index_of(id)) {
    graph->n_launches -= graph->entries.back().of == graph->entries.size() - 1;
    graph->entries.pop_back();
  }
}

uint64_t Replays::repeat(uint64_t id, const Record& header) {
  Graph& graph = running();
  if (graph_of(id) != &graph || index_of(id) >= graph.entries.size()) return 0;
  const uint32_t of = graph.entries[index_of(id)].of;
  const uint64_t own = id_of_next();
  graph.entries.push_back({header, of});
  return own;
}

void Replays::note(const Record& record) { running().entries.push_back({record, kNone}); }

void Replays::outside() { begins_ = true; }

bool Replays::replayed(const Graph& graph, size_t i, Record& record) {
  const auto& [header, of] = graph.entries[i];
  if (of != kNone && !graph.is_there[of]) return false;
  record = header;
  if (of != kNone) copy_numbers(graph.arrived[of], record);
  record.step += graph.number;
  if (record.flags & kFlagEnter) record.n += graph.number;  // the number of the root's forward
  record.flags |= kFlagReplay;
  return true;
}

}  // namespace nanscan
