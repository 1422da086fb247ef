#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/config/run_plan.h"
#include "megalith/model/stage.h"
#include "megalith/ops/step_end.h"
#include "megalith/optim/optimizer.h"
#include "megalith/params/param_names.h"
#include "megalith/pipeline/executor.h"

namespace megalith::train {

/// The source of parameter values: the seed, or code that writes all of them before they are used.
enum class InitialValues : std::uint8_t { from_seed, written_later };

/// Owners of GPU memory that no plan knows, because a run measures them when it starts: "cuda context" (the context
/// with the loaded kernels and libraries, and all memory in use on the GPU before) and, with several ranks, "nccl" (its
/// communicators, and mailboxes). None on the CPU.
std::vector<std::string> measured_owners(const config::RunPlan& plan);

/// The bytes that a rank of a run takes, by owner (RunMemory::planned_bytes). Needs no GPU and no other ranks.
BytesByOwner planned_bytes(const config::RunPlan& plan, int rank);
/// What a rank takes, and sends in a step to sum gradients over the ranks that hold the same parameters
/// (ParamBuffer::sum_bytes).
struct RankCost {
  BytesByOwner bytes;
  Index sums_sent = 0;
};
RankCost planned_cost(const config::RunPlan& plan, int rank);

/// The numbers of a step in device memory.
struct StepScalars {
  Tensor squares;          ///< [2 optimizers] f64: Optimizer::sum_of_squares
  Tensor totals;           ///< [5] f64: ops::StepTotals
  Tensor counts;           ///< [9] u64: ops::StepCounts
  Tensor optimizer_state;  ///< u8 [sizeof(ops::OptimizerState)]
  Tensor verdict;          ///< u8 [sizeof(ops::StepVerdict)]
  Tensor outcome;          ///< u8 [sizeof(ops::StepOutcome)]
};

/// All that one rank of a run holds: groups, stage, optimizers, executors, scalars, and the memory of all of these. It
/// is planned in full before any is taken.
class RunMemory {
 public:
  RunMemory(comm::World& world, const config::RunPlan& plan);

  /// By owner, before anything is allocated: what take() takes. Needs no device.
  BytesByOwner planned_bytes() const { return planned_bytes(stage_); }
  /// The same if the stage had another plan with the same parameters: another recomputation, another capacity of
  /// experts.
  BytesByOwner planned_bytes(const config::RunPlan& other) const;
  /// The part of the planned scratch that no tensor holds when tensors hold most.
  Index fragmentation_bytes() const;

  /// Makes the Exec. Before that, throws IoError if a host has less memory left than its ranks need. Collective.
  void start();
  /// Takes all memory and initialises parameters; those to be written later are 0. Throws ConfigError if a GPU has too
  /// little. Collective.
  void take(InitialValues values);
  /// Books the memory that libraries take while collectives(), and then passes(), run everything of a step for the
  /// first time.
  template <class Collectives, class Passes>
  void warm_up(Collectives&& collectives, Passes&& passes) {
    const comm::HostsMeet meet(world_);
    const Index allocated = device::memory_in_use(plan_.device);
    collectives();
    const Index connected = device::memory_in_use(plan_.device);
    passes();
    book_libraries(allocated, connected, device::memory_in_use(plan_.device));
  }

  comm::World& world() { return world_; }
  const config::RunPlan& plan() const { return plan_; }
  const comm::Mesh& mesh() const { return mesh_; }
  Exec& exec() { return *ex_; }
  const MemoryLedger& ledger() const { return ledger_; }
  model::Stage& stage() { return stage_; }
  const model::Stage& stage() const { return stage_; }
  /// One for each of stage().params().trained().
  const std::deque<optim::Optimizer>& optimizers() const { return optimizers_; }
  pipeline::Executor& train_executor() { return train_executor_; }
  pipeline::Executor& eval_executor() { return eval_executor_; }
  /// Phase 0: the sums of squares; phase 1: the update.
  const MemoryPlan& optimizer_plan() const { return optimizer_plan_; }
  /// Whether this rank's losses count. Those of other tensor-parallel ranks are replicas.
  bool counts_losses() const { return mesh_.tp_rank() == 0; }
  /// Stage::loss_counts() if the losses count, else 0.
  model::LossCounts loss_counts() const { return counts_losses() ? stage_.loss_counts() : model::LossCounts{}; }
  const StepScalars& scalars() const { return scalars_; }

  /// The state of the optimizer in addition to its moments. Waits for the device.
  ops::OptimizerState optimizer_state() { return read<ops::OptimizerState>(scalars_.optimizer_state); }
  void set_optimizer_state(const ops::OptimizerState& state);
  /// Call it on all ranks after other code has written the master values: updates the values that layers read. Those of
  /// split masters are a part of them, and change with them. Collective if the optimizer is sharded.
  void refresh_values();
  /// A structure in device memory. Waits for the device.
  template <class T>
  T read(const Tensor& tensor) {
    T value;
    ex_->copy(&value, tensor.raw(), sizeof value);
    world_.wait_for(*ex_);
    return value;
  }
  /// Names of all memory, in the order of a step.
  MemoryNames names() const;

 private:
  void plan_optimizer();
  BytesByOwner planned_bytes(const model::Stage& stage) const;
  void require_host_memory() const;
  void take_scalars();
  void initialise();
  /// draw(parameter, its values).
  template <class Draw>
  void initialise_trained(const ParamBuffer& params, Draw&& draw);
  static void add_gradient_names(MemoryNames& names, const ParamBuffer& params);
  void book_libraries(Index allocated, Index connected, Index loaded);

  comm::World& world_;
  const config::RunPlan& plan_;
  comm::Mesh mesh_;
  std::optional<Exec> ex_;
  MemoryLedger ledger_;
  model::Stage stage_;
  std::deque<optim::Optimizer> optimizers_;
  pipeline::Executor train_executor_, eval_executor_;
  MemoryPlan optimizer_plan_;
  Buffer scalars_memory_;
  StepScalars scalars_;
  Index not_ours_ = 0;  ///< memory of the device that was in use before any was taken
};

}  // namespace megalith::train
