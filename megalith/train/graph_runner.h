#pragma once
#include <functional>

#include "megalith/capture/step_graph.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/train/graph_check.h"
#include "megalith/train/step_program.h"

namespace megalith::train {

/// Called once in every step, when the ranks are about to vote: on the CPU after all passes.
using AskRequests = std::function<Requests()>;

/// The graphs that a run has captured so far.
struct CapturedGraphs {
  GraphStats stats;
  Index launches_per_step = 0;
  Index comm_calls_per_step = 0;  ///< collectives and messages between ranks that these launches hold
  Index device_bytes = 0;         ///< that the driver took for them, measured; 0 on the CPU
  // Of the host, means of the steps that were launched so far but for the first and checked ones. Before such a step
  // launch_s is of all launches, hand_over_s 0.
  double launch_s = 0;     ///< of a step's launches; on the CPU they run the ops
  double hand_over_s = 0;  ///< from the upload of a step's inputs on: launches and what stands beside them
  Index timed_steps = 0;   ///< of which these are the means
};

/// Never without graphs, nor with graphs of steps: whatever else makes calls on GPUs (an evaluation, the first of whose
/// batches are eager, what gathers parameters for it, an eager run of graphs.check) comes when all steps have ended,
/// but for the vote behind a graph of passes: that is over Mesh::world, of which no pass makes a call. Steps with
/// graphs of layers go on eagerly behind each launch.
comm::CallsBehindGraphs calls_behind_graphs(const config::RunPlan& plan);

/// Runs a StepProgram eagerly or from graphs, as the plan says: which steps capture, which launch, which are checked
/// (GraphCheck), and that the calls between ranks are those of the steps before. Every member but the queries is
/// collective.
class GraphRunner {
 public:
  GraphRunner(RunMemory& memory, StepProgram& program);

  /// Before step 1, once memory is taken. Throws ConfigError when the hosts have too little for graphs.check.
  void require_memory() const { check_.require_memory(); }
  /// The passes, the vote and the update of the step of this number, counted from 1.
  void run_step(Index step, const AskRequests& ask);
  /// A batch that is loaded.
  void run_evaluation();
  /// No more batches are to come for now.
  void end_evaluation();

  /// Graphs are gone: steps and evaluations are eager again, as many as graphs.warmup_steps says, then graphs are
  /// captured anew. On all ranks between the same two steps, with none under way. Waits for the device.
  void forget();

  /// The graphs of [graphs] mode = iteration, once they are captured.
  const capture::StepGraph& train_graph() const { return train_graph_; }
  const capture::StepGraph& eval_graph() const { return eval_graph_; }
  /// Those of mode = layers.
  const GraphCache& layer_graphs() const { return layer_graphs_; }
  CapturedGraphs captured() const;
  /// Steps from graphs that were compared with eager ones (graphs.check), and found equal.
  Index steps_checked() const { return steps_checked_; }

 private:
  void run_ops(const AskRequests& ask, Via via);
  /// What the coming step does with graphs.
  GraphCache::State state(Via via) const;
  void begin_layer_graphs(GraphCache::State state);
  /// Steps and evaluated batches since the run began, or graphs were forgotten.
  Index graph_steps() const { return steps_ - forgotten_at_step_; }
  Index graph_evaluations() const { return batches_ - forgotten_at_batch_; }
  /// Of graphs of training steps.
  Index launches() const { return layer_graphs_.launches().count() + train_graph_.launches().count(); }
  double launching_s() const { return layer_graphs_.launches().host_s() + train_graph_.launches().host_s(); }
  /// What the calls between ranks of the coming step must be like: those of eager steps, or those that steps make with
  /// their graphs, from the first on that only launches. Null for the step of the capture, which has both.
  comm::StepPattern* pattern_of_step(GraphCache::State state);
  /// Runs `ops` by a graph of the run's planned memory, once its warm-up is over, with before_launch() in front, or
  /// eagerly beside it.
  template <class Ops, class BeforeLaunch>
  void run_by(capture::StepGraph& graph, Via via, Ops&& ops, BeforeLaunch&& before_launch);
  /// Runs what captures graphs, before and after which all ranks meet; on a GPU, sees what memory they take. Throws
  /// CollectiveError, on all ranks, where their calls differ by then.
  template <class Ops>
  void run_capturing(Ops&& ops);

  RunMemory& memory_;
  StepProgram& program_;
  const config::RunPlan& plan_;
  comm::StepPattern eager_calls_, calls_beside_graphs_;
  capture::StepGraph train_graph_, eval_graph_;
  GraphCache layer_graphs_;
  GraphCheck check_;
  double hand_overs_s_ = 0, launches_s_ = 0;  // of steps from graphs
  Index hand_overs_ = 0, steps_checked_ = 0;
  Index steps_ = 0, batches_ = 0;
  Index forgotten_at_step_ = 0, forgotten_at_batch_ = 0;  ///< when graphs were
  Index graph_bytes_ = 0;
};

}  // namespace megalith::train
