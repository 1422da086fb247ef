#pragma once
#include <span>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/model/batch.h"
#include "megalith/model/chunk_memory.h"
#include "megalith/model/router_states.h"
#include "megalith/model/step_inputs.h"
#include "megalith/pipeline/lowering.h"
#include "megalith/pipeline/stage.h"
#include "megalith/runtime/staging.h"
#include "megalith/runtime/step_state.h"
#include "megalith/tensor/memory_names.h"

namespace megalith::model {

/// How the tokens and states of a step are uploaded: those of each microbatch into its slot, just before its forward
/// pass; or those of all microbatches before the step starts (StepInputs), so that graphs can hold the rest of the
/// step.
enum class InputUploads : std::uint8_t { one_by_one, whole_step };

/// Whether each microbatch of a step has its own graphs, or each slot. Without a pipeline there is one in both cases.
enum class CaptureInstance : std::uint8_t { microbatch, slot };

/// How a rank divides its work.
struct StageConfig {
  ModelConfig model;
  std::vector<Index> stage_layers = {};  ///< layers of every global stage; empty: equal shares
  int chunks = 1, group_size = 0;
  nn::SequenceParallel sequence_parallel =
      nn::SequenceParallel::off;            ///< on: a rank holds a share of the rows outside tensor-parallel regions
  int sub_batches = 1;                      ///< of the layers' forward passes: 1 or 2
  Index global_batch = 1, micro_batch = 1;  ///< of steps the largest (Stage::set_batch), and of evaluations
  Index smallest_batch = 0;  ///< steps may have any multiple of it up to global_batch; 0: all have global_batch
  std::uint64_t seed = 0;
  Policy policy = {};
  Device device = Device::cpu;
  Determinism determinism = Determinism::required;
  InputUploads input_uploads = InputUploads::one_by_one;
  CaptureConfig capture = {};  ///< of layers
  CaptureInstance instances = CaptureInstance::microbatch;
  nn::RecomputeConfig recompute = {};
  nn::Fp8Config fp8 = {};
  Sharding sharding = Sharding::none;  ///< over the ranks that hold the same parameters
  ShardedState shard = ShardedState::moments;
  Index grad_bucket_bytes = Index{32} << 20;  ///< of the sums over them: large enough for the full rate of NVLink
};

/// The parts of the model that a rank's chunks hold, of a config's model, stage_layers and chunks.
std::vector<ChunkRange> chunk_ranges(const StageConfig& config, const comm::Mesh& mesh);

/// Microbatches of a step on one data-parallel rank.
int num_microbatches(const StageConfig& config, const comm::Mesh& mesh);
int num_microbatches(const StageConfig& config, const comm::Mesh& mesh, Index global_batch);

/// All that one rank holds of a GPT: parameters, chunks, and the planned memory of the microbatches in flight. It is
/// built without memory, so `plan` can compute the bytes of any rank of any grid. allocate() then takes exactly those.
class Stage : public pipeline::Stage {
 public:
  Stage(StageConfig config, const comm::Mesh& mesh);

  ParamSet& params() { return memory_.params(); }
  const ParamSet& params() const { return memory_.params(); }
  const comm::Mesh& mesh() const { return mesh_; }
  const StageConfig& config() const { return config_; }
  /// Gathers the values that other ranks have updated since the last step, if the optimizer is sharded: for readers of
  /// values between steps. Collective over all ranks that hold the same parameters.
  void gather_all_params(Exec& ex);
  const std::vector<Chunk>& chunks() const { return memory_.chunks(); }
  /// The plan of a chunk's training passes.
  const MemoryPlan& plan_of(int chunk) const { return memory_.plan_of(pass(nn::Mode::train), chunk); }
  const pipeline::LoweredSchedule& schedule() const { return train_schedule_; }
  const pipeline::LoweredSchedule& eval_schedule() const { return eval_schedule_; }
  /// The shape of messages between stages: this rank's rows outside tensor-parallel regions.
  Shape boundary_shape() const { return memory_.message(pass(nn::Mode::train)).shape(); }

  /// Bytes by owner: those of ChunkMemory, activations, scratch, inputs. `extra_scratch`: the scratch that other code
  /// needs.
  BytesByOwner planned_bytes(Index extra_scratch = 0) const;
  /// The part of scratch that tensors hold when they hold most.
  Index scratch_alive_bytes() const { return memory_.alive_bytes(saved_bytes()); }
  void allocate(MemoryLedger& ledger, Index extra_scratch = 0);
  /// Once, after allocate(): what all passes read and none writes.
  void fill_tables(Exec& ex) const { memory_.fill_tables(ex); }
  std::byte* scratch() const { return memory_.scratch(); }
  /// The slots' activations, then scratch. Their contents matter only within a step or an evaluation.
  std::span<std::byte> work() const {
    return {memory_.work().data(), static_cast<std::size_t>(memory_.work().bytes())};
  }

  /// From here on steps have so many samples: schedule() changes, in the memory of the largest step. Graphs of steps of
  /// another size must not be launched any more. Throws InternalError for a size that was not planned
  /// (StageConfig::smallest_batch).
  void set_batch(Index global_batch);
  Index step_batch() const { return batch_; }
  /// Sets the batch of the next passes, and uploads it with InputUploads::whole_step. `first_sample`: number of the
  /// batch's first sample in `source`. `optimizer_state` (u8 [sizeof(ops::OptimizerState)]): its loss scale multiplies
  /// that of `state`; undefined in evaluation.
  void load(Exec& ex, nn::Mode mode, const BatchSource& source, Index first_sample, const StepState& state,
            const Tensor& optimizer_state);
  /// Call it before the first pass. Clears what passes add to: the loss and, in training, gradients that are not
  /// overwritten.
  void begin(Exec& ex);
  /// From here on the captured segments of training passes run from these graphs, which must outlive this.
  void run_segments_from(GraphCache& graphs) { graphs_ = &graphs; }
  /// The terms of the losses in the inputs that this rank's head will read of another step's batch; 0 on other ranks.
  /// Reads the batch once: a load() of it takes it from here. Thereby the terms are known before the step. Two batches
  /// may be held: that of the step under way, and one that comes.
  LossCounts read_ahead(const BatchSource& source, Index first_sample, Index global_batch);
  /// Whether read_ahead() has read the batch and it has not been replaced. The same on all ranks.
  bool has_read(const BatchSource& source, Index first_sample) const;
  /// By loss: the sum over this rank's samples since begin(). [losses] f64, zero except on the last stage.
  const Tensor& loss_sums() const { return loss_sums_; }
  /// By loss: the number of its terms in the inputs of this rank's head, in a step or an evaluated batch. loss_sums()
  /// are the sums over these. Complete when the host has submitted all passes.
  const LossCounts& loss_counts() const { return loss_counts_; }
  /// The logits of a fine-tuned model for the batch that was evaluated last, on ranks with its head: [microbatches,
  /// numbers of a microbatch], f64 for f64, else f32. Undefined on other ranks.
  const Tensor& numbers() const { return numbers_; }

  /// How rows come to the experts of other ranks in all training passes from here on. In rounds there are no graphs.
  /// The memory of passes in rounds is planned where experts may have too few rows, in the memory of the others.
  void set_exchange(nn::RowExchange exchange) { row_exchange_ = exchange; }
  /// What passes have added up about MoE layers since begin(), and the sums over ranks once sum_moe_totals() has run.
  const nn::MoeTotals& moe_totals() const { return memory_.moe().totals; }
  /// What MoE layers share in all passes from here on.
  nn::MoeStep& moe() { return memory_.moe(); }
  /// Over all ranks. Nothing without MoE layers.
  void sum_moe_totals(Exec& ex);
  /// Whether ranks compare the plans of clones in some passes.
  bool compares_plans() const { return config_.model.moe.echo.compared_every(config_.device) > 0; }
  /// How the plans of clones in the last passes differ between ranks. The first one of all ranks has the least order.
  struct PlanDifference {
    std::int64_t order = 0;
    std::string text;  ///< as describe_plan_difference(); empty: they do not, as far as this rank knows
  };
  /// `found`: what MoeTotals::plans held after the passes.
  PlanDifference plan_difference(std::span<const std::int64_t> found) const;
  /// After the verdict on a step (u8 [sizeof(ops::StepVerdict)]): the state of routers that no gradient updates.
  void update_routers(Exec& ex, const Tensor& verdict) { router_states_.update(ex, moe_totals(), verdict); }

  /// Names the contents of the slots after a training step: for every slot, those of its last microbatch.
  void name_slots(MemoryNames& names) const;

  /// Runs every pass of every chunk, in each variant that a step has, on dummy inputs and without messages between
  /// stages. So libraries have chosen, loaded and allocated everything for their first use, which must not happen while
  /// a receive waits on a GPU. Changes only gradients and loss_sums(). Collective over all ranks.
  void warm_up(Exec& ex, const Tensor& optimizer_state);
  /// Runs each collective of tensor- and data-parallel ranks once at its size, on zeros, and gathers the parameters:
  /// NCCL takes memory at the first call of a kind. Call it before warm_up(). Collective over all ranks.
  void warm_up_collectives(Exec& ex);

  void set_step_state(Exec& ex, int chunk, int microbatch, int slot) override;
  void gather_params(Exec& ex, int chunk) override;
  void forward(Exec& ex, int chunk, int slot, const Tensor& input, const Tensor& output) override;
  void backward(Exec& ex, int chunk, int slot, const Tensor& output_grad, const Tensor& input_grad,
                const pipeline::BackwardTurn& turn) override;
  /// Sends the gradients that the last backward passes have not sent (GradReducer). The sums have arrived only after
  /// await_grads().
  void reduce_grads(Exec& ex) override;
  /// The Exec waits until a bucket of one of params().buffers() has its sums. Within a planned phase this is unplanned.
  void await_grads(Exec& ex, std::size_t buffer, std::size_t bucket);
  void await_all_grads(Exec& ex);

 private:
  struct ActivationSlot {
    std::byte *activations = nullptr, *in_rounds = nullptr;  ///< what passes keep: at once, in rounds
    Tensor block;                                            ///< u8 [layout_.bytes()], filled by one upload
    Tensor step_state, label_state;
    BatchTensors batch;              ///< parts of the block
    int chunk = -1, microbatch = 0;  ///< which it serves; -1: none yet
  };

  /// A batch on the host, before its step: the blocks of its microbatches, if this rank counts its terms.
  struct ReadBatch {
    const BatchSource* source = nullptr;
    Index first_sample = 0;
    LossCounts counts{};
    std::vector<std::byte> blocks;

    bool is(const BatchSource& other, Index first) const { return source == &other && first_sample == first; }
  };

  /// Sequences of a sample.
  Index sequences() const { return config_.model.task ? config_.model.task->sequences() : 1; }
  Pass pass(nn::Mode mode, nn::RowExchange exchange = nn::RowExchange::at_once) const {
    return {.mode = mode,
            .batch = config_.micro_batch * sequences(),
            .seq_len = config_.model.seq_len,
            .exchange = exchange};
  }
  /// numbers() without memory.
  Tensor numbers_shape() const;
  /// Those of a microbatch, in the shape of the head's logits.
  Tensor numbers_of(int microbatch) const;
  /// Of the passes from here on.
  Pass pass() const { return pass(mode_, mode_ == nn::Mode::train ? row_exchange_ : nn::RowExchange::at_once); }
  bool may_run_in_rounds() const;
  std::byte* activations_of(const ActivationSlot& slot) const {
    return row_exchange_ == nn::RowExchange::in_rounds ? slot.in_rounds : slot.activations;
  }
  void plan_memory();
  /// Sizes of steps that may need slots or buffers which the largest does not. From two groups of microbatches on,
  /// needs repeat with every further group (tests/pipeline/room_test.cpp): larger sizes need nothing more.
  std::vector<Index> smaller_steps() const;
  pipeline::LoweredSchedule lower_step(Index global_batch, pipeline::SlotPolicy slots) const;
  /// The schedule of the largest step, with slots and buffers for all smaller steps.
  pipeline::LoweredSchedule cheapest_lowering() const;
  void plan_pass(const Pass& pass);
  Index activation_bytes(const pipeline::LoweredSchedule& schedule,
                         nn::RowExchange exchange = nn::RowExchange::at_once) const;
  Index slot_bytes(const pipeline::LoweredSchedule& schedule, int pool,
                   nn::RowExchange exchange = nn::RowExchange::at_once) const;
  SavedBytes saved_bytes() const;
  void place_slots(std::byte* ActivationSlot::*place, nn::RowExchange exchange);
  /// The chunk with the most activations.
  int largest_chunk() const;
  Index input_bytes() const;
  /// Totals of MoE layers in this memory; null: tensors without memory, for their size.
  nn::MoeTotals moe_totals_in(std::byte* memory) const;
  /// Bytes of MoeTotals::exposed. It counts as scratch: equal steps take different times, so nothing may compare them.
  Index time_bytes() const;
  Index step_input_bytes() const;
  /// Writes a microbatch's block: the step states, and the inputs if there is room for them. Adds the terms of its
  /// losses to `counts`.
  void fill_block(int microbatch, std::span<std::byte> host, LossCounts& counts) const;
  /// Writes the inputs of a microbatch of a source's batch.
  void fill_inputs(const BatchSource& source, Index first_sample, Index global_batch, int microbatch,
                   std::span<std::byte> host) const;
  /// The bytes of a microbatch in `read`; empty if they are not there.
  std::span<const std::byte> block_of(const ReadBatch& read, int microbatch) const;
  /// Whether its counts are those of the model: one of the replicas, with the head.
  bool counts_terms() const { return mesh_.last_stage() && mesh_.tp_rank() == 0; }
  /// Its first sample in a batch of so many samples.
  Index first_sample_of(int microbatch, Index global_batch) const;
  /// Samples of the passes from here on.
  Index batch() const { return mode_ == nn::Mode::train ? batch_ : config_.global_batch; }
  Index input_bytes_of(int chunk) const;
  /// Bytes of a microbatch in the inputs of a step. A rank in the middle of the model has no ids there.
  Index step_block_bytes() const;
  /// The parts of activation_bytes() that experts' rows and slots of clones take, by owner.
  BytesByOwner expert_bytes() const;
  Index num_slots(const pipeline::LoweredSchedule& schedule) const;
  /// The inputs of a slot; those of an empty one have no memory.
  Chunk::Inputs inputs(const ActivationSlot& slot, const Pass& pass) const;
  /// Whether each microbatch has its own graphs.
  bool graphs_know_microbatch() const;
  nn::SegmentGraphs segment_graphs(int chunk, int slot_index);
  /// Whether the first microbatch of a step overwrites the weights' gradients. Not if its graphs also serve others.
  bool first_replaces_grads() const;
  Chunk::Saved& saved(int chunk, int slot_index);
  ActivationSlot& slot(int chunk, int slot);

  StageConfig config_;
  Index batch_;         ///< samples of a step
  BatchLayout layout_;  ///< of a microbatch
  comm::Mesh mesh_;
  ChunkMemory memory_;
  RouterStates router_states_;
  pipeline::LoweredSchedule train_schedule_, eval_schedule_;

  Buffer inputs_, times_;
  std::vector<ActivationSlot> slots_;
  /// By chunk, then by slot. The launch of a graph skips the host code of a pass, which fills this. So if a microbatch
  /// has its own graphs it also has its own Saved, and evaluations and passes in rounds have others.
  std::vector<std::vector<Chunk::Saved>> saved_, saved_by_evaluation_, saved_in_rounds_;
  std::vector<std::size_t> first_slot_;  // of each chunk, training
  std::vector<std::size_t> first_eval_slot_;
  Tensor loss_sums_, numbers_;

  Staging staging_;
  StepInputs step_inputs_;
  GraphCache* graphs_ = nullptr;
  nn::Mode mode_ = nn::Mode::train;
  nn::RowExchange row_exchange_ = nn::RowExchange::at_once;  ///< of training
  optim::ParamExchange exchange_;
  std::vector<std::uint8_t> awaits_params_;  ///< by chunk: 1 from gather_params() to the forward after it
  const BatchSource* source_ = nullptr;
  Tensor optimizer_state_;
  Index first_sample_ = 0;
  LossCounts loss_counts_{};
  StepState state_;
  ReadBatch current_, next_;  ///< of read_ahead()
};

}  // namespace megalith::model
