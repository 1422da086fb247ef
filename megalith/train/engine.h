#pragma once
#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <span>

#include "megalith/runtime/graph_cache.h"
#include "megalith/train/early_stop.h"
#include "megalith/train/gather.h"
#include "megalith/train/gemm_agreement.h"
#include "megalith/train/graph_runner.h"
#include "megalith/train/run_memory.h"
#include "megalith/train/step_program.h"
#include "megalith/train/step_report.h"

namespace megalith::train {

/// The position of a run: what a checkpoint keeps in addition to tensors and the optimizer's state.
struct Progress {
  Index step = 0;     ///< steps completed
  Index samples = 0;  ///< samples consumed: number of the next batch's first sample
  std::optional<HeldOutRecord> held_out = {};
};

/// One rank of a training run: its memory and state (RunMemory), the ops of a step (StepProgram), their execution
/// (GraphRunner), and the steps in flight.
class Engine {
 public:
  /// Both must outlive the engine.
  Engine(comm::World& world, const config::RunPlan& plan);
  Engine(comm::World& world, const config::RunPlan&& plan) = delete;

  /// By owner, before anything is allocated: what allocate() takes. Needs no device.
  BytesByOwner planned_bytes() const { return memory_.planned_bytes(); }
  /// The part of the planned scratch that no tensor holds when tensors hold most.
  Index fragmentation_bytes() const { return memory_.fragmentation_bytes(); }
  /// Takes all memory and initialises parameters; those to be written later are 0. On a GPU it also loads and connects
  /// everything that a step uses. Before that, throws IoError if a host has less memory left than its ranks need;
  /// ConfigError if a GPU has, or if the hosts have too little for graphs.check. Collective.
  void allocate(InitialValues values = InitialValues::from_seed);
  /// By owner: what allocate() took and, under the names of measured_owners(), what it measured for libraries.
  const BytesByOwner& taken_bytes() const { return memory_.ledger().by_owner(); }
  /// The addresses of that memory, without the libraries'.
  std::span<const MemoryLedger::Block> taken_memory() const { return memory_.ledger().blocks(); }

  /// If the plan chooses_gemms(): sets the algorithm of every GEMM, the same on all ranks, from rank 0's `known` tables
  /// or by timing (agree_on_gemms). Otherwise does nothing. Call it between allocate() and the first step; afterwards
  /// nothing is chosen any more. Without it GEMMs use the library's first choice. Collective.
  ops::GemmChoices choose_gemms(std::span<const ops::KnownGemms> known = {});
  /// The resulting table; empty if nothing was chosen.
  const ops::GemmTable& gemm_table() const { return gemm_table_; }

  /// Forward, backward, reduction, agreement, clip, update. The optimizer moves on all ranks or on none. Throws
  /// NonFiniteError (no rank has moved) and CollectiveError (the ranks' calls differ; no rank has moved).
  StepReport step(const model::BatchSource& source, const Progress& progress, Stop stop);

  /// step() in two parts. start_step() submits the work to the device. finish_step() waits for the oldest started step,
  /// and throws what step() throws. On a GPU kMaxStarted steps may be in flight, so that the device never waits for the
  /// host. When a step has failed, the steps started after it change nothing.
  void start_step(
      const model::BatchSource& source, const Progress& progress, const AskRequests& ask = [] { return Requests{}; });
  StepReport finish_step();
  /// Steps from graphs that were compared with eager ones (graphs.check), and found equal.
  Index steps_checked() const { return graphs_.steps_checked(); }
  int steps_started() const { return static_cast<int>(started_ - finished_); }
  static constexpr int kMaxStarted = 2;
  /// How many steps may be in flight while the next one is submitted: none on the CPU, where a step is complete when it
  /// has started.
  int steps_ahead() const { return memory_.plan().device == Device::cpu ? 0 : kMaxStarted - 1; }

  /// Mean loss over the targets with a loss of the first `samples` samples of a source, without dropout, in whole
  /// batches. After these samples the source must give targets without a loss. No step may be in flight. Collective.
  double evaluate(const model::BatchSource& source, Index samples) { return evaluate_losses(source, samples).loss; }
  /// The same, with the mean of each loss. `take`: of a fine-tuned model, called on rank 0 with the numbers of the
  /// samples of each batch, in their order; the last batch may go beyond `samples`.
  using TakeNumbers = std::function<void(std::span<const float>)>;
  Evaluated evaluate_losses(const model::BatchSource& source, Index samples, const TakeNumbers& take = {});

  /// As in RunMemory.
  ops::OptimizerState optimizer_state() { return memory_.optimizer_state(); }
  void set_optimizer_state(const ops::OptimizerState& state) { memory_.set_optimizer_state(state); }
  void refresh_values() { memory_.refresh_values(); }

  /// As in GraphRunner.
  const capture::StepGraph& train_graph() const { return graphs_.train_graph(); }
  const capture::StepGraph& eval_graph() const { return graphs_.eval_graph(); }
  const GraphCache& layer_graphs() const { return graphs_.layer_graphs(); }
  CapturedGraphs captured_graphs() const { return graphs_.captured(); }
  Index steps_with_graphs() const { return graphs_.steps_with_graphs(); }
  Index captures() const { return graphs_.captures(); }
  void forget_graphs();

  comm::World& world() { return memory_.world(); }
  const comm::Mesh& mesh() const { return memory_.mesh(); }
  model::Stage& stage() { return memory_.stage(); }
  const std::deque<optim::Optimizer>& optimizers() const { return memory_.optimizers(); }
  Exec& exec() { return memory_.exec(); }

 private:
  /// A step in flight: what it was started with, and the event of its outcome.
  struct Started {
    Progress progress;  ///< before it
    const model::BatchSource* source = nullptr;
    Requests requests;
    Event done;
    Index step() const { return progress.step + 1; }
  };
  /// Ranks made other calls, or other plans of clones: `totals` of MoE layers, of the last finished step. Collective.
  [[noreturn]] void refuse_disagreement(std::byte* totals, Index step);
  /// Where the numbers of the last finished step were not finite: "seen on rank 1; on rank 1 the gradient of
  /// layers.3.mlp.up.weight = nan". Throws NonFiniteError if that step ends the run: with NonFinite::stop, or if a
  /// parameter is not finite. `exchange`: how its rows came to experts. Collective.
  std::string where_not_finite(const ops::StepOutcome& outcome, Index step, nn::RowExchange exchange);
  /// Runs the passes of the last finished step again, on the same parameters, and names the first op whose result is
  /// not finite: "; first in matmul (forward, chunk 0, microbatch 1, layer 3) on rank 0". Empty: none is found. Takes
  /// at most a quarter of parallel.timeout_s and 60 s longer than the passes. Collective.
  std::string first_op_not_finite(nn::RowExchange exchange);
  /// The least capacity factor, in thousandths, that suffices for a step with these totals.
  Index needed_factor(std::byte* totals) const;
  /// A rank of experts had too few rows. `totals`: of MoE layers.
  [[noreturn]] void refuse_overflow(std::byte* totals, Index step) const;

  RunMemory memory_;
  StepProgram program_;
  GraphRunner graphs_;
  ops::GemmTable gemm_table_;
  Index batch_;  ///< samples of the steps that are submitted now
  /// Bytes of a step in flight: its StepOutcome, then the totals of MoE layers.
  Index outcome_bytes() const;
  LossMeans means_of(const ops::StepTotals& totals, const ops::StepCounts& counts) const;
  nn::MoeTotals totals_in(std::byte* memory) const;
  /// Reads the totals of a step with `samples` samples.
  MoeReport read_moe(std::byte* totals, Index samples) const;
  std::byte* outcome_of(Index step_in_flight);  ///< its StepOutcome, then totals
  /// The numbers of the batch that was evaluated last, sample by sample, on rank 0. Collective.
  std::vector<float> gather_numbers();
  /// How ranks' plans of clones differ in the batch that was evaluated last; without text if they do not, as far as
  /// this rank knows. Waits for the device where plans are compared.
  Finding plan_difference();
  /// Samples of the steps that are submitted from here on.
  void set_batch(Index samples);
  void load(const Started& started);
  /// Makes the terms of a step's first loss known to its passes, unless the vote of the step before has: in the first
  /// step of a run and of a resume. Collective.
  void count_terms(const model::BatchSource& source, Index first_sample);
  /// Submits the copy of the outcome to the host.
  void end_step(Index step_in_flight);
  /// The oldest step of which `finished_` counts, and all after it, were held: runs them again in rounds, or, where
  /// the run is to end, throws.
  void run_again();

  Buffer outcomes_memory_;  // host
  std::array<Started, kMaxStarted> under_way_;
  Index started_ = 0, finished_ = 0;
  std::optional<comm::WatchedReplays> replays_;  // last: it ends before the memory that they access
};

}  // namespace megalith::train
