#include "megalith/model/stage.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/nn/moe/moe.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/step_end.h"

namespace megalith::model {
namespace {

grid::LayerAssignment assign_layers(const StageConfig& config, int pp) {
  return grid::LayerAssignment::of(config.model.num_layers, pp, config.chunks, config.stage_layers);
}

/// The shape of a schedule of so many samples: those of a step or of an evaluation.
pipeline::ScheduleShape schedule_shape(const StageConfig& config, const comm::Mesh& mesh, pipeline::ScheduleMode mode,
                                       Index global_batch) {
  return {mesh.pp.size(), config.chunks, num_microbatches(config, mesh, global_batch), config.group_size, mode};
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

ParamSet::PartitionOf partition_of(const StageConfig& config, const comm::Mesh& mesh) {
  return [&](const grid::Placement& placement) {
    const grid::Shard shard = grid::optimizer_shard(placement, mesh.sizes, mesh.world.rank());
    return Partition{.bucket_elements = config.grad_bucket_bytes / size_of(config.policy.master),
                     .shards = shard.count,
                     .own = shard.index,
                     .sharding = config.sharding,
                     .shard = config.shard,
                     .one_microbatch = num_microbatches(config, mesh) == 1,
                     .place = mesh.coordinates(placement.grid)};
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
  return num_microbatches(config, mesh, config.global_batch);
}

int num_microbatches(const StageConfig& config, const comm::Mesh& mesh, Index global_batch) {
  const Index samples = config.micro_batch * mesh.dp.size();
  if (global_batch < 1 || config.micro_batch < 1 || global_batch % samples != 0) {
    throw ConfigError(
        str("train.global_batch = ", global_batch, ": must be a multiple of train.micro_batch * dp = ", samples));
  }
  return static_cast<int>(global_batch / samples);
}

Stage::Stage(StageConfig config, const comm::Mesh& mesh)
    : config_(std::move(config)),
      batch_(config_.global_batch),
      layout_(batch_shape(config_.model, config_.micro_batch, config_.model.seq_len)),
      mesh_(mesh),
      memory_({.model = config_.model,
               .ranges = chunk_ranges(config_, mesh_),
               .tp = {mesh_.tp, config_.sequence_parallel, config_.sub_batches},
               .chunk = {config_.seed, config_.capture, config_.recompute, config_.fp8, config_.model.num_layers},
               .policy = config_.policy,
               .device = config_.device,
               .determinism = config_.determinism},
              mesh_, partition_of(config_, mesh_)),
      router_states_(config_.model, params()),
      loss_sums_(nullptr, {std::ssize(losses_of(config_.model))}, DType::f64),
      exchange_(params(), mesh_),
      awaits_params_(chunks().size(), 0) {
  moe().totals = moe_totals_in(nullptr);
  numbers_ = numbers_shape();
  plan_memory();
}

Tensor Stage::numbers_shape() const {
  const std::optional<nn::TaskHeadSpec>& task = config_.model.task;
  if (!task || !mesh_.last_stage()) return {};
  return {nullptr,
          {num_microbatches(config_, mesh_), config_.micro_batch * task->numbers(config_.model.seq_len)},
          statistics_dtype(config_.policy.compute)};
}

bool Stage::may_run_in_rounds() const {
  const nn::MoeConfig& moe = config_.model.moe;
  return moe.has_experts() && !moe.rank_capacity_factor.is_worst_case() && moe.overflow != nn::RowOverflow::drop;
}

void Stage::plan_pass(const Pass& pass) {
  const ActivationSlot nowhere{.block = {},
                               .step_state = BatchLayout::state_of({}),
                               .label_state = BatchLayout::label_state_of({}),
                               .batch = layout_.inputs_of({})};
  for (int chunk = 0; chunk < config_.chunks; ++chunk) {
    const Chunk& own = memory_.chunk(chunk);
    const Tensor message = memory_.message(pass);
    const Tensor before = memory_.input_of(chunk, message), after = memory_.output_of(chunk, message);
    const Chunk::Inputs with = inputs(nowhere, pass);
    Chunk::Saved saved = own.make_saved();
    const ChunkMemory::Ops backward = [&](Exec& ex) { own.backward(ex, with, after, before, saved, nullptr); };
    memory_.plan(
        pass, chunk, [&](Exec& ex) { own.forward(ex, with, before, after, saved, nullptr); },
        pass.mode == nn::Mode::train ? backward : ChunkMemory::Ops());
  }
}

void Stage::plan_memory() {
  plan_pass(pass(nn::Mode::train));
  plan_pass(pass(nn::Mode::evaluate));
  if (may_run_in_rounds()) plan_pass(pass(nn::Mode::train, nn::RowExchange::in_rounds));
  train_schedule_ = cheapest_lowering();
  eval_schedule_ =
      pipeline::lower(schedule_shape(config_, mesh_, pipeline::ScheduleMode::forward_only, batch_), mesh_.pp_rank());
  first_slot_ = first_slots(train_schedule_, config_.chunks);
  first_eval_slot_ = first_slots(eval_schedule_, config_.chunks);
}

void Stage::set_batch(Index global_batch) {
  if (global_batch == batch_) return;
  const Index smallest = config_.smallest_batch;
  if (smallest == 0 || global_batch % smallest != 0 || global_batch < 1 || global_batch > config_.global_batch)
    throw InternalError(str("[Stage::set_batch] ", global_batch, " samples: no step of that size was planned"));
  pipeline::LoweredSchedule schedule = lower_step(global_batch, train_schedule_.slot_policy);
  pipeline::widen(schedule, train_schedule_);
  if (activation_bytes(schedule) != activation_bytes(train_schedule_))
    throw InternalError(str("[Stage::set_batch] ", global_batch, " samples: their slots were not planned"));
  train_schedule_ = std::move(schedule);
  batch_ = global_batch;
}

pipeline::LoweredSchedule Stage::lower_step(Index global_batch, pipeline::SlotPolicy slots) const {
  const auto gather = params().is_sharded() ? pipeline::ParamGather::every_step : pipeline::ParamGather::never;
  return pipeline::lower(schedule_shape(config_, mesh_, pipeline::ScheduleMode::training, global_batch),
                         mesh_.pp_rank(), {.slots = slots, .gather = gather});
}

pipeline::LoweredSchedule Stage::cheapest_lowering() const {
  const auto lower = [&](pipeline::SlotPolicy slots) {
    pipeline::LoweredSchedule schedule = lower_step(config_.global_batch, slots);
    for (const Index batch : smaller_steps()) pipeline::widen(schedule, lower_step(batch, slots));
    return schedule;
  };
  pipeline::LoweredSchedule per_chunk = lower(pipeline::SlotPolicy::per_chunk);
  if (config_.chunks == 1) return per_chunk;
  pipeline::LoweredSchedule shared = lower(pipeline::SlotPolicy::shared);
  return activation_bytes(shared) < activation_bytes(per_chunk) ? shared : per_chunk;
}

std::vector<Index> Stage::smaller_steps() const {
  // With one chunk a smaller step needs no more than a larger one.
  if (config_.smallest_batch == 0 || config_.chunks == 1) return {};
  const Index first = num_microbatches(config_, mesh_, config_.smallest_batch);
  const Index group =
      pipeline::group_size(schedule_shape(config_, mesh_, pipeline::ScheduleMode::training, config_.global_batch));
  const Index sizes = std::min(config_.global_batch / config_.smallest_batch - 1, ceil_div(2 * group, first) + group);
  std::vector<Index> steps;
  for (Index i = 1; i <= sizes; ++i) steps.push_back(i * config_.smallest_batch);
  return steps;
}

Index Stage::slot_bytes(const pipeline::LoweredSchedule& schedule, int pool, nn::RowExchange exchange) const {
  const auto saved_of = [&](int chunk) { return memory_.plan_of(pass(nn::Mode::train, exchange), chunk).saved_bytes; };
  if (schedule.slot_policy == pipeline::SlotPolicy::per_chunk) return saved_of(pool);
  Index largest = 0;
  for (int chunk = 0; chunk < config_.chunks; ++chunk) largest = std::max(largest, saved_of(chunk));
  return largest;
}

SavedBytes Stage::saved_bytes() const {
  const Index in_rounds =
      may_run_in_rounds() ? activation_bytes(train_schedule_, nn::RowExchange::in_rounds) : Index{0};
  return {activation_bytes(train_schedule_), in_rounds};
}

int Stage::largest_chunk() const {
  int largest = 0;
  for (int chunk = 1; chunk < config_.chunks; ++chunk) {
    if (plan_of(chunk).saved_bytes > plan_of(largest).saved_bytes) largest = chunk;
  }
  return largest;
}

Index Stage::activation_bytes(const pipeline::LoweredSchedule& schedule, nn::RowExchange exchange) const {
  Index bytes = 0;
  for (std::size_t pool = 0; pool < schedule.num_slots.size(); ++pool) {
    bytes += schedule.num_slots[pool] * slot_bytes(schedule, static_cast<int>(pool), exchange);
  }
  return bytes;
}

BytesByOwner Stage::expert_bytes() const {
  const bool is_shared = train_schedule_.slot_policy == pipeline::SlotPolicy::shared;
  const nn::MoeConfig& moe = config_.model.moe;
  BytesByOwner bytes;
  if (moe.has_experts()) bytes[nn::Moe::kRowsOwner] = 0;
  if (moe.echo.slots > 0) bytes[nn::Echo::kSlotsOwner] = 0;
  for (std::size_t pool = 0; pool < train_schedule_.num_slots.size(); ++pool) {
    // A shared slot has the size of the largest chunk: what that chunk holds of them counts.
    const MemoryPlan& plan = plan_of(is_shared ? largest_chunk() : static_cast<int>(pool));
    for (auto& [owner, taken] : bytes) taken += train_schedule_.num_slots[pool] * plan.saved_bytes_of(owner);
  }
  return bytes;
}

Index Stage::num_slots(const pipeline::LoweredSchedule& schedule) const {
  Index count = 0;
  for (const int slots : schedule.num_slots) count += slots;
  return count;
}

Index Stage::input_bytes() const {
  return std::max(num_slots(train_schedule_), num_slots(eval_schedule_)) * layout_.bytes() + kAlignment +
         round_up(moe_totals().bytes(), kAlignment) + (numbers_ ? round_up(numbers_.bytes(), kAlignment) : 0);
}

nn::MoeTotals Stage::moe_totals_in(std::byte* memory) const {
  const nn::MoeConfig& moe = config_.model.moe;
  const Index layers = config_.model.num_moe_layers();
  const auto of_echo = moe.echo.slots > 0 ? nn::EchoTotals::counted : nn::EchoTotals::none;
  nn::MoeTotals totals = nn::MoeTotals::in(memory, layers, moe.num_experts, of_echo);
  if (totals.echo) totals.exposed = {times_.data(), {layers}, DType::f64};
  return totals;
}

Index Stage::time_bytes() const {
  return moe_totals().exposed ? round_up(moe_totals().exposed.bytes(), kAlignment) : 0;
}

Index Stage::step_input_bytes() const {
  if (config_.input_uploads == InputUploads::one_by_one) return 0;
  return StepInputs::bytes(config_.device, num_microbatches(config_, mesh_), step_block_bytes());
}

BytesByOwner Stage::planned_bytes(Index extra_scratch) const {
  const Index activations = activation_bytes(train_schedule_);
  BytesByOwner bytes = memory_.bytes();
  bytes[kActivationsOwner] = activations;
  for (const auto& [owner, taken] : expert_bytes()) {
    bytes[kActivationsOwner] -= taken;
    bytes[owner] = taken;
  }
  bytes[kScratchOwner] = std::max(extra_scratch, memory_.scratch_bytes(saved_bytes())) + time_bytes();
  bytes["inputs"] = input_bytes() + step_input_bytes();
  return bytes;
}

void Stage::allocate(MemoryLedger& ledger, Index extra_scratch) {
  const BytesByOwner bytes = planned_bytes(extra_scratch);
  memory_.allocate(ledger, saved_bytes(), bytes.at(kScratchOwner) - time_bytes());
  if (const Index times = time_bytes(); times > 0) times_ = ledger.take(kScratchOwner, times);
  for (const auto& [owner, taken] : expert_bytes()) {  // they lie among the activations of their slots
    ledger.note(kActivationsOwner, -taken);
    ledger.note(owner, taken);
  }
  inputs_ = ledger.take("inputs", input_bytes());

  Carver inputs(inputs_.data());
  loss_sums_ = inputs.next(loss_sums_.shape(), DType::f64);
  moe().totals = moe_totals_in(static_cast<std::byte*>(inputs.next({moe_totals().bytes()}, DType::u8).raw()));
  if (numbers_) numbers_ = inputs.next(numbers_.shape(), numbers_.dtype());
  slots_.resize(static_cast<std::size_t>(std::max(num_slots(train_schedule_), num_slots(eval_schedule_))));
  for (ActivationSlot& slot : slots_) {
    slot.block = inputs.next({layout_.bytes()}, DType::u8);
    slot.step_state = BatchLayout::state_of(slot.block);
    slot.label_state = BatchLayout::label_state_of(slot.block);
    slot.batch = layout_.inputs_of(slot.block);
  }
  const std::size_t instances = std::max(slots_.size(), static_cast<std::size_t>(num_microbatches(config_, mesh_)));
  for (int chunk = 0; chunk < config_.chunks; ++chunk) {
    saved_.push_back(memory_.make_saved(chunk, config_.capture.layers.any() ? instances : slots_.size()));
    saved_by_evaluation_.push_back(memory_.make_saved(chunk, slots_.size()));
    saved_in_rounds_.push_back(memory_.make_saved(chunk, may_run_in_rounds() ? slots_.size() : 0));
  }
  if (config_.input_uploads == InputUploads::whole_step) {
    step_inputs_ = StepInputs(ledger, "inputs", config_.device, num_microbatches(config_, mesh_), step_block_bytes());
  } else {
    constexpr int kUploadsAhead = 4;
    staging_ = Staging(config_.device, layout_.bytes(), kUploadsAhead);
  }
  place_slots(&ActivationSlot::activations, nn::RowExchange::at_once);
  if (may_run_in_rounds()) place_slots(&ActivationSlot::in_rounds, nn::RowExchange::in_rounds);
}

void Stage::place_slots(std::byte* ActivationSlot::*place, nn::RowExchange exchange) {
  std::byte* next = memory_.work().data();
  std::size_t index = 0;
  for (std::size_t pool = 0; pool < train_schedule_.num_slots.size(); ++pool) {
    for (int i = 0; i < train_schedule_.num_slots[pool]; ++i) {
      slots_[index++].*place = next;
      next += slot_bytes(train_schedule_, static_cast<int>(pool), exchange);
    }
  }
}

void Stage::begin(Exec& ex) {
  if (config_.input_uploads == InputUploads::one_by_one) loss_counts_ = {};
  ops::fill(ex, loss_sums_, 0);
  if (moe_totals().layers() > 0)
    ops::fill(ex, Tensor(moe_totals().counts.raw(), {moe_totals().bytes() / 8}, DType::f64), 0);
  if (moe_totals().exposed) ops::fill(ex, moe_totals().exposed, 0);
  if (mode_ == nn::Mode::evaluate) return;
  if (first_replaces_grads()) {
    for (const ParamBuffer& buffer : params().trained()) {
      for (const Tensor& grads : buffer.added_grads()) {
        if (grads.numel() > 0) ops::fill(ex, grads, 0);
      }
    }
  } else {
    for (const ParamBuffer& buffer : params().trained()) ops::fill(ex, buffer.grads(), 0);
  }
  exchange_.begin();
}

Stage::ActivationSlot& Stage::slot(int chunk, int slot) {
  const std::vector<std::size_t>& first = mode_ == nn::Mode::train ? first_slot_ : first_eval_slot_;
  return slots_[first[static_cast<std::size_t>(chunk)] + static_cast<std::size_t>(slot)];
}

Chunk::Inputs Stage::inputs(const ActivationSlot& slot, const Pass& pass) const {
  nn::Microbatch microbatch = memory_.microbatch(pass);
  microbatch.step_state = slot.step_state;
  microbatch.lengths = slot.batch.lengths;
  microbatch.document_begin = slot.batch.document_begin;
  microbatch.positions = slot.batch.positions;
  const Tensor numbers = pass.mode == nn::Mode::evaluate ? numbers_of(slot.microbatch) : Tensor();
  return {std::move(microbatch), slot.batch, loss_sums_, {}, slot.label_state, numbers};
}

Tensor Stage::numbers_of(int microbatch) const {
  if (!numbers_) return {};
  const Tensor all = numbers_.rows(microbatch, 1);
  const bool is_of_tokens = config_.model.task->form == nn::TaskForm::spans;
  const Index columns = is_of_tokens ? config_.model.seq_len : config_.model.task->classes;
  return all.reshaped({all.numel() / columns, columns});
}

bool Stage::graphs_know_microbatch() const {
  return mesh_.pp.size() > 1 && config_.instances == CaptureInstance::microbatch;
}

nn::SegmentGraphs Stage::segment_graphs(int chunk, int slot_index) {
  if (mode_ == nn::Mode::evaluate || row_exchange_ == nn::RowExchange::in_rounds) return {};
  if (graphs_know_microbatch()) return {graphs_, chunk, slot(chunk, slot_index).microbatch};
  return {graphs_, chunk, config_.instances == CaptureInstance::slot ? slot_index : 0};
}

bool Stage::first_replaces_grads() const {
  return !config_.capture.layers.any() || graphs_know_microbatch() || num_microbatches(config_, mesh_) == 1;
}

Chunk::Saved& Stage::saved(int chunk, int slot_index) {
  if (mode_ == nn::Mode::train && row_exchange_ == nn::RowExchange::in_rounds)
    return saved_in_rounds_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(slot_index)];
  const bool from_graphs = mode_ == nn::Mode::train && config_.capture.layers.any();
  const int index = from_graphs ? segment_graphs(chunk, slot_index).instance : slot_index;
  std::vector<std::vector<Chunk::Saved>>& all = mode_ == nn::Mode::train ? saved_ : saved_by_evaluation_;
  return all[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(index)];
}

void Stage::name_slots(MemoryNames& names) const {
  for (const ActivationSlot& place : slots_) {
    if (place.chunk < 0 || mode_ == nn::Mode::evaluate) continue;
    const CallSite where{.chunk = place.chunk, .microbatch = place.microbatch};
    const Chunk& chunk = memory_.chunk(place.chunk);
    const auto order_of = [&](Index op) {
      return forward_order(place.microbatch, chunk.range().layers.begin, config_.model.num_layers, op);
    };
    const StepOrder inputs{StepOrder::Part::inputs, order_of(0).within};
    add_name(names, place.step_state, inputs, str("step state", describe(where)));
    if (config_.model.is_masked_lm()) add_name(names, place.label_state, inputs, str("label state", describe(where)));
    for (const BatchInput& input : kBatchInputs) {
      if (const Tensor& values = place.batch.*input.device)
        add_name(names, values, inputs, str(input.name, describe(where)));
    }
    if (place.activations == nullptr) continue;
    for (const Allocation& made : plan_of(place.chunk).phases[0].tensors) {
      if (made.region != Region::saved) continue;
      const Tensor tensor(place.activations + made.offset, {made.bytes}, DType::u8);
      add_name(names, tensor, order_of(made.made),
               str("result of ", made.maker, describe({place.chunk, place.microbatch, made.layer})));
    }
  }
}

void Stage::sum_moe_totals(Exec& ex) {
  if (moe_totals().layers() == 0) return;
  // One of the ranks that hold a bias counts.
  if (mesh_.tp_rank() == 0 && mesh_.dp_cp.rank() == 0) router_states_.add_bias_ranges(ex, moe_totals());
  comm::all_reduce(ex, mesh_.world, moe_totals().counts, comm::Reduce::sum).wait(ex);
  comm::all_reduce(ex, mesh_.world, moe_totals().numbers, comm::Reduce::sum).wait(ex);
  if (!config_.model.moe.rank_capacity_factor.is_worst_case())
    comm::all_reduce(ex, mesh_.world, moe_totals().overflow.rows(1, 1), comm::Reduce::max).wait(ex);
  if (!moe_totals().echo) return;
  comm::all_reduce(ex, mesh_.world, moe_totals().echo, comm::Reduce::sum).wait(ex);
  comm::all_reduce(ex, mesh_.world, moe_totals().exposed, comm::Reduce::max).wait(ex);
}

Stage::PlanDifference Stage::plan_difference(std::span<const std::int64_t> found) const {
  const auto number = [&](ops::PlanDifference which) { return found[static_cast<std::size_t>(which)]; };
  if (number(ops::PlanDifference::found) == 0) return {};
  const Index first = number(ops::PlanDifference::first_sample) / sequences() - first_sample_of(0, batch());
  const auto microbatch = static_cast<int>(first / config_.micro_batch);
  return {.order = microbatch * config_.model.num_layers + number(ops::PlanDifference::layer),
          .text = nn::describe_plan_difference(memory_.experts().dispatch(), found, microbatch)};
}

void Stage::gather_all_params(Exec& ex) { exchange_.gather_all(ex); }

void Stage::gather_params(Exec& ex, int chunk) {
  memory_.chunk(chunk).gather_params(ex, exchange_);
  awaits_params_[static_cast<std::size_t>(chunk)] = 1;
}

void Stage::forward(Exec& ex, int chunk, int slot_index, const Tensor& input, const Tensor& output) {
  const ActivationSlot& place = slot(chunk, slot_index);
  const bool awaits = std::exchange(awaits_params_[static_cast<std::size_t>(chunk)], 0) != 0;
  Chunk::Inputs with = inputs(place, pass());
  with.graphs = segment_graphs(chunk, slot_index);
  memory_.run(ex, pass(), chunk, 0, activations_of(place), [&] {
    memory_.chunk(chunk).forward(ex, with, input, output, saved(chunk, slot_index), awaits ? &exchange_ : nullptr);
  });
}

void Stage::backward(Exec& ex, int chunk, int slot_index, const Tensor& output_grad, const Tensor& input_grad,
                     const pipeline::BackwardTurn& turn) {
  const ActivationSlot& place = slot(chunk, slot_index);
  Chunk::Inputs with = inputs(place, pass());
  with.graphs = segment_graphs(chunk, slot_index);
  if (turn.is_first && first_replaces_grads()) with.microbatch.weight_grads = ops::Write::overwrite;
  exchange_.begin_pass(turn.is_last ? optim::GradReducer::Pass::last : optim::GradReducer::Pass::earlier);
  memory_.run(ex, pass(), chunk, 1, activations_of(place), [&] {
    memory_.chunk(chunk).backward(ex, with, output_grad, input_grad, saved(chunk, slot_index), &exchange_);
  });
}

void Stage::reduce_grads(Exec& ex) { exchange_.send_rest(ex); }

void Stage::await_grads(Exec& ex, std::size_t buffer, std::size_t bucket) {
  ex.unplanned([&] { exchange_.wait(ex, buffer, bucket); });
}

void Stage::await_all_grads(Exec& ex) {
  std::size_t index = 0;
  for (const ParamBuffer& buffer : params().trained()) {
    for (std::size_t bucket = 0; bucket < buffer.buckets().size(); ++bucket) await_grads(ex, index, bucket);
    ++index;
  }
}

}  // namespace megalith::model
