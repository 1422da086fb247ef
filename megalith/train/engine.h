#pragma once
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/capture/step_graph.h"
#include "megalith/comm/mesh.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/config/run_plan.h"
#include "megalith/model/gpt_stage.h"
#include "megalith/ops/step_end.h"
#include "megalith/optim/optimizer.h"
#include "megalith/params/param_names.h"
#include "megalith/pipeline/executor.h"
#include "megalith/tensor/graph_cache.h"
#include "megalith/train/gemm_agreement.h"
#include "megalith/train/graph_check.h"

namespace megalith::train {

/// Whether a rank was asked to end the run after this step.
enum class Stop : std::uint8_t { no, asked };
/// What a rank asks of all when they vote on a step: to end the run, to save.
struct Requests {
  Stop stop = Stop::no;
  bool save = false;
};
/// Called once in every step, when the ranks are about to vote: on the CPU after all passes.
using AskRequests = std::function<Requests()>;

/// Where the values of parameters come from: the seed, or whoever writes all of them before they are used.
enum class InitialValues : std::uint8_t { from_seed, written_later };

/// What the ranks agreed on about one step.
struct StepResult {
  double loss = 0;           ///< mean over the tokens of the global batch, nats
  double grad_norm = 0;      ///< global, unscaled, before clipping
  double learning_rate = 0;  ///< 0 when the step was skipped
  double loss_scale = 1;     ///< of this step
  bool skipped = false;      ///< fp16 only: a gradient overflowed, nothing was updated
  bool stop = false;         ///< some rank was asked to stop
  bool save = false;         ///< some rank asked for a save
};

/// The graphs that an engine has captured so far.
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

/// Where a run stands: what a checkpoint keeps beside tensors and the optimizer's state.
struct Progress {
  Index step = 0;     ///< steps done
  Index samples = 0;  ///< samples consumed: number of the next batch's first sample
};

/// Owners of memory on GPUs that no plan knows, because a run measures them when it starts: "cuda context" (the context
/// with the kernels and libraries that it has loaded, and whatever stood on the GPU before) and, where there are
/// several ranks, "nccl" (its communicators, and mailboxes of copy engines). None on the CPU.
std::vector<std::string> measured_owners(const config::RunPlan& plan);

/// Never without graphs, nor with graphs of steps: whatever else makes calls on GPUs (an evaluation, the first of whose
/// batches are eager, what gathers parameters for it and for a save, an eager run of graphs.check) comes when all steps
/// have ended, but for the vote behind a graph of passes: that is over Mesh::world, of which no pass makes a call.
/// Steps with graphs of layers go on eagerly behind each launch.
comm::CallsBehindGraphs calls_behind_graphs(const config::RunPlan& plan);

/// One rank of a training run: stage, executors and optimizer over memory that is planned in full before step 1. Wires;
/// holds no arithmetic of its own.
class Engine {
 public:
  Engine(comm::World& world, const config::RunPlan& plan);

  /// By owner, before anything is allocated; what allocate() takes. Needs no device.
  BytesByOwner planned_bytes() const;
  /// Of the planned scratch, what no tensor holds when they hold most.
  Index fragmentation_bytes() const;
  /// Takes all memory and initialises parameters; those to be written later are 0. On a GPU all that a step uses has
  /// then been loaded and connected. Before that, throws IoError when a host has less memory left than its ranks take,
  /// ConfigError when a GPU has, or when the hosts have too little for graphs.check. Collective.
  void allocate(InitialValues values = InitialValues::from_seed);
  /// By owner, what allocate() took and, under the names of measured_owners(), what it saw the libraries take.
  const BytesByOwner& taken_bytes() const { return ledger_.by_owner(); }
  /// Where that lies, without the libraries'.
  std::span<const MemoryLedger::Piece> taken_memory() const { return ledger_.pieces(); }

  /// Where the plan chooses_gemms(): every product's algorithm, the same on all ranks, from rank 0's `known` tables or
  /// timed (agree_on_gemms). Between allocate() and the first step, after which nothing is chosen any more; without it
  /// products run by the library's first choice. Elsewhere nothing happens. Collective.
  ops::GemmChoices choose_gemms(std::span<const ops::KnownGemms> known = {});
  /// What it led to; empty where nothing was chosen.
  const ops::GemmTable& gemm_table() const { return gemm_table_; }

  /// Forward, backward, reduction, agreement, clip, update. The optimizer moves on all ranks or on none.
  /// Throws NonFiniteError (no rank has moved) and CollectiveError (the ranks' calls differ; no rank has moved).
  StepResult step(const model::BatchSource& source, const Progress& progress, Stop stop);

  /// step() in two halves: start_step() hands the work to the device, finish_step() waits for the oldest step started
  /// and throws what step() throws. On a GPU kMostStarted steps may be under way, so that the device never waits for
  /// the host; once a step has failed, those started after it change nothing.
  void start_step(
      const model::BatchSource& source, const Progress& progress, const AskRequests& ask = [] { return Requests{}; });
  StepResult finish_step();
  /// Steps from graphs that were compared with eager ones (graphs.check), and found equal.
  Index steps_checked() const { return steps_checked_; }
  int steps_started() const { return static_cast<int>(started_ - finished_); }
  static constexpr int kMostStarted = 2;
  /// How many may be under way while the next is handed over: none on the CPU, where a step is done when it has
  /// started.
  int steps_ahead() const { return plan_.device == Device::cpu ? 0 : kMostStarted - 1; }

  /// Mean loss over the first `samples` samples of a source, without dropout, in whole batches: past them the source
  /// must give targets without a loss (-1). With no step under way. Collective.
  double evaluate(const model::BatchSource& source, Index samples);

  /// What the optimizer remembers beside its moments. Waits for the device.
  ops::OptimizerState optimizer_state();
  void set_optimizer_state(const ops::OptimizerState& state);
  /// After the master values were written from outside, on all ranks: the values that layers read follow. Collective
  /// where the optimizer is sharded.
  void refresh_values();

  /// The graphs of [graphs] mode = iteration, once they are captured.
  const capture::StepGraph& train_graph() const { return train_graph_; }
  const capture::StepGraph& eval_graph() const { return eval_graph_; }
  /// Those of mode = layers.
  const GraphCache& layer_graphs() const { return layer_graphs_; }
  CapturedGraphs captured_graphs() const;
  /// Graphs are gone: steps and evaluations are eager again, as many as graphs.warmup_steps says, then graphs are
  /// captured anew. On all ranks between the same two steps, with none under way. Waits for the device.
  void forget_graphs();

  comm::World& world() { return world_; }
  const comm::Mesh& mesh() const { return mesh_; }
  model::GptStage& stage() { return stage_; }
  /// One for each of stage().params().trained().
  const std::deque<optim::Optimizer>& optimizers() const { return optimizers_; }
  Exec& exec() { return *ex_; }

 private:
  /// A step under way: which it is, and where its outcome arrives.
  struct Started {
    Index step = 0;
    Event done;
  };
  void plan_optimizer();
  /// Of the host: what allocate() takes on the CPU, and a copy of the state that saves take.
  Index host_bytes() const;
  /// Throws IoError on all ranks where a host has too little memory. Collective.
  void require_host_memory();
  void initialise();
  /// draw(parameter, its values).
  template <class Draw>
  void initialise_trained(const ParamBuffer& params, Draw&& draw);
  /// Runs everything once that a step runs, so that the first step finds it connected, loaded and chosen; changes no
  /// state. Books what the libraries take meanwhile; `before` is what else was in use before anything was allocated.
  void warm_up(Index before);
  void warm_up_collectives();
  void warm_up_passes();
  /// The ops of a step, in the order of run_passes() to run_update(); a graph may hold the first, or all but the
  /// upload.
  void run_step(const AskRequests& ask, Via via);
  /// What the coming step does with graphs.
  GraphCache::State graph_state(Via via) const;
  void begin_layer_graphs(GraphCache::State state);
  /// Steps and evaluated batches since the run began, or graphs were forgotten.
  Index graph_steps() const { return started_ - forgotten_at_step_; }
  /// Of graphs of training steps.
  Index launches() const { return layer_graphs_.launches().count() + train_graph_.launches().count(); }
  double launching_s() const { return layer_graphs_.launches().host_s() + train_graph_.launches().host_s(); }
  Index graph_evaluations() const { return evaluated_batches_ - forgotten_at_batch_; }
  void run_passes();
  void upload_terms(const Requests& requests);
  /// await(buffer, bucket): before an optimizer reads a bucket.
  template <class Await>
  void sum_squares(Await&& await);
  void sum_terms();
  void run_update();
  void update_parameters();
  /// What the calls between ranks of the coming step must be like: those of eager steps, or those that steps make with
  /// their graphs, from the first on that only launches. Null for the step of the capture, which has both.
  comm::StepPattern* pattern_of_step(GraphCache::State state);
  /// Runs `ops` by a graph of the run's planned memory, once its warm-up is over, with before_launch() in front, or
  /// eagerly beside it. Collective.
  template <class Ops, class BeforeLaunch>
  void run_by(capture::StepGraph& graph, Via via, Ops&& ops, BeforeLaunch&& before_launch);
  template <class Ops>
  void run_by(capture::StepGraph& graph, Via via, Ops&& ops) {
    run_by(graph, via, ops, [] {});
  }
  /// Runs what captures graphs, before and after which all ranks meet; on a GPU, sees what memory they take. Throws
  /// CollectiveError, on all ranks, where their calls differ by then.
  template <class Ops>
  void run_capturing(Ops&& ops);
  MemoryNames memory_names() const;
  [[noreturn]] void refuse(const ops::StepOutcome& outcome, Index step);
  template <class T>
  T read(const Tensor& tensor);

  comm::World& world_;
  const config::RunPlan& plan_;
  comm::Mesh mesh_;
  comm::StepPattern eager_calls_, calls_beside_graphs_;
  std::optional<Exec> ex_;
  MemoryLedger ledger_;
  model::GptStage stage_;
  std::deque<optim::Optimizer> optimizers_;
  pipeline::Executor train_executor_, eval_executor_;
  capture::StepGraph train_graph_, eval_graph_;
  GraphCache layer_graphs_;
  MemoryPlan optimizer_plan_;
  ops::StepRules rules_;
  ops::GemmTable gemm_table_;
  double hand_overs_s_ = 0, launches_s_ = 0;  // of steps from graphs
  Index hand_overs_ = 0, steps_checked_ = 0;

  Buffer scalars_memory_;
  Tensor squares_, totals_, counts_, optimizer_state_, verdict_, outcome_;
  Staging staging_;
  Buffer outcomes_memory_;  // host, one StepOutcome for every step under way
  std::array<Started, kMostStarted> under_way_;
  Index started_ = 0, finished_ = 0;
  Index evaluated_batches_ = 0;
  Index forgotten_at_step_ = 0, forgotten_at_batch_ = 0;  ///< when graphs were
  Index graph_bytes_ = 0;
  GraphCheck graph_check_;
  std::optional<comm::WatchedReplays> replays_;  // last: it ends before what they touch
};

}  // namespace megalith::train
