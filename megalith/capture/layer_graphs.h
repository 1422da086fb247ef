#pragma once
#include <span>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/capture/graphs_config.h"
#include "megalith/pipeline/lowering.h"
#include "megalith/pipeline/schedule.h"

namespace megalith::capture {

/// The captured layers of one rank: its position in a schedule, and the number of layers with graphs in each chunk.
struct RankLayers {
  pipeline::ScheduleShape shape;  ///< of training
  int stage = 0;
  std::vector<int> per_chunk;  ///< captured layers of each chunk, from 0

  int total() const;
};

/// Graph pairs (forward, backward) of each captured layer, by chunk.
///   per microbatch: one per captured microbatch: all of a step, or one if there is no pipeline;
///   per slot: one per slot in which `lowered`, the rank's training schedule, puts a microbatch of the chunk.
std::vector<int> pairs_per_layer(const RankLayers& layers, const pipeline::LoweredSchedule& lowered, GraphsPer per);

struct GraphCounts {
  Index graphs = 0;             ///< of the rank; all are for training
  Index launches_per_step = 0;  ///< for both kinds of graphs: each captured layer once forward and once backward
};
GraphCounts count_graphs(const RankLayers& layers, const pipeline::LoweredSchedule& lowered, GraphsPer per);

/// The number of eager passes over all captured microbatches that must precede the recording in other engines, where
/// libraries choose, load and connect at their first use. With the `warmup_steps` every layer has then run about ten
/// times. Here Stage::warm_up() does this before step 1, so none of these passes is needed.
int lazy_warmup_passes(Index warmup_steps, int num_microbatches, int captured_microbatches);

/// One layer's pass of one microbatch: the contents of a graph per microbatch, and of a launch.
struct LayerPass {
  pipeline::Act act = pipeline::Act::forward;  ///< forward or backward
  int chunk = 0, microbatch = 0;
  int layer = 0;  ///< number among the captured layers of the chunk
  bool operator==(const LayerPass&) const = default;
};

/// Position of (chunk, microbatch, layer) if chunks follow one another, and within a chunk its microbatches: M (n_0 +
/// ... + n_{c-1}) + m n_c + l, for M captured microbatches and n_c captured layers in chunk c.
Index flat_index(const RankLayers& layers, const LayerPass& pass);

/// A graph is recorded. Then memory that nothing reads any more is released, and may serve graphs that are recorded
/// later.
struct CaptureStep {
  LayerPass pass;
  Index index = 0;  ///< flat_index() of the pass
  /// By flat index. The outputs of a forward, and what it saved for its backward, are released together.
  std::vector<Index> released_outputs, released_input_grads;
};

/// The order in which graphs per microbatch are recorded, and in which every step launches them: along capture_order(),
/// a chunk's layers upwards in a forward and downwards in a backward. A backward is the last reader of its layer's
/// outputs, and of the input gradient of the layer above. The input gradient of a chunk's first layer is sent to
/// another stage, and stays until the next chunk backward has been recorded.
std::vector<CaptureStep> capture_steps(const RankLayers& layers);

/// The largest number of sets that are alive at the same time. A set belongs to one layer and microbatch.
struct Liveness {
  int outputs = 0;           ///< of forward graphs, with their saved sets
  int input_grads = 0;       ///< of backward graphs
  int held_input_grads = 0;  ///< not released at the end
};
/// Throws InternalError if something is released that is not alive, or made twice.
Liveness peak_liveness(std::span<const CaptureStep> steps);

}  // namespace megalith::capture
