#pragma once
#include <array>
#include <deque>
#include <optional>
#include <span>

#include "megalith/runtime/graph_cache.h"
#include "megalith/train/gemm_agreement.h"
#include "megalith/train/graph_runner.h"
#include "megalith/train/run_memory.h"
#include "megalith/train/step_program.h"
#include "megalith/train/step_report.h"

namespace megalith::train {

/// Where a run stands: what a checkpoint keeps beside tensors and the optimizer's state.
struct Progress {
  Index step = 0;     ///< steps done
  Index samples = 0;  ///< samples consumed: number of the next batch's first sample
};

/// One rank of a training run: its memory and state (RunMemory), the ops of a step (StepProgram) and how they are run
/// (GraphRunner), with the steps that are under way.
class Engine {
 public:
  Engine(comm::World& world, const config::RunPlan& plan);

  /// By owner, before anything is allocated; what allocate() takes. Needs no device.
  BytesByOwner planned_bytes() const { return memory_.planned_bytes(); }
  /// Of the planned scratch, what no tensor holds when they hold most.
  Index fragmentation_bytes() const { return memory_.fragmentation_bytes(); }
  /// Takes all memory and initialises parameters; those to be written later are 0. On a GPU all that a step uses has
  /// then been loaded and connected. Before that, throws IoError when a host has less memory left than its ranks take,
  /// ConfigError when a GPU has, or when the hosts have too little for graphs.check. Collective.
  void allocate(InitialValues values = InitialValues::from_seed);
  /// By owner, what allocate() took and, under the names of measured_owners(), what it saw the libraries take.
  const BytesByOwner& taken_bytes() const { return memory_.ledger().by_owner(); }
  /// Where that lies, without the libraries'.
  std::span<const MemoryLedger::Block> taken_memory() const { return memory_.ledger().blocks(); }

  /// Where the plan chooses_gemms(): every product's algorithm, the same on all ranks, from rank 0's `known` tables or
  /// timed (agree_on_gemms). Between allocate() and the first step, after which nothing is chosen any more; without it
  /// products run by the library's first choice. Elsewhere nothing happens. Collective.
  ops::GemmChoices choose_gemms(std::span<const ops::KnownGemms> known = {});
  /// What it led to; empty where nothing was chosen.
  const ops::GemmTable& gemm_table() const { return gemm_table_; }

  /// Forward, backward, reduction, agreement, clip, update. The optimizer moves on all ranks or on none.
  /// Throws NonFiniteError (no rank has moved) and CollectiveError (the ranks' calls differ; no rank has moved).
  StepReport step(const model::BatchSource& source, const Progress& progress, Stop stop);

  /// step() in two halves: start_step() hands the work to the device, finish_step() waits for the oldest step started
  /// and throws what step() throws. On a GPU kMaxStarted steps may be under way, so that the device never waits for
  /// the host; once a step has failed, those started after it change nothing.
  void start_step(
      const model::BatchSource& source, const Progress& progress, const AskRequests& ask = [] { return Requests{}; });
  StepReport finish_step();
  /// Steps from graphs that were compared with eager ones (graphs.check), and found equal.
  Index steps_checked() const { return graphs_.steps_checked(); }
  int steps_started() const { return static_cast<int>(started_ - finished_); }
  static constexpr int kMaxStarted = 2;
  /// How many may be under way while the next is handed over: none on the CPU, where a step is done when it has
  /// started.
  int steps_ahead() const { return memory_.plan().device == Device::cpu ? 0 : kMaxStarted - 1; }

  /// Mean loss over the targets of the first `samples` samples of a source that have one, without dropout, in whole
  /// batches: past them the source must give targets without a loss. With no step under way. Collective.
  double evaluate(const model::BatchSource& source, Index samples);

  /// As RunMemory's.
  ops::OptimizerState optimizer_state() { return memory_.optimizer_state(); }
  void set_optimizer_state(const ops::OptimizerState& state) { memory_.set_optimizer_state(state); }
  void refresh_values() { memory_.refresh_values(); }

  /// As GraphRunner's.
  const capture::StepGraph& train_graph() const { return graphs_.train_graph(); }
  const capture::StepGraph& eval_graph() const { return graphs_.eval_graph(); }
  const GraphCache& layer_graphs() const { return graphs_.layer_graphs(); }
  CapturedGraphs captured_graphs() const { return graphs_.captured(); }
  void forget_graphs();

  comm::World& world() { return memory_.world(); }
  const comm::Mesh& mesh() const { return memory_.mesh(); }
  model::GptStage& stage() { return memory_.stage(); }
  const std::deque<optim::Optimizer>& optimizers() const { return memory_.optimizers(); }
  Exec& exec() { return memory_.exec(); }

 private:
  /// A step under way: which it is, and where its outcome arrives.
  struct Started {
    Index step = 0;
    Event done;
  };
  [[noreturn]] void refuse(const ops::StepOutcome& outcome, Index step);

  RunMemory memory_;
  StepProgram program_;
  GraphRunner graphs_;
  ops::GemmTable gemm_table_;
  Buffer outcomes_memory_;  // host, one StepOutcome for every step under way
  std::array<Started, kMaxStarted> under_way_;
  Index started_ = 0, finished_ = 0;
  std::optional<comm::WatchedReplays> replays_;  // last: it ends before what they touch
};

}  // namespace megalith::train
