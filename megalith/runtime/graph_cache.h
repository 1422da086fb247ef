#pragma once
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "megalith/runtime/exec.h"
#include "megalith/runtime/timed_launches.h"

namespace megalith {

/// Graphs of segments of a step, by key. In a step that captures, every segment is captured in its place and then run.
/// So this step trains like any other. Later steps launch the graphs. Graphs are prepared after that step: within it
/// the GPU may wait for another rank, which waits for this one. A segment is host code that requests the same planned
/// tensors, and runs the same ops on them, every time it runs under its key.
class GraphCache {
 public:
  /// Identifies a segment within a step.
  struct Key {
    int chunk = 0;
    int instance = 0;  ///< microbatch or slot: segments with equal other members have different addresses
    Index layer = 0;
    int segment = 0;  ///< kForward or kBackward
    static constexpr int kForward = 0, kBackward = 1;
    bool operator==(const Key&) const = default;
  };
  /// comparing: eagerly, compared with the graphs (Exec::run_beside).
  enum class State : std::uint8_t { eager, capturing, replaying, comparing };

  /// `name` is for messages. `memory`: what graphs may access.
  void start(std::string name, std::vector<std::span<const std::byte>> memory) {
    name_ = std::move(name);
    memory_ = std::move(memory);
  }
  /// Call it before a step. Throws InternalError if graphs would be captured a second time.
  void set_state(State state);
  State state() const { return state_; }
  /// Called after every segment that was launched or compared, at its position in the step. An empty one removes the
  /// observer.
  using Observer = std::function<void(Exec&, const Key&, const Graph&)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }
  /// Call it when all ranks have completed all work of the step that captured.
  void prepare(Exec& ex);
  /// Call it after the segments of a step. Throws InternalError that names the next segment if the step has left out a
  /// launch of the captured step.
  void end_step() const;

  /// Runs the segment, eagerly or from its graph. Segments must be launched in the order of the captured step, because
  /// later ones reuse the memory of earlier ones. Another order is an InternalError that names both segments. Compared
  /// segments have the same order.
  template <class Ops>
  void run(Exec& ex, const Key& key, Ops&& ops) {
    if (state_ == State::eager) return ops();
    if (state_ == State::capturing) return capture_and_run(ex, key, ops);
    const Captured& captured = next(key);
    if (state_ == State::comparing) {
      ex.run_beside(captured.graph, name_, ops);
    } else {
      ex.skip(captured.extent);
      launches_.launch(ex, captured.graph);
    }
    if (observer_) observer_(ex, key, captured.graph);
  }

  GraphStats stats() const;                                    ///< sums over all segments
  const TimedLaunches& launches() const { return launches_; }  ///< since the first capture
  /// Throws std::out_of_range if there is none.
  const Graph& graph(const Key& key) const { return captured_.at(key).graph; }
  /// The launches of a step.
  const std::vector<Key>& order() const { return order_; }
  /// Drops the graphs. They may be recaptured.
  void clear();

 private:
  struct Captured {
    Captured(Graph captured, const PhaseExtent& takes) : graph(std::move(captured)), extent(takes) {}
    Graph graph;
    PhaseExtent extent;  ///< the part of the open phase that the segment takes
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };

  template <class Ops>
  void capture_and_run(Exec& ex, const Key& key, Ops& ops) {
    if (!captured_.contains(key)) {
      const PhaseExtent before = ex.phase_position();
      Capture capture(name_, memory_);
      Graph graph = ex.captured(capture, ops);
      captured_.try_emplace(key, std::move(graph), ex.phase_position() - before);
      ex.go_back(before);
    }
    order_.push_back(key);
    ops();
  }
  /// The next segment in a step.
  const Captured& next(const Key& key);
  std::string describe(const Key& key) const;

  std::string name_;
  std::vector<std::span<const std::byte>> memory_;
  State state_ = State::eager;
  Observer observer_;
  std::unordered_map<Key, Captured, Hash> captured_;
  std::vector<Key> order_;
  std::size_t next_ = 0;  // in order_
  TimedLaunches launches_;
};

}  // namespace megalith
