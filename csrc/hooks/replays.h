// What was captured into a graph of a device, and is done again by each replay without any hook being called.
//
// While a stream captures, the hooks run once and nothing of what they launch does. Each replay then writes one record
// per launch. What the hooks noted beside them (who called whom, that a forward began, that a value was seen again
// elsewhere) is kept here, and put around the numbers of every replay: in the order of the program, in one piece.
#pragma once

#include <cstdint>
#include <vector>

#include "record/record.h"

namespace nanscan {

class Replays {
 public:
  // An id of a captured launch, which stands where the others have their place in the ring.
  static bool is_id(uint64_t seq) { return (seq & kBit) != 0; }

  // A launch is about to be captured: its id, to be the header's seq.
  uint64_t launch(const Record& header);
  // It failed after all, and those after it.
  void undo(uint64_t id);
  // One more record about the value of a captured launch.
  uint64_t repeat(uint64_t id, const Record& header);
  // A record without numbers of its own, to be written by each replay.
  void note(const Record& record);
  // Something was launched outside: what is captured from now on belongs to another graph. Without that in between, two
  // graphs count as one, and make one step together when both are replayed.
  void outside();

  // A replay's record has arrived. The whole replay goes to emit(record) when the last one is there, or one of the next.
  template <typename F>
  void take(const Record& record, const F& emit);
  // Nothing more is coming: what has arrived goes out.
  template <typename F>
  void finish(const F& emit);

 private:
  static constexpr uint64_t kBit = uint64_t{1} << 63;
  static constexpr int kIndexBits = 24;
  static constexpr uint32_t kNone = ~0u;

  struct Entry {
    Record record;
    uint32_t of;  // the entry whose launch has the numbers; kNone: there are none
  };
  struct Graph {
    std::vector<Entry> entries;  // in the order of the program
    size_t n_launches = 0;
    // The replay that is coming in
    std::vector<Record> arrived;  // [entries] by entry
    std::vector<bool> is_there;   // [entries]
    size_t n_arrived = 0;
    uint64_t number = 0;  // replays before it
  };

  Graph& running();
  uint64_t id_of_next() const;
  Graph* graph_of(uint64_t id);
  static uint32_t index_of(uint64_t id) { return static_cast<uint32_t>(id & ((uint64_t{1} << kIndexBits) - 1)); }
  // Record number i of the replay; false when it has not arrived.
  static bool replayed(const Graph& graph, size_t i, Record& record);
  template <typename F>
  static void emit_all(Graph& graph, const F& emit);

  std::vector<Graph> graphs_;
  bool begins_ = true;  // the next captured launch begins a graph
};

template <typename F>
void Replays::emit_all(Graph& graph, const F& emit) {
  Record record;
  for (size_t i = 0; i < graph.entries.size(); ++i) {
    if (replayed(graph, i, record)) emit(record);
  }
  Record end{};
  end.flags = kFlagLink | kFlagReplay;
  end.n = kLinkReplayEnd;
  end.step = record.step;
  emit(end);
  graph.is_there.assign(graph.entries.size(), false);
  graph.n_arrived = 0;
}

template <typename F>
void Replays::take(const Record& record, const F& emit) {
  Graph* graph = graph_of(record.seq);
  const uint32_t i = index_of(record.seq);
  if (graph == nullptr || i >= graph->entries.size()) return;
  const uint64_t number = record.step - graph->entries[i].record.step;
  if (graph->n_arrived != 0 && (number != graph->number || graph->is_there[i])) emit_all(*graph, emit);
  graph->arrived.resize(graph->entries.size());
  graph->is_there.resize(graph->entries.size());
  graph->number = number;
  graph->arrived[i] = record;
  graph->is_there[i] = true;
  if (++graph->n_arrived == graph->n_launches) emit_all(*graph, emit);
}

template <typename F>
void Replays::finish(const F& emit) {
  for (Graph& graph : graphs_) {
    if (graph.n_arrived != 0) emit_all(graph, emit);
  }
}

}  // namespace nanscan
