#pragma once
#include "tests/train/small_run.h"

namespace megalith::support {

/// A way to run from graphs.
struct GraphWay {
  const char* name;
  capture::GraphMode mode;
  bool optimizer = false;                                   ///< iteration
  capture::GraphsPer per = capture::GraphsPer::microbatch;  ///< layers
};
inline constexpr GraphWay kPasses{"passes", capture::GraphMode::iteration},
    kWholeSteps{"whole_step", capture::GraphMode::iteration, true},
    kLayers{"layers_per_microbatch", capture::GraphMode::layers},
    kLayersPerSlot{"layers_per_slot", capture::GraphMode::layers, false, capture::GraphsPer::slot};
inline constexpr GraphWay kGraphWays[] = {kPasses, kWholeSteps, kLayers, kLayersPerSlot};

inline capture::GraphsConfig graphs_of(const GraphWay& way, Index warmup_steps) {
  capture::GraphsConfig graphs;
  graphs.mode = way.mode;
  graphs.per = way.per;
  graphs.warmup_steps = warmup_steps;
  graphs.optimizer = way.optimizer;
  return graphs;
}
inline config::RunPlan with_graphs(config::RunPlan plan, const GraphWay& way, Index warmup_steps) {
  plan.graphs = graphs_of(way, warmup_steps);
  return plan;
}

}  // namespace megalith::support
