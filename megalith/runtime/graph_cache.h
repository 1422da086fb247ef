#pragma once
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "megalith/runtime/exec.h"
#include "megalith/runtime/timed_launches.h"

namespace megalith {

/// Graphs of pieces of a step, by key. In a step that captures, every piece is captured where it stands and run, so
/// that the step is as good as any; later steps launch it. Graphs are prepared when that step is over: on the way the
/// GPU may wait for another rank, which waits for this one. A piece is host code that asks for the same planned tensors
/// and runs the same ops on them every time it comes under its key.
class GraphCache {
 public:
  /// What names a piece within a step.
  struct Key {
    int chunk = 0;
    int instance = 0;  ///< microbatch or slot: what tells addresses apart
    Index layer = 0;
    int piece = 0;  ///< kForward or kBackward
    static constexpr int kForward = 0, kBackward = 1;
    bool operator==(const Key&) const = default;
  };
  /// comparing: eagerly, beside the graphs (Exec::run_beside).
  enum class State : std::uint8_t { eager, capturing, replaying, comparing };

  /// `name` is for messages; `memory` is what graphs may touch.
  void start(std::string name, std::vector<std::span<const std::byte>> memory) {
    name_ = std::move(name);
    memory_ = std::move(memory);
  }
  /// Before a step. Throws InternalError when graphs are captured a second time.
  void set_state(State state);
  State state() const { return state_; }
  /// Called behind every piece that was launched or compared, at its place in the step; an empty one is none.
  using Observer = std::function<void(Exec&, const Key&, const Graph&)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  /// Once all ranks have done all work of the step that captured.
  void prepare(Exec& ex);
  /// After a step's pieces. Throws InternalError, naming the piece that should have come next, when the step has left
  /// out what the captured one launched.
  void end_step() const;

  /// Runs the piece: eagerly, or by its graph. Pieces are launched as the step launched them in which they were
  /// captured: another order is an InternalError that names both pieces, because later ones reuse the memory of those
  /// before. Compared ones come in that order too.
  template <class Ops>
  void run(Exec& ex, const Key& key, Ops&& ops) {
    if (state_ == State::eager) return ops();
    if (state_ == State::capturing) return capture_and_run(ex, key, ops);
    const Captured& piece = next(key);
    if (state_ == State::comparing) {
      ex.run_beside(piece.graph, name_, ops);
    } else {
      ex.skip(piece.extent);
      launches_.launch(ex, piece.graph);
    }
    if (observer_) observer_(ex, key, piece.graph);
  }

  GraphStats stats() const;                                    ///< of all pieces
  const TimedLaunches& launches() const { return launches_; }  ///< since the first capture
  /// Throws std::out_of_range where there is none.
  const Graph& graph(const Key& key) const { return pieces_.at(key).graph; }
  /// The launches of a step.
  const std::vector<Key>& order() const { return order_; }
  /// Graphs are gone, and may be captured anew.
  void clear();

 private:
  struct Captured {
    Captured(Graph piece, const PhaseExtent& takes) : graph(std::move(piece)), extent(takes) {}
    Graph graph;
    PhaseExtent extent;  ///< what of the open phase the piece takes
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };

  template <class Ops>
  void capture_and_run(Exec& ex, const Key& key, Ops& ops) {
    if (!pieces_.contains(key)) {
      const PhaseExtent before = ex.phase_position();
      Capture capture(name_, memory_);
      Graph graph = ex.captured(capture, ops);
      pieces_.try_emplace(key, std::move(graph), ex.phase_position() - before);
      ex.go_back(before);
    }
    order_.push_back(key);
    ops();
  }
  /// The piece that comes next in a step.
  const Captured& next(const Key& key);
  std::string describe(const Key& key) const;

  std::string name_;
  std::vector<std::span<const std::byte>> memory_;
  State state_ = State::eager;
  Observer observer_;
  std::unordered_map<Key, Captured, Hash> pieces_;
  std::vector<Key> order_;
  std::size_t next_ = 0;  // in order_
  TimedLaunches launches_;
};

}  // namespace megalith
