#pragma once
#include <algorithm>
#include <functional>
#include <map>

#include "megalith/capture/step_graph.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/train/graph_check.h"
#include "megalith/train/step_program.h"

namespace megalith::train {

/// Called once per step, when the ranks are about to vote: on the CPU after all passes.
using AskRequests = std::function<Requests()>;

/// The graphs that a run has captured so far.
struct CapturedGraphs {
  GraphStats stats;
  Index launches_per_step = 0;
  Index comm_calls_per_step = 0;  ///< collectives and messages between ranks in these launches
  Index device_bytes = 0;         ///< that the driver took for them, measured; 0 on the CPU
  // Host times, means over the steps that were launched so far, without the first and checked ones. Before such a step
  // launch_s is of all launches, and submit_s is 0.
  double launch_s = 0;    ///< of a step's launches; on the CPU they run the ops
  double submit_s = 0;    ///< all work to submit a step, from the upload of its inputs on
  Index timed_steps = 0;  ///< number of steps in these means
};

/// `never` without graphs, and with graphs of steps. There everything else that makes calls on GPUs waits until all
/// steps have ended: an evaluation, whose first batches are eager, the gather of parameters for it, and an eager run of
/// graphs.check. The exception is the vote after a graph of passes: it is over Mesh::world, on which no pass makes a
/// call. Steps with graphs of layers continue eagerly after each launch, so there calls may come.
comm::CallsBehindGraphs calls_behind_graphs(const config::RunPlan& plan);

/// Runs a StepProgram eagerly or from graphs, according to the plan: decides which steps capture, launch and are
/// checked (GraphCheck), and checks that the calls between ranks equal those of earlier steps. Every member except the
/// queries is collective.
class GraphRunner {
 public:
  GraphRunner(RunMemory& memory, StepProgram& program);

  /// Call it before step 1, when memory is taken. Throws ConfigError if the hosts have too little for graphs.check.
  void require_memory() const { check_.require_memory(); }
  /// The passes, the vote and the update of the step of this number, counted from 1.
  void run_step(Index step, const AskRequests& ask);
  /// The same in rounds (Stage::set_exchange), eagerly and apart from other steps: for a step that was held because
  /// experts had too few rows. Changes no graph.
  void run_in_rounds(const Requests& requests);
  /// Only its passes and its vote: the totals tell how many rows experts need.
  void measure_rows();
  /// Only its passes, op by op. Nothing may be in flight.
  void run_passes_eagerly(nn::RowExchange exchange);
  /// Evaluates a batch that is loaded.
  void run_evaluation();
  /// No more batches follow for now.
  void end_evaluation();

  /// Training steps since the graphs were captured, with that of the capture; 0: there are none.
  Index steps_with_graphs() const { return std::max<Index>(0, graph_steps() - plan_.graphs.warmup_steps); }
  /// How often graphs of training steps were captured. Graphs are of one batch size: a step of another size drops them
  /// and captures again, without a warm-up, as all ops have run before.
  Index captures() const { return captures_; }

  /// Drops the graphs. The next graphs.warmup_steps steps and evaluations are eager again, then graphs are captured
  /// once more. Call it on all ranks between the same two steps, with none in flight. Waits for the device.
  void forget();

  /// The graphs of [graphs] mode = iteration, when they are captured.
  const capture::StepGraph& train_graph() const { return train_graph_; }
  const capture::StepGraph& eval_graph() const { return eval_graph_; }
  /// Those of mode = layers.
  const GraphCache& layer_graphs() const { return layer_graphs_; }
  CapturedGraphs captured() const;
  /// Steps from graphs that were compared with eager ones (graphs.check), and found equal.
  Index steps_checked() const { return steps_checked_; }

 private:
  void run_ops(const AskRequests& ask, Via via);
  void vote_in_rounds(const Requests& requests);
  /// How the next step uses graphs.
  GraphCache::State state(Via via) const;
  void begin_layer_graphs(GraphCache::State state);
  /// Drops graphs of steps of another batch size.
  void follow_batch();
  /// Runs drop() when the device has completed all work, on all ranks. On a GPU, measures the memory that this frees.
  template <class Drop>
  void drop_graphs(Drop&& drop);
  /// Steps and evaluated batches since the start of the run, or since graphs were dropped.
  Index graph_steps() const { return steps_ - forgotten_at_step_; }
  Index graph_evaluations() const { return batches_ - forgotten_at_batch_; }
  /// Launches of graphs of training steps.
  Index launches() const { return layer_graphs_.launches().count() + train_graph_.launches().count(); }
  double launching_s() const { return layer_graphs_.launches().host_s() + train_graph_.launches().host_s(); }
  /// The pattern that the calls between ranks of the next step must have: that of eager steps, or that of steps with
  /// graphs, from the first one that only launches. Null for the step of the capture, which has both kinds.
  comm::StepPattern* pattern_of_step(GraphCache::State state);
  /// Runs `ops` from a graph of the run's planned memory, after its warm-up, with before_launch() first; or eagerly,
  /// compared with the graph.
  template <class Ops, class BeforeLaunch>
  void run_by(capture::StepGraph& graph, Via via, Ops&& ops, BeforeLaunch&& before_launch);
  /// Runs a function that captures graphs. All ranks wait for each other before and after it. On a GPU, measures the
  /// memory of the graphs. Throws CollectiveError on all ranks if their calls differ by then.
  template <class Ops>
  void run_capturing(Ops&& ops);

  RunMemory& memory_;
  StepProgram& program_;
  const config::RunPlan& plan_;
  std::map<Index, comm::StepPattern> eager_calls_, calls_beside_graphs_;  ///< by the samples of a step
  capture::StepGraph train_graph_, eval_graph_;
  GraphCache layer_graphs_;
  GraphCheck check_;
  double submits_s_ = 0, launches_s_ = 0;  // of steps from graphs
  Index submits_ = 0, steps_checked_ = 0, captures_ = 0;
  Index batch_of_graphs_ = 0;  ///< samples of the steps that graphs are of
  Index steps_ = 0, batches_ = 0;
  Index forgotten_at_step_ = 0, forgotten_at_batch_ = 0;  ///< the counts when graphs were dropped
  Index graph_bytes_ = 0;
};

}  // namespace megalith::train
