#pragma once
#include <memory>

#include "megalith/config/run_plan.h"
#include "megalith/grid/mesh.h"
#include "megalith/model/gpt_stage.h"
#include "megalith/optim/optimizer.h"
#include "megalith/pipeline/executor.h"

namespace megalith::train {

/// Whether a rank was asked to end the run after this step.
enum class Stop : std::uint8_t { no, asked };

/// What the ranks agreed on about one step.
struct StepResult {
  double loss = 0;       ///< mean over the tokens of the global batch, nats
  double grad_norm = 0;  ///< global, before clipping
  double learning_rate = 0;
  bool stop = false;  ///< some rank was asked to stop
};

/// Where a run stands: what a checkpoint keeps beside tensors.
struct Progress {
  Index step = 0;     ///< steps done
  Index samples = 0;  ///< samples consumed: number of the next batch's first sample
  Index updates = 0;  ///< optimizer updates applied
};

/// One rank of a training run: stage, executors and optimizer over memory that is planned in full before step 1. Wires;
/// holds no arithmetic of its own.
class Engine {
 public:
  Engine(comm::World& world, const config::RunPlan& plan);

  /// By owner, before anything is allocated; what allocate() takes.
  BytesByOwner planned_bytes() const;
  /// Takes all memory and initialises parameters from the seed.
  void allocate();
  const BytesByOwner& taken_bytes() const { return ledger_.by_owner(); }

  /// Forward, backward, reduction, agreement, clip, update. The optimizer moves on all ranks or on none.
  /// Throws NonFiniteError (no rank has moved) and CollectiveError (the ranks' calls differ; no rank has moved).
  StepResult step(const model::BatchSource& source, const Progress& progress, Stop stop);
  /// Mean loss over the first `samples` samples of a source, without dropout, in whole batches: past them the source
  /// must give targets without a loss (-1). Collective.
  double evaluate(const model::BatchSource& source, Index samples);

  comm::World& world() { return world_; }
  const grid::Mesh& mesh() const { return mesh_; }
  model::GptStage& stage() { return stage_; }
  const optim::Optimizer& optimizer() const { return optimizer_; }
  Exec& exec() { return ex_; }

 private:
  struct Agreement;
  void plan_optimizer();
  Agreement agree(Stop stop);
  [[noreturn]] void refuse(const Agreement& agreement, const Progress& progress);

  comm::World& world_;
  const config::RunPlan& plan_;
  grid::Mesh mesh_;
  comm::StepPattern pattern_;
  Exec ex_;
  MemoryLedger ledger_;
  model::GptStage stage_;
  optim::Optimizer optimizer_;
  pipeline::Executor train_executor_, eval_executor_;
  MemoryPlan optimizer_plan_;
  Buffer scalars_memory_;
  Tensor reals_, words_, gathered_, verdict_;
};

}  // namespace megalith::train
