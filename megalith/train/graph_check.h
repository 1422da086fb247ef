#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/capture/memory_copy.h"
#include "megalith/capture/segment_witness.h"
#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/runtime/graph_cache.h"

namespace megalith::train {

/// How what has graphs is run.
enum class Via : std::uint8_t { graphs, eager };

/// A run, for messages: "step 6", "evaluated batch 2".
struct RunName {
  const char* kind;
  Index number;
  std::string text() const { return str(kind, ' ', number); }
};

/// All ranks have done all work so far. `when` ("before graphs are captured") is for messages. Collective.
void meet(comm::World& world, Exec& ex, const char* when);

/// graphs.check: the first runs after the capture are compared with eager ones, bit for bit: all memory at the end, and
/// where layers have graphs also what each of these has left right behind it (SegmentWitness). Takes a copy of memory
/// in host memory from the first checked run on until it is told that they are over (MemoryCopy).
class GraphCheck {
 public:
  /// `ledger`: whose memory but the scratch is compared; in scratch libraries keep counters whose last values follow
  /// the order of thread blocks. `layers`: the graphs of graphs.mode = layers, whose observer a checked run sets and
  /// takes away. `names`(): what lies in memory, asked where something differs.
  GraphCheck(comm::World& world, const config::RunPlan& plan, const MemoryLedger& ledger, GraphCache& layers,
             std::function<MemoryNames()> names);

  /// Before step 1, once memory is taken. Throws ConfigError when the hosts have too little memory. Collective.
  void require_memory() const;
  /// calls: it runs eagerly only, and every op is held against the graph's (GraphComparison): what a debug build does
  /// where the recipe asks for nothing.
  enum class Checked : std::uint8_t { no, calls, results };
  /// Of a run, after so many runs.
  Checked turn(Index runs_before) const;
  /// run(Via::graphs); where results are checked again by run(Via::eager), from the memory that the first found: what
  /// differs is refused, the second's results stay. Where there are graphs, errors name the run. Collective.
  template <class Run>
  void run(Exec& ex, const RunName& name, Checked checked, Run&& run) {
    try {
      if (checked == Checked::results) return run_twice(ex, name, run);
      if (checked == Checked::calls) world_.wait_for(ex);  // CallsBehindGraphs::never
      run(checked == Checked::calls ? Via::eager : Via::graphs);
    } catch (Error& error) {
      put_name(error, name);
      throw;
    }
  }
  /// Gives the host memory back.
  void release() {
    copy_.reset();
    witness_.reset();
  }

 private:
  std::vector<MemoryLedger::Block> compared() const;
  void run_twice(Exec& ex, const RunName& name, const std::function<void(Via)>& run);
  /// What of all that differs a step writes first.
  std::optional<capture::MemoryCopy::Difference> first_difference(Exec& ex);
  void put_name(Error& error, const RunName& name) const;

  comm::World& world_;
  const config::RunPlan& plan_;
  const MemoryLedger& ledger_;
  GraphCache& layers_;
  std::function<MemoryNames()> names_;
  // No local: to give host memory back may wait for the GPU, which after an error waits for other ranks.
  std::optional<capture::MemoryCopy> copy_;
  std::optional<capture::SegmentWitness> witness_;  // with graphs of layers
};

}  // namespace megalith::train
