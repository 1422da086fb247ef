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

/// How ops that have a graph run.
enum class Via : std::uint8_t { graphs, eager };

/// The name of a run, for messages: "step 6", "evaluated batch 2".
struct RunName {
  const char* kind;
  Index number;
  std::string text() const { return str(kind, ' ', number); }
};

/// graphs.check: compares the first runs after the capture with eager ones, bit for bit. Compares all memory at the end
/// and, if layers have graphs, the results of each graph right after it (SegmentWitness). From the first checked run
/// until release() it holds a copy of memory in host memory (MemoryCopy).
class GraphCheck {
 public:
  /// `ledger`: its memory except scratch is compared. In scratch, libraries keep counters whose last values depend on
  /// the order of thread blocks. `layers`: the graphs of graphs.mode = layers; a checked run sets and removes their
  /// observer. `names`(): names of memory, called only if there is a difference.
  GraphCheck(comm::World& world, const config::RunPlan& plan, const MemoryLedger& ledger, GraphCache& layers,
             std::function<MemoryNames()> names);

  /// Call it before step 1, when memory is taken. Throws ConfigError if the hosts have too little memory. Collective.
  void require_memory() const;
  /// calls: the run is eager only, and every op is compared with the graph's (GraphComparison). A debug build does this
  /// if the recipe requests no check.
  enum class Checked : std::uint8_t { no, calls, results };
  /// How a run is checked that comes after `runs_before` others.
  Checked turn(Index runs_before) const;
  /// Runs run(Via::graphs). If results are checked, runs run(Via::eager) from the same memory and refuses differences;
  /// the results of the second run stay. With graphs, errors name the run. Collective.
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
  /// Releases the host memory.
  void release() {
    copy_.reset();
    witness_.reset();
  }

 private:
  std::vector<MemoryLedger::Block> compared() const;
  void run_twice(Exec& ex, const RunName& name, const std::function<void(Via)>& run);
  /// The first difference in the order of a step.
  std::optional<capture::MemoryCopy::Difference> first_difference(Exec& ex);
  void put_name(Error& error, const RunName& name) const;

  comm::World& world_;
  const config::RunPlan& plan_;
  const MemoryLedger& ledger_;
  GraphCache& layers_;
  std::function<MemoryNames()> names_;
  // Not a local variable: releasing host memory may wait for the GPU, which after an error waits for other ranks.
  std::optional<capture::MemoryCopy> copy_;
  std::optional<capture::SegmentWitness> witness_;  // with graphs of layers
};

}  // namespace megalith::train
