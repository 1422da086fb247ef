#pragma once
#include <span>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/model/batch.h"
#include "megalith/model/gpt_chunk.h"
#include "megalith/model/step_inputs.h"
#include "megalith/pipeline/lowering.h"
#include "megalith/pipeline/stage.h"
#include "megalith/runtime/staging.h"
#include "megalith/runtime/step_state.h"
#include "megalith/tensor/memory_names.h"

namespace megalith::model {

/// How a step's tokens and states come from the host: each microbatch's into its slot, just before its forward pass; or
/// those of all microbatches before the step starts (StepInputs), so that graphs may hold the rest of the step.
enum class InputUploads : std::uint8_t { one_by_one, whole_step };

/// What has graphs of its own: every microbatch of a step, or every slot. Without a pipeline there is one in any case.
enum class CaptureInstance : std::uint8_t { microbatch, slot };

/// How a rank cuts its work.
struct StageConfig {
  ModelConfig model;
  std::vector<Index> stage_layers = {};  ///< layers of every global stage; empty: equal shares
  int chunks = 1, group_size = 0;
  nn::SequenceParallel sequence_parallel =
      nn::SequenceParallel::off;  ///< outside tensor-parallel regions; shared: sequence parallelism
  int sub_batches = 1;            ///< of a microbatch, taken in turn by the layers' forward passes: 1 or 2
  Index global_batch = 1, micro_batch = 1;
  std::uint64_t seed = 0;
  Policy policy = {};
  Device device = Device::cpu;
  Determinism determinism = Determinism::required;
  InputUploads input_uploads = InputUploads::one_by_one;
  CaptureConfig capture = {};  ///< of layers
  CaptureInstance instances = CaptureInstance::microbatch;
  nn::RecomputeConfig recompute = {};
  Sharding sharding = Sharding::none;         ///< over the ranks that hold the same parameters
  Index grad_bucket_bytes = Index{32} << 20;  ///< of the sums over them: large enough for the full rate of NVLink
};

/// Microbatches of a step on one data-parallel rank.
int num_microbatches(const StageConfig& config, const comm::Mesh& mesh);

/// All that one rank holds of a GPT: parameters, chunks, and the planned memory of the microbatches in flight. Built
/// without memory, so that `plan` can ask any rank of any grid for its bytes; allocate() then takes exactly those.
class GptStage : public pipeline::Stage {
 public:
  GptStage(StageConfig config, const comm::Mesh& mesh);

  ParamSet& params() { return params_; }
  const ParamSet& params() const { return params_; }
  const comm::Mesh& mesh() const { return mesh_; }
  const StageConfig& config() const { return config_; }
  /// Brings the values that other ranks have updated since the last step, where the optimizer is sharded: for whoever
  /// reads values between steps. All ranks that hold the same parameters come together.
  void gather_all_params(Exec& ex);
  const std::vector<GptChunk>& chunks() const { return chunks_; }
  const std::vector<MemoryPlan>& plans() const { return plans_; }  ///< of training, by chunk
  const pipeline::LoweredSchedule& schedule() const { return train_schedule_; }
  const pipeline::LoweredSchedule& eval_schedule() const { return eval_schedule_; }
  /// Of what passes between stages: this rank's rows outside tensor-parallel regions.
  Shape boundary_shape() const { return {tp_.rows_outside(layout_.tokens()), config_.model.hidden_size}; }

  /// Bytes by owner: parameters, gradients, activations, scratch, inputs. `extra_scratch`: what others need of it.
  BytesByOwner planned_bytes(Index extra_scratch = 0) const;
  /// Of scratch, what tensors hold when they hold most.
  Index scratch_alive_bytes() const { return most_scratch(&MemoryPlan::alive_bytes); }
  void allocate(MemoryLedger& ledger, Index extra_scratch = 0);
  std::byte* scratch() const { return scratch_; }
  /// The slots' activations, then scratch: what is in them matters only within a step and an evaluation.
  std::span<std::byte> work() const { return {work_.data(), static_cast<std::size_t>(work_.bytes())}; }

  /// Says what the next passes work on, and uploads it with InputUploads::whole_step. `first_sample`: number of the
  /// batch's first sample in `source`. `optimizer_state` (u8 [sizeof(ops::OptimizerState)]): its loss scale multiplies
  /// that of `state`; undefined in evaluation.
  void load(Exec& ex, nn::Mode mode, const BatchSource& source, Index first_sample, const StepState& state,
            const Tensor& optimizer_state);
  /// Before the first pass: clears what passes add to (the loss; in training gradients, unless they are replaced).
  void begin(Exec& ex);
  /// From here on the captured segments of training passes run from these graphs; they must live as long.
  void run_segments_from(GraphCache& graphs) { graphs_ = &graphs; }
  /// Sum of the losses of this rank's tokens since begin(): [1] f64, zero except on the last stage.
  const Tensor& loss_sum() const { return loss_sum_; }
  /// Targets with a loss among those that this rank's head was given in a step or an evaluated batch: all losses of
  /// loss_sum() are theirs. Complete when the host has submitted all passes.
  Index counted_targets() const { return counted_targets_; }

  /// Names what the slots hold after a training step: of every slot, the microbatch that came last.
  void name_slots(MemoryNames& names) const;

  /// Runs every pass of every chunk, each in all ways that a step has, on made-up inputs and without messages between
  /// stages: what libraries choose, load and allocate at their first use is then done, which must not happen while a
  /// receive waits on a GPU. Changes gradients and loss_sum() only. All ranks come together.
  void warm_up(Exec& ex, const Tensor& optimizer_state);
  /// Runs what tensor- and data-parallel ranks exchange once at its sizes, on zeros, and gathers the parameters: NCCL
  /// takes memory at the first call of a kind. Before warm_up(); all ranks come together.
  void warm_up_collectives(Exec& ex);

  void set_step_state(Exec& ex, int chunk, int microbatch, int slot) override;
  void gather_params(Exec& ex, int chunk) override;
  void forward(Exec& ex, int chunk, int slot, const Tensor& input, const Tensor& output) override;
  void backward(Exec& ex, int chunk, int slot, const Tensor& output_grad, const Tensor& input_grad,
                const pipeline::BackwardTurn& turn) override;
  /// Sends the gradients that the last backwards have not sent (GradReducer). Sums have arrived after await_grads()
  /// only.
  void reduce_grads(Exec& ex) override;
  /// Holds the Exec until a bucket of one of params().buffers() has its sums. Within a planned phase it stands aside.
  void await_grads(Exec& ex, std::size_t buffer, std::size_t bucket);
  void await_all_grads(Exec& ex);

 private:
  struct Slot {
    std::byte* activations = nullptr;
    Tensor block;  ///< u8 [layout_.bytes()], filled by one upload
    Tensor step_state;
    BatchTensors batch;              ///< both of the block
    int chunk = -1, microbatch = 0;  ///< that it serves; -1: none yet
  };

  void plan_memory();
  /// Of all passes' plans; evaluations have the slots' activations for scratch, too.
  Index most_scratch(Index MemoryPlan::*bytes) const;
  pipeline::LoweredSchedule cheapest_lowering(const pipeline::ScheduleShape& shape) const;
  Index activation_bytes(const pipeline::LoweredSchedule& schedule) const;
  Index slot_bytes(const pipeline::LoweredSchedule& schedule, int pool) const;
  Index input_bytes() const;
  Index step_input_bytes() const;
  /// Writes a microbatch's block: the step state, and the inputs where there is room for them. Returns its targets that
  /// have a loss.
  Index fill_block(int microbatch, std::span<std::byte> host) const;
  Index first_sample_of(int microbatch) const;
  Index input_bytes_of(int chunk) const;
  /// Of a microbatch among a step's inputs: a rank in the middle of the model has no ids there.
  Index step_block_bytes() const;
  Index num_slots(const pipeline::LoweredSchedule& schedule) const;
  GptChunk::Inputs unplaced_inputs(nn::Mode mode) const;
  GptChunk::Inputs inputs(const Slot& slot) const;
  /// Whether each microbatch has graphs of its own.
  bool graphs_know_microbatch() const;
  nn::SegmentGraphs segment_graphs(int chunk, int slot_index);
  /// Whether a step's first microbatch replaces the weights' gradients: not where its graphs serve others, too.
  bool first_replaces_grads() const;
  GptChunk::Saved& saved(int chunk, int slot_index);
  Slot& slot(int chunk, int slot);

  StageConfig config_;
  BatchLayout layout_;  ///< of a microbatch
  comm::Mesh mesh_;
  nn::TensorParallel tp_;
  std::vector<ChunkRange> ranges_;
  ParamSet params_;
  std::vector<GptChunk> chunks_;
  std::vector<MemoryPlan> plans_, eval_plans_;
  pipeline::LoweredSchedule train_schedule_, eval_schedule_;

  Buffer work_, inputs_;  ///< work_: the slots' activations, then scratch
  std::byte* scratch_ = nullptr;
  std::vector<Slot> slots_;
  /// By chunk, then by slot. Graphs leave out the host's part of a pass, which fills it: so where a microbatch has
  /// graphs of its own it has a Saved too, and evaluations have others than training.
  std::vector<std::vector<GptChunk::Saved>> saved_, saved_by_evaluation_;
  std::vector<std::size_t> first_slot_;  // of each chunk, training
  std::vector<std::size_t> first_eval_slot_;
  Tensor loss_sum_;

  Staging staging_;
  StepInputs step_inputs_;
  GraphCache* graphs_ = nullptr;
  nn::Mode mode_ = nn::Mode::train;
  optim::ParamExchange exchange_;
  std::vector<std::uint8_t> awaits_params_;  ///< by chunk: 1 from gather_params() to the forward after it
  const BatchSource* source_ = nullptr;
  Tensor optimizer_state_;
  Index first_sample_ = 0, counted_targets_ = 0;
  StepState state_;
};

}  // namespace megalith::model
