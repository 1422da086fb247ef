#include "megalith/train/run_memory.h"

#include <algorithm>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/init.h"
#include "megalith/ops/library.h"
#include "megalith/ops/masters.h"
#include "megalith/train/clone_memory.h"
#include "megalith/train/expert_rows.h"
#include "megalith/train/gpu_memory.h"
#include "megalith/train/host_memory.h"
#include "megalith/train/host_staging.h"
#include "megalith/train/recompute_choices.h"
#include "megalith/train/stage_config.h"

namespace megalith::train {
namespace {

constexpr const char* kContextOwner = "cuda context";
constexpr const char* kTransportOwner = "nccl";

pipeline::Executor::Boundary boundary(const model::Stage& stage) {
  return {stage.boundary_shape(), stage.config().policy.compute};
}

// These lie in device memory, whose bytes are compared: none may be padding, which would be others in each run.
static_assert(sizeof(ops::OptimizerState) == 9 * 8 && sizeof(ops::StepVerdict) == 4 * 8);
static_assert(sizeof(ops::StepTotals) == (1 + ops::kMaxLosses) * 8 &&
              sizeof(ops::StepCounts) == (5 + ops::kMaxLosses) * 8);
static_assert(sizeof(ops::StepOutcome) == sizeof(ops::StepTotals) + sizeof(ops::StepCounts) + 9 * 8 + 2 * 4);

template <class T>
Tensor struct_tensor() {
  return {nullptr, {Index{sizeof(T)}}, DType::u8};
}

}  // namespace

std::vector<std::string> measured_owners(const config::RunPlan& plan) {
  if (plan.device == Device::cpu) return {};
  if (plan.grid.world_size == 1) return {kContextOwner};
  return {kContextOwner, kTransportOwner};
}

RunMemory::RunMemory(comm::World& world, const config::RunPlan& plan)
    : world_(world),
      plan_(plan),
      mesh_(comm::make_mesh(world, plan.grid, plan.transfers)),
      ledger_(plan.device),
      stage_(stage_config(plan), mesh_),
      train_executor_(stage_.schedule(), mesh_.pp, boundary(stage_)),
      eval_executor_(stage_.eval_schedule(), mesh_.pp, boundary(stage_)) {
  for (ParamBuffer& params : stage_.params().buffers()) {
    if (!params.has_gradients()) continue;
    const comm::Group& slices = params.grid() == grid::GridKind::dense ? mesh_.tp : mesh_.etp;
    optimizers_.emplace_back(plan.optimizer, params, mesh_.reduction_group({.grid = params.grid()}), slices,
                             plan.train.seed);
  }
  plan_optimizer();
}

void RunMemory::plan_optimizer() {
  Recording recording;
  Exec ex(plan_.device, recording);
  recording.begin_phase();
  for (const optim::Optimizer& optimizer : optimizers_) optimizer.sum_of_squares(ex, Tensor(nullptr, {2}, DType::f64));
  recording.begin_phase();
  for (const optim::Optimizer& optimizer : optimizers_) optimizer.step(ex, struct_tensor<ops::StepVerdict>());
  optimizer_plan_ = make_plan(recording);
}

BytesByOwner planned_bytes(const config::RunPlan& plan, int rank) { return planned_cost(plan, rank).bytes; }

RankCost planned_cost(const config::RunPlan& plan, int rank) {
  const std::unique_ptr<comm::World> world = comm::dry_world(rank, plan.grid.world_size);
  RunMemory memory(*world, plan);
  const model::Stage& stage = memory.stage();
  RankCost cost{.bytes = memory.planned_bytes()};
  for (const ParamBuffer& params : stage.params().trained())
    cost.sums_sent += params.sum_bytes(model::num_microbatches(stage.config(), stage.mesh()));
  return cost;
}

BytesByOwner RunMemory::planned_bytes(const config::RunPlan& other) const {
  return planned_bytes(model::Stage(stage_config(other), mesh_));
}

BytesByOwner RunMemory::planned_bytes(const model::Stage& stage) const {
  const auto message_bytes = [&](const pipeline::LoweredSchedule& schedule) {
    return pipeline::Executor::buffer_bytes(schedule, boundary(stage));
  };
  BytesByOwner bytes = stage.planned_bytes(optimizer_plan_.scratch_bytes);
  for (const optim::Optimizer& optimizer : optimizers_) bytes["optimizer"] += optimizer.bytes();
  bytes["pipeline buffers"] = message_bytes(stage.schedule()) + message_bytes(stage.eval_schedule());
  bytes["step scalars"] = 6 * kAlignment;
  if (const Index workspace = ops::library_workspace_bytes(plan_.device); workspace > 0)
    bytes[kWorkspaceOwner] = workspace;
  return bytes;
}

Index RunMemory::fragmentation_bytes() const {
  return planned_bytes().at(kScratchOwner) - std::max(stage_.scratch_alive_bytes(), optimizer_plan_.alive_bytes);
}

/// What take() takes on the CPU, and what saves take.
void RunMemory::require_host_memory() const {
  const bool on_cpu = plan_.device == Device::cpu;
  const BytesByOwner bytes = planned_bytes();
  const Index needed = (on_cpu ? total(bytes) : 0) + HostStaging::bytes(plan_.device, plan_.train.policy());
  const auto lack = [&](Index less, const std::string& advice) {
    return lack_of_host_memory(world_, needed - less, "[memory] the plan",
                               str("use a smaller train.micro_batch or model, or more ranks on more hosts", advice,
                                   "; `megalith plan` prints what takes it"));
  };
  const auto fits = [&](Index less) { return lack(less, "").empty(); };
  if (fits(0)) return;
  if (!on_cpu) throw IoError(lack(0, ""));
  const auto planned = [this](const config::RunPlan& other) { return planned_bytes(other); };
  const std::string recompute = recompute_that_fits(plan_, bytes, planned, fits);
  const Index missing = fits(expert_rows_in(bytes)) ? 0 : std::numeric_limits<Index>::max();
  const std::string clones = clone_weights_advice(plan_, bytes, planned);
  throw IoError(lack(0, recompute + clones + expert_rows_advice(plan_, bytes, planned, missing)));
}

void RunMemory::start() {
  require_host_memory();
  ex_.emplace(plan_.device);
  ex_->set_determinism(plan_.train.determinism());
}

void RunMemory::take(InitialValues values) {
  // GEMMs run beside sums over tp, and beside rows of experts.
  ops::start_libraries(*ex_, std::max(mesh_.tp.channel().multiprocessors(), mesh_.etp_ep.channel().multiprocessors()));
  if (plan_.graphs.mode != capture::GraphMode::none) prepare_captures(plan_.device);
  const Index workspace = ops::library_workspace_bytes(plan_.device);
  if (workspace > 0) ledger_.note(kWorkspaceOwner, workspace);
  if (plan_.device == Device::cuda)
    require_gpu_memory(world_, plan_, planned_bytes(),
                       [this](const config::RunPlan& other) { return planned_bytes(other); });
  not_ours_ = device::memory_in_use(plan_.device) - workspace;
  stage_.allocate(ledger_, optimizer_plan_.scratch_bytes);
  stage_.fill_tables(*ex_);
  for (optim::Optimizer& optimizer : optimizers_) optimizer.allocate(*ex_, ledger_);
  train_executor_.allocate(ledger_);
  eval_executor_.allocate(ledger_);
  take_scalars();
  if (values == InitialValues::from_seed) initialise();
  const ops::LossScaling& scaling = plan_.train.scaling;
  set_optimizer_state({.loss_scale = scaling.is_on() ? scaling.initial : 1.0});
}

void RunMemory::take_scalars() {
  scalars_memory_ = ledger_.take("step scalars", planned_bytes().at("step scalars"));
  Carver memory(scalars_memory_.data());
  scalars_.squares = memory.next({2 * static_cast<Index>(optimizers_.size())}, DType::f64);
  scalars_.totals = memory.next({sizeof(ops::StepTotals) / sizeof(double)}, DType::f64);
  scalars_.counts = memory.next({sizeof(ops::StepCounts) / sizeof(std::uint64_t)}, DType::u64);
  scalars_.optimizer_state = memory.next({Index{sizeof(ops::OptimizerState)}}, DType::u8);
  scalars_.verdict = memory.next({Index{sizeof(ops::StepVerdict)}}, DType::u8);
  scalars_.outcome = memory.next({Index{sizeof(ops::StepOutcome)}}, DType::u8);
}

void RunMemory::initialise() {
  const auto draw = [&](const Param& param, const Tensor& to) {
    ops::initialise(*ex_, {param.spec.slice, param.spec.init, param.spec.init_std}, to, plan_.train.seed);
  };
  for (const ParamBuffer& params : stage_.params().buffers()) {
    if (params.has_gradients()) {
      initialise_trained(params, draw);
    } else {
      for (const Param& param : params.params()) draw(param, param.value);
    }
  }
}

template <class Draw>
void RunMemory::initialise_trained(const ParamBuffer& params, Draw&& draw) {
  // A rank has room for whole gradients of a bucket, but masters may be shards.
  for (const Bucket& bucket : params.buckets()) {
    const Tensor drawn = params.grads_of(bucket), values = params.part(params.values(), bucket);
    ops::fill(*ex_, drawn, 0);  // also the gaps between parameters
    for (const Param& param : params.params())
      if (bucket.begin <= param.offset && param.offset < bucket.end) draw(param, param.grad);
    if (params.has_copy()) {
      ops::cast(*ex_, drawn, values);
      for (const OwnRange& range : params.own_ranges()) {
        const Index begin = std::max(range.in_whole, bucket.begin),
                    end = std::min(range.in_whole + range.count, bucket.end);
        if (begin >= end) continue;
        ops::write_masters(*ex_, drawn.rows(begin - bucket.begin, end - begin),
                           params.own_masters({begin, range.in_own + begin - range.in_whole, end - begin}));
      }
    } else {
      ops::copy(*ex_, drawn, values);
    }
    ops::fill(*ex_, drawn, 0);
  }
}

void RunMemory::book_libraries(Index allocated, Index connected, Index loaded) {
  ledger_.note(kContextOwner, not_ours_ - world_.device_bytes() + loaded - connected);
  if (world_.size() > 1) ledger_.note(kTransportOwner, world_.device_bytes() + connected - allocated);
}

void RunMemory::set_optimizer_state(const ops::OptimizerState& state) {
  ex_->copy(scalars_.optimizer_state.raw(), &state, sizeof state);
  ex_->synchronize();
}

void RunMemory::refresh_values() {
  for (const ParamBuffer& params : stage_.params().trained()) {
    if (!params.has_copy() || params.policy().splits_masters()) continue;  // then the masters were written with it
    for (const OwnRange& range : params.own_ranges())
      ops::cast(*ex_, params.own_masters(range).whole, range.of_whole(params.values()));
  }
  stage_.gather_all_params(*ex_);
}

void RunMemory::add_gradient_names(MemoryNames& names, const ParamBuffer& params) {
  constexpr auto kPart = StepOrder::Part::gradients;
  const OwnRange whole{0, 0, params.grads().numel()};
  add_names(names, params, params.grads(), kPart, "gradient", std::span(&whole, 1));
  if (!params.shards_gradients()) return;
  add_names(names, params, params.grad_shards(), kPart, "gradient", params.shard_ranges());
  for (Index window = 0; const Tensor& memory : params.grad_windows())
    add_name(names, memory, {kPart, std::numeric_limits<Index>::max()}, str("gradient window ", window++));
}

MemoryNames RunMemory::names() const {
  using Part = StepOrder::Part;
  MemoryNames names;
  stage_.name_slots(names);
  for (const ParamBuffer& params : stage_.params().trained()) add_gradient_names(names, params);
  add_name(names, stage_.loss_sums(), {Part::activations, std::numeric_limits<Index>::max()}, "sums of losses");
  Index order = 0;
  const auto add_scalar = [&](const Tensor& tensor, const char* name) {
    add_name(names, tensor, {Part::agreement, order++}, name);
  };
  add_scalar(scalars_.squares, "sum of the gradients' squares");
  add_scalar(scalars_.totals, "loss and squares over all ranks");
  add_scalar(scalars_.counts, "counts over all ranks");
  add_scalar(scalars_.verdict, "verdict on the step");
  add_scalar(scalars_.outcome, "outcome of the step");
  add_scalar(scalars_.optimizer_state, "optimizer's state");
  std::size_t index = 0;
  for (const ParamBuffer& params : stage_.params().buffers()) {
    if (params.has_gradients()) {
      const optim::Optimizer& optimizer = optimizers_[index++];
      add_names(names, params, optimizer.m(), Part::moments, "first moment");
      add_names(names, params, optimizer.v(), Part::moments, "second moment", optimizer.second_moments());
    }
    if (params.has_copy()) add_names(names, params, params.master_memory(), Part::parameters, "master value");
    add_names(names, params, params.values(), Part::parameters, "value");
  }
  return names;
}

}  // namespace megalith::train
