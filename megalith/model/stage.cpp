#include "megalith/model/stage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/model/layer_groups.h"
#include "megalith/nn/moe/moe.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/step_end.h"

namespace megalith::model {
namespace {

grid::LayerAssignment assign_layers(const StageConfig& config, int pp) {
  if (config.stage_layers.empty()) return grid::LayerAssignment::even(config.model.num_layers, pp, config.chunks);
  return grid::LayerAssignment::uneven(config.model.num_layers, pp, config.chunks, config.stage_layers);
}

pipeline::ScheduleShape schedule_shape(const StageConfig& config, const comm::Mesh& mesh, pipeline::ScheduleMode mode) {
  return {mesh.pp.size(), config.chunks, num_microbatches(config, mesh), config.group_size, mode};
}

Index pool_of(const pipeline::LoweredSchedule& schedule, int chunk) {
  return schedule.slot_policy == pipeline::SlotPolicy::shared ? 0 : chunk;
}

/// For every chunk the number of its pool's first slot when pools stand one after the other.
std::vector<std::size_t> first_slots(const pipeline::LoweredSchedule& schedule, int chunks) {
  std::vector<std::size_t> first;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    std::size_t begin = 0;
    for (Index pool = 0; pool < pool_of(schedule, chunk); ++pool) {
      begin += static_cast<std::size_t>(schedule.num_slots[static_cast<std::size_t>(pool)]);
    }
    first.push_back(begin);
  }
  return first;
}

/// The layers that a stage holds.
ModelSpec spec_of(const ModelConfig& model, const std::vector<ChunkRange>& ranges) {
  std::vector<grid::LayerRange> layers;
  for (const ChunkRange& range : ranges) layers.push_back(range.layers);
  return model_spec(model, layers);
}

ParamSet::PartitionOf partition_of(const StageConfig& config, const comm::Mesh& mesh) {
  return [&](const grid::Placement& placement) {
    const grid::Shard shard = grid::optimizer_shard(placement, mesh.sizes, mesh.world.rank());
    return Partition{.bucket_elements = config.grad_bucket_bytes / size_of(config.policy.master),
                     .shards = shard.count,
                     .own = shard.index,
                     .sharding = config.sharding,
                     .place = mesh.place(placement.grid)};
  };
}

}  // namespace

std::vector<ChunkRange> chunk_ranges(const StageConfig& config, const comm::Mesh& mesh) {
  const grid::LayerAssignment layers = assign_layers(config, mesh.pp.size());
  std::vector<ChunkRange> ranges;
  for (int chunk = 0; chunk < config.chunks; ++chunk) {
    ranges.push_back({layers.at(mesh.pp_rank(), chunk), mesh.first_stage() && chunk == 0,
                      mesh.last_stage() && chunk == config.chunks - 1});
  }
  return ranges;
}

int num_microbatches(const StageConfig& config, const comm::Mesh& mesh) {
  const Index samples = config.micro_batch * mesh.dp.size();
  if (config.global_batch < 1 || config.micro_batch < 1 || config.global_batch % samples != 0) {
    throw ConfigError(str("train.global_batch = ", config.global_batch,
                          ": must be a multiple of train.micro_batch * dp = ", samples));
  }
  return static_cast<int>(config.global_batch / samples);
}

Stage::Stage(StageConfig config, const comm::Mesh& mesh)
    : config_(std::move(config)),
      layout_({.samples = config_.micro_batch, .seq_len = config_.model.seq_len, .lengths = config_.model.lengths}),
      mesh_(mesh),
      tp_(mesh_.tp, config_.sequence_parallel, config_.sub_batches),
      groups_(layer_groups(tp_, config_.model, mesh_)),
      ranges_(chunk_ranges(config_, mesh_)),
      params_(declare_model(spec_of(config_.model, ranges_), ranges_, groups_), config_.policy,
              partition_of(config_, mesh_)),
      router_states_(config_.model, params_),
      exchange_(params_, mesh_),
      awaits_params_(ranges_.size(), 0) {
  moe_.totals = moe_totals_in(nullptr);
  const ModelSpec model = spec_of(config_.model, ranges_);
  for (const ChunkRange& range : ranges_)
    chunks_.emplace_back(model, range, groups_, params_, ChunkConfig{config_.seed, config_.capture, config_.recompute});
  plan_memory();
}

Tensor Stage::unplaced_rope_table() const {
  if (!config_.model.has_rope()) return {};
  return {nullptr, config_.model.rope_table_shape(), statistics_dtype(config_.policy.compute)};
}

Chunk::Inputs Stage::unplaced_inputs(nn::Mode mode) const {
  return {{.batch = config_.micro_batch,
           .seq_len = config_.model.seq_len,
           .step_state = BatchLayout::state_of({}),
           .mode = mode,
           .moe = &moe_,
           .lengths = layout_.inputs_of({}).lengths,
           .rope_table = unplaced_rope_table()},
          layout_.inputs_of({}),
          Tensor(nullptr, {1}, DType::f64)};
}

void Stage::plan_memory() {
  const Tensor message(nullptr, boundary_shape(), config_.policy.compute);
  for (const Chunk& chunk : chunks_) {
    const Tensor before = chunk.range().embedding ? Tensor() : message;
    const Tensor after = chunk.range().head ? Tensor() : message;
    for (const nn::Mode mode : {nn::Mode::train, nn::Mode::evaluate}) {
      Recording recording;
      Exec ex(config_.device, recording);
      ex.set_determinism(config_.determinism);
      Chunk::Saved saved = chunk.make_saved();
      recording.begin_phase();
      chunk.forward(ex, unplaced_inputs(mode), before, after, saved, nullptr);
      if (mode == nn::Mode::train) {
        recording.begin_phase();
        chunk.backward(ex, unplaced_inputs(mode), after, before, saved, nullptr);
      }
      (mode == nn::Mode::train ? plans_ : eval_plans_).push_back(make_plan(recording));
    }
  }
  train_schedule_ = cheapest_lowering(schedule_shape(config_, mesh_, pipeline::ScheduleMode::training));
  eval_schedule_ =
      pipeline::lower(schedule_shape(config_, mesh_, pipeline::ScheduleMode::forward_only), mesh_.pp_rank());
  first_slot_ = first_slots(train_schedule_, config_.chunks);
  first_eval_slot_ = first_slots(eval_schedule_, config_.chunks);
}

pipeline::LoweredSchedule Stage::cheapest_lowering(const pipeline::ScheduleShape& shape) const {
  const auto lower = [&](pipeline::SlotPolicy slots) {
    const auto gather = params_.is_sharded() ? pipeline::ParamGather::every_step : pipeline::ParamGather::never;
    return pipeline::lower(shape, mesh_.pp_rank(), {.slots = slots, .gather = gather});
  };
  pipeline::LoweredSchedule per_chunk = lower(pipeline::SlotPolicy::per_chunk);
  if (config_.chunks == 1) return per_chunk;
  pipeline::LoweredSchedule shared = lower(pipeline::SlotPolicy::shared);
  return activation_bytes(shared) < activation_bytes(per_chunk) ? shared : per_chunk;
}

Index Stage::slot_bytes(const pipeline::LoweredSchedule& schedule, int pool) const {
  if (schedule.slot_policy == pipeline::SlotPolicy::per_chunk)
    return plans_[static_cast<std::size_t>(pool)].saved_bytes;
  Index bytes = 0;
  for (const MemoryPlan& plan : plans_) bytes = std::max(bytes, plan.saved_bytes);
  return bytes;
}

Index Stage::activation_bytes(const pipeline::LoweredSchedule& schedule) const {
  Index bytes = 0;
  for (std::size_t pool = 0; pool < schedule.num_slots.size(); ++pool) {
    bytes += schedule.num_slots[pool] * slot_bytes(schedule, static_cast<int>(pool));
  }
  return bytes;
}

Index Stage::expert_rows_bytes() const {
  const auto rows_of = [&](std::size_t pool) {
    if (train_schedule_.slot_policy == pipeline::SlotPolicy::per_chunk)
      return plans_[pool].saved_bytes_of(nn::Moe::kRowsOwner);
    // A shared slot has the size of the largest chunk: what that chunk holds of them counts.
    return std::ranges::max_element(plans_, {}, &MemoryPlan::saved_bytes)->saved_bytes_of(nn::Moe::kRowsOwner);
  };
  Index bytes = 0;
  for (std::size_t pool = 0; pool < train_schedule_.num_slots.size(); ++pool)
    bytes += train_schedule_.num_slots[pool] * rows_of(pool);
  return bytes;
}

Index Stage::num_slots(const pipeline::LoweredSchedule& schedule) const {
  Index count = 0;
  for (const int slots : schedule.num_slots) count += slots;
  return count;
}

Index Stage::input_bytes() const {
  return std::max(num_slots(train_schedule_), num_slots(eval_schedule_)) * layout_.bytes() + kAlignment +
         round_up(unplaced_rope_table().bytes(), kAlignment) + round_up(moe_totals_in(nullptr).bytes(), kAlignment);
}

nn::MoeTotals Stage::moe_totals_in(std::byte* memory) const {
  return nn::MoeTotals::in(memory, config_.model.num_moe_layers(), config_.model.moe.num_experts);
}

Index Stage::step_input_bytes() const {
  if (config_.input_uploads == InputUploads::one_by_one) return 0;
  return StepInputs::bytes(config_.device, num_microbatches(config_, mesh_), step_block_bytes());
}

BytesByOwner Stage::planned_bytes(Index extra_scratch) const {
  const Index activations = activation_bytes(train_schedule_);
  BytesByOwner bytes = params_.bytes();
  const Index expert_rows = expert_rows_bytes();
  bytes[kActivationsOwner] = activations - expert_rows;
  if (config_.model.moe.has_experts()) bytes[nn::Moe::kRowsOwner] = expert_rows;
  bytes[kScratchOwner] = std::max(extra_scratch, most_scratch(&MemoryPlan::scratch_bytes));
  bytes["inputs"] = input_bytes() + step_input_bytes();
  return bytes;
}

Index Stage::most_scratch(Index MemoryPlan::*bytes) const {
  const Index activations = activation_bytes(train_schedule_);
  Index most = 0;
  for (const MemoryPlan& plan : plans_) most = std::max(most, plan.*bytes);
  for (const MemoryPlan& plan : eval_plans_) most = std::max(most, plan.*bytes - activations);
  return most;
}

void Stage::allocate(MemoryLedger& ledger, Index extra_scratch) {
  const BytesByOwner bytes = planned_bytes(extra_scratch);
  params_.allocate(ledger);
  const Index activations = activation_bytes(train_schedule_), expert_rows = expert_rows_bytes();
  work_ = ledger.take(kActivationsOwner, activations, kScratchOwner, bytes.at(kScratchOwner));
  if (config_.model.moe.has_experts()) {  // they lie among the activations of their slots
    ledger.note(kActivationsOwner, -expert_rows);
    ledger.note(nn::Moe::kRowsOwner, expert_rows);
  }
  scratch_ = work_.data() + activations;
  inputs_ = ledger.take("inputs", input_bytes());

  loss_sum_ = inputs_.view({1}, DType::f64);
  Index offset = kAlignment;
  if (const Tensor table = unplaced_rope_table()) {
    rope_table_ = inputs_.view(table.shape(), table.dtype(), offset);
    offset += round_up(table.bytes(), kAlignment);
  }
  moe_.totals = moe_totals_in(inputs_.data() + offset);
  offset += round_up(moe_.totals.bytes(), kAlignment);
  slots_.resize(static_cast<std::size_t>(std::max(num_slots(train_schedule_), num_slots(eval_schedule_))));
  for (ActivationSlot& slot : slots_) {
    slot.block = inputs_.view({layout_.bytes()}, DType::u8, offset);
    slot.step_state = BatchLayout::state_of(slot.block);
    slot.batch = layout_.inputs_of(slot.block);
    offset += layout_.bytes();
  }
  const std::size_t instances = std::max(slots_.size(), static_cast<std::size_t>(num_microbatches(config_, mesh_)));
  const auto saved_sets = [this](const Chunk& chunk, std::size_t count) {
    std::vector<Chunk::Saved> sets;
    for (std::size_t i = 0; i < count; ++i) sets.push_back(chunk.make_saved());
    for (Chunk::Saved& saved : sets) saved.take_host_memory(config_.device);
    return sets;
  };
  for (const Chunk& chunk : chunks_) {
    saved_.push_back(saved_sets(chunk, config_.capture.layers.any() ? instances : slots_.size()));
    saved_by_evaluation_.push_back(saved_sets(chunk, slots_.size()));
  }
  if (config_.input_uploads == InputUploads::whole_step) {
    step_inputs_ = StepInputs(ledger, "inputs", config_.device, num_microbatches(config_, mesh_), step_block_bytes());
  } else {
    constexpr int kUploadsAhead = 4;
    staging_ = Staging(config_.device, layout_.bytes(), kUploadsAhead);
  }
  std::byte* place = work_.data();
  std::size_t index = 0;
  for (std::size_t pool = 0; pool < train_schedule_.num_slots.size(); ++pool) {
    for (int i = 0; i < train_schedule_.num_slots[pool]; ++i) {
      slots_[index++].activations = place;
      place += slot_bytes(train_schedule_, static_cast<int>(pool));
    }
  }
}

void Stage::fill_tables(Exec& ex) {
  if (rope_table_) ops::rope_table(ex, config_.model.rope_frequencies(), rope_table_);
}

void Stage::load(Exec& ex, nn::Mode mode, const BatchSource& source, Index first_sample, const StepState& state,
                 const Tensor& optimizer_state) {
  mode_ = mode;
  source_ = &source;
  first_sample_ = first_sample;
  state_ = state;
  optimizer_state_ = optimizer_state;
  if (config_.input_uploads == InputUploads::one_by_one) return;
  Index targets = 0;
  step_inputs_.load(ex, [&](int microbatch, std::span<std::byte> host) { targets += fill_block(microbatch, host); });
  counted_targets_ = mesh_.last_stage() ? targets : 0;
}

void Stage::begin(Exec& ex) {
  if (config_.input_uploads == InputUploads::one_by_one) counted_targets_ = 0;
  ops::fill(ex, loss_sum_, 0);
  if (moe_.totals.layers() > 0)
    ops::fill(ex, Tensor(moe_.totals.counts.raw(), {moe_.totals.bytes() / 8}, DType::f64), 0);
  if (mode_ == nn::Mode::evaluate) return;
  if (first_replaces_grads()) {
    for (const ParamBuffer& buffer : params_.trained()) {
      for (const Tensor& grads : buffer.added_grads()) {
        if (grads.numel() > 0) ops::fill(ex, grads, 0);
      }
    }
  } else {
    for (const ParamBuffer& buffer : params_.trained()) ops::fill(ex, buffer.grads(), 0);
  }
  exchange_.begin();
}

Stage::ActivationSlot& Stage::slot(int chunk, int slot) {
  const std::vector<std::size_t>& first = mode_ == nn::Mode::train ? first_slot_ : first_eval_slot_;
  return slots_[first[static_cast<std::size_t>(chunk)] + static_cast<std::size_t>(slot)];
}

Chunk::Inputs Stage::inputs(const ActivationSlot& slot) const {
  return {{.batch = config_.micro_batch,
           .seq_len = config_.model.seq_len,
           .step_state = slot.step_state,
           .mode = mode_,
           .moe = &moe_,
           .lengths = slot.batch.lengths,
           .rope_table = rope_table_},
          slot.batch,
          loss_sum_};
}

Index Stage::input_bytes_of(int chunk) const {
  const ChunkRange& range = ranges_[static_cast<std::size_t>(chunk)];
  return range.embedding || range.head ? layout_.bytes() : layout_.middle_bytes();
}

Index Stage::step_block_bytes() const {
  Index bytes = 0;
  for (int chunk = 0; chunk < static_cast<int>(ranges_.size()); ++chunk)
    bytes = std::max(bytes, round_up(input_bytes_of(chunk), kAlignment));
  return bytes;
}

Index Stage::first_sample_of(int microbatch) const {
  return mesh_.dp_rank() * (config_.global_batch / mesh_.dp.size()) + microbatch * config_.micro_batch;
}

Index Stage::fill_block(int microbatch, std::span<std::byte> host) const {
  const Index sample = first_sample_of(microbatch);
  StepState state = state_;
  state.first_sample = static_cast<std::uint64_t>(sample);
  std::memcpy(host.data(), &state, sizeof(state));
  const Batch batch = layout_.on_host(host);
  const bool reads =
      std::ranges::any_of(kBatchInputs, [&](const BatchInput& input) { return !(batch.*input.host).empty(); });
  if (reads) source_->fill(first_sample_ + sample, config_.micro_batch, batch);
  return count_targets(batch.targets);
}

bool Stage::graphs_know_microbatch() const {
  return mesh_.pp.size() > 1 && config_.instances == CaptureInstance::microbatch;
}

nn::SegmentGraphs Stage::segment_graphs(int chunk, int slot_index) {
  if (mode_ == nn::Mode::evaluate) return {};
  if (graphs_know_microbatch()) return {graphs_, chunk, slot(chunk, slot_index).microbatch};
  return {graphs_, chunk, config_.instances == CaptureInstance::slot ? slot_index : 0};
}

bool Stage::first_replaces_grads() const {
  return !config_.capture.layers.any() || graphs_know_microbatch() || num_microbatches(config_, mesh_) == 1;
}

Chunk::Saved& Stage::saved(int chunk, int slot_index) {
  const bool from_graphs = mode_ == nn::Mode::train && config_.capture.layers.any();
  const int index = from_graphs ? segment_graphs(chunk, slot_index).instance : slot_index;
  std::vector<std::vector<Chunk::Saved>>& all = mode_ == nn::Mode::train ? saved_ : saved_by_evaluation_;
  return all[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(index)];
}

void Stage::set_step_state(Exec& ex, int chunk, int microbatch, int slot_index) {
  ActivationSlot& place = slot(chunk, slot_index);
  place.chunk = chunk;
  place.microbatch = microbatch;
  const Index bytes = input_bytes_of(chunk);
  if (config_.input_uploads == InputUploads::whole_step) {
    ops::copy(ex, step_inputs_.block(microbatch).rows(0, bytes), place.block.rows(0, bytes));
  } else {
    ex.run({.name = "set_step_state",
            .reads = {},
            .writes = {place.batch.lengths, place.batch.tokens, place.batch.targets, place.step_state}},
           [&](Exec&, Stream) {
             staging_.upload(ex, static_cast<std::byte*>(place.step_state.raw()), bytes, [&](std::byte* host) {
               const Index targets = fill_block(microbatch, {host, static_cast<std::size_t>(bytes)});
               if (ranges_[static_cast<std::size_t>(chunk)].head) counted_targets_ += targets;
             });
           });
  }
  if (mode_ == nn::Mode::train) ops::scale_step_state(ex, optimizer_state_, place.step_state);
}

void Stage::name_slots(MemoryNames& names) const {
  for (const ActivationSlot& place : slots_) {
    if (place.chunk < 0 || mode_ == nn::Mode::evaluate) continue;
    const CallSite where{.chunk = place.chunk, .microbatch = place.microbatch};
    const auto chunk = static_cast<std::size_t>(place.chunk);
    const auto order_of = [&](Index op) {
      return forward_order(place.microbatch, ranges_[chunk].layers.begin, config_.model.num_layers, op);
    };
    const StepOrder inputs{StepOrder::Part::inputs, order_of(0).within};
    add_name(names, place.step_state, inputs, str("step state", describe(where)));
    for (const BatchInput& input : kBatchInputs) {
      if (const Tensor& values = place.batch.*input.device)
        add_name(names, values, inputs, str(input.name, describe(where)));
    }
    if (place.activations == nullptr) continue;
    for (const Allocation& made : plans_[chunk].phases[0].tensors) {
      if (made.region != Region::saved) continue;
      const Tensor tensor(place.activations + made.offset, {made.bytes}, DType::u8);
      add_name(names, tensor, order_of(made.made),
               str("result of ", made.maker, describe({place.chunk, place.microbatch, made.layer})));
    }
  }
}

void Stage::sum_moe_totals(Exec& ex) {
  if (moe_.totals.layers() == 0) return;
  // Of the ranks that hold a bias one counts.
  if (mesh_.tp_rank() == 0 && mesh_.dp_cp.rank() == 0) router_states_.add_bias_ranges(ex, moe_.totals);
  comm::all_reduce(ex, mesh_.world, moe_.totals.counts, comm::Reduce::sum).wait(ex);
  comm::all_reduce(ex, mesh_.world, moe_.totals.numbers, comm::Reduce::sum).wait(ex);
}

void Stage::gather_all_params(Exec& ex) { exchange_.gather_all(ex); }

void Stage::gather_params(Exec& ex, int chunk) {
  const auto c = static_cast<std::size_t>(chunk);
  chunks_[c].gather_params(ex, exchange_);
  awaits_params_[c] = 1;
}

void Stage::forward(Exec& ex, int chunk, int slot_index, const Tensor& input, const Tensor& output) {
  const auto c = static_cast<std::size_t>(chunk);
  ActivationSlot& place = slot(chunk, slot_index);
  const std::vector<MemoryPlan>& plans = mode_ == nn::Mode::train ? plans_ : eval_plans_;
  // No activation is kept during an evaluation: its scratch begins where theirs do.
  ex.begin(plans[c].phases[0], place.activations, mode_ == nn::Mode::train ? scratch_ : work_.data());
  optim::ParamExchange* const values = std::exchange(awaits_params_[c], 0) != 0 ? &exchange_ : nullptr;
  Chunk::Inputs with = inputs(place);
  with.graphs = segment_graphs(chunk, slot_index);
  chunks_[c].forward(ex, with, input, output, saved(chunk, slot_index), values);
  ex.end();
}

void Stage::backward(Exec& ex, int chunk, int slot_index, const Tensor& output_grad, const Tensor& input_grad,
                     const pipeline::BackwardTurn& turn) {
  const auto c = static_cast<std::size_t>(chunk);
  ActivationSlot& place = slot(chunk, slot_index);
  ex.begin(plans_[c].phases[1], place.activations, scratch_);
  Chunk::Inputs with = inputs(place);
  with.graphs = segment_graphs(chunk, slot_index);
  if (turn.is_first && first_replaces_grads()) with.microbatch.weight_grads = ops::Write::overwrite;
  chunks_[c].backward(ex, with, output_grad, input_grad, saved(chunk, slot_index), turn.is_last ? &exchange_ : nullptr);
  ex.end();
}

void Stage::reduce_grads(Exec& ex) { exchange_.send_rest(ex); }

void Stage::await_grads(Exec& ex, std::size_t buffer, std::size_t bucket) {
  ex.unplanned([&] { exchange_.wait(ex, buffer, bucket); });
}

void Stage::await_all_grads(Exec& ex) {
  std::size_t index = 0;
  for (const ParamBuffer& buffer : params_.trained()) {
    for (std::size_t bucket = 0; bucket < buffer.buckets().size(); ++bucket) await_grads(ex, index, bucket);
    ++index;
  }
}

}  // namespace megalith::model
