#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megalith/capture/accounting.h"
#include "megalith/capture/touched_memory.h"
#include "megalith/train/engine.h"

namespace megalith::train {

/// One way to run from graphs, by plan.
struct GraphPlan {
  capture::GraphCounts training;
  Index evaluation_graphs = 0;
  Index added_bytes = 0;  ///< in addition to the memory plan
};

/// The graphs of a rank for each way to run from them, and the memory that they use.
struct PlannedGraphs {
  int rank = 0, stage = 0, in_flight = 0;
  std::vector<int> captured_layers;  ///< by chunk
  std::vector<int> slots;            ///< as LoweredSchedule counts them
  GraphPlan per_microbatch, per_slot;
  std::optional<GraphPlan> iteration;  ///< none where the host reads sizes of experts' rows
  int lazy_warmup_passes = 0;          ///< that our graphs do not need
  capture::OwnedBuffers owned;
  BytesByOwner plan;
  Index fragmentation_bytes = 0;  ///< of the scratch (Engine::fragmentation_bytes)
};
/// Needs no device and does not communicate.
PlannedGraphs plan_graphs(const config::RunPlan& plan, int rank);

pipeline::ScheduleShape training_shape(const config::RunPlan& plan);
/// The sizes of a layer of the model on every rank that holds it.
capture::LayerSizes layer_sizes(const config::RunPlan& plan, Index layer);
/// The stages of a layer of the model that graphs of layers would hold, for any graphs.mode.
nn::LayerEdges captured_edges(const config::RunPlan& plan, Index layer);

/// One rank's graphs, by plan and as captured. Plain bytes, so that ranks can send it.
struct GraphAccount {
  Index planned_graphs = 0, planned_launches = 0;  ///< launches: per step
  capture::OwnedBuffers owned = {};                ///< by plan: what graphs with buffers of their own would need
  Index added_bytes = 0;                           ///< to the memory plan
  Index scratch_bytes = 0;                         ///< of the plan, which all graphs share: its peak
  Index fragmentation_bytes = 0;                   ///< the part of these that no tensor uses
  Index graphs = 0, launches = 0, ops = 0, nodes = 0;
  Index comm_calls = 0;                 ///< in a step's launches: collectives and messages between ranks
  capture::TouchedMemory touched = {};  ///< of the step's graphs, from the addresses that they captured
  Index device_bytes = 0;               ///< that the driver took during the capture; 0 on the CPU
  double capture_s = 0, instantiate_s = 0;
  double launch_s = 0;  ///< host time to launch a step

  /// Whether everything except the times is equal.
  bool is_like(const GraphAccount& other) const;
};
/// The accounts of all ranks, when training graphs are captured. Includes evaluation graphs if they are captured, too.
/// Collective.
std::vector<GraphAccount> account_for_graphs(Engine& engine, const config::RunPlan& plan);

/// Tables for readers: rank 0, and the ranks whose numbers differ from it. The table of memory is printed for the first
/// of the ranks whose graphs access the same owners' memory.
std::string graphs_tables(const std::vector<GraphAccount>& ranks, capture::GraphMode mode);

}  // namespace megalith::train
