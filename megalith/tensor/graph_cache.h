#pragma once
#include <string>
#include <unordered_map>

#include "megalith/tensor/exec.h"

namespace megalith {

/// Graphs of pieces of a step, by key. In a step that captures, every piece is captured where it stands and launched at
/// once, so that the step is as good as any; later steps launch it. A piece is host code that asks for the same planned
/// tensors and runs the same ops on them every time it comes under its key.
class GraphCache {
 public:
  /// What names a piece within a step.
  struct Key {
    int chunk = 0;
    int instance = 0;  ///< microbatch or slot: what tells addresses apart
    Index layer = 0;
    int piece = 0;  ///< numbered by the caller: part of the layer, direction
    bool operator==(const Key&) const = default;
  };
  enum class State : std::uint8_t { eager, capturing, replaying };

  /// `name` is for messages; `memory` is what graphs may touch.
  void start(std::string name, std::vector<std::span<const std::byte>> memory) {
    name_ = std::move(name);
    memory_ = std::move(memory);
  }
  /// Before a step. Throws InternalError when graphs are captured a second time.
  void set_state(State state);
  State state() const { return state_; }

  /// Runs the piece: eagerly, or by its graph.
  template <class Ops>
  void run(Exec& ex, const Key& key, Ops&& ops) {
    if (state_ == State::eager) return ops();
    if (state_ == State::capturing && !pieces_.contains(key)) {
      pieces_.emplace(key, capture(ex, ops));
    } else {
      ex.skip(at(key).extent);
    }
    at(key).graph.launch(ex);
    ++launches_;
  }

  Index num_graphs() const { return static_cast<Index>(pieces_.size()); }
  Index launches() const { return launches_; }  ///< since the first capture
  /// Graphs are gone, and may be captured anew.
  void clear();

 private:
  struct Captured {
    Graph graph;
    PhaseExtent extent;  ///< what of the open phase the piece takes
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };

  template <class Ops>
  Captured capture(Exec& ex, Ops& ops) {
    const PhaseExtent before = ex.phase_position();
    Capture capture(name_, memory_);
    ex.begin_capture(capture);
    try {
      ops();
    } catch (...) {
      ex.abandon_capture();
      throw;
    }
    Graph graph = ex.end_capture();
    return {std::move(graph), ex.phase_position() - before};
  }
  /// Throws InternalError when there is no graph under the key.
  const Captured& at(const Key& key) const;

  std::string name_;
  std::vector<std::span<const std::byte>> memory_;
  State state_ = State::eager;
  std::unordered_map<Key, Captured, Hash> pieces_;
  Index launches_ = 0;
};

}  // namespace megalith
