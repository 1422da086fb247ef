// Over 500 lines: the order of everything that a step and its memory go through, in one place.
#include "megalith/train/engine.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/gather_values.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/init.h"
#include "megalith/ops/library.h"
#include "megalith/train/gpu_memory.h"
#include "megalith/train/host_memory.h"
#include "megalith/train/host_staging.h"
#include "megalith/train/recompute_choices.h"
#include "megalith/train/stage_config.h"

namespace megalith::train {
namespace {

constexpr const char* kContextOwner = "cuda context";
constexpr const char* kTransportOwner = "nccl";
/// A request to save, in the sum of all ranks' requests: above those to stop, one for each rank.
constexpr std::uint64_t kSaveRequest = std::uint64_t{1} << 32;
constexpr Index kOutcomeBytes = round_up(Index{sizeof(ops::StepOutcome)}, kAlignment);

bool uses_step_graph(const config::RunPlan& plan) { return plan.graphs.mode == capture::GraphMode::iteration; }

/// Without step graphs they never come to an end.
Index warmup_runs(const config::RunPlan& plan) {
  return uses_step_graph(plan) ? plan.graphs.warmup_steps : std::numeric_limits<Index>::max();
}

pipeline::Executor::Boundary boundary(const model::GptStage& stage) {
  return {stage.boundary_shape(), stage.config().policy.compute};
}

// These lie in device memory, whose bytes are compared: none may be padding, which would be others in each run.
static_assert(sizeof(ops::OptimizerState) == 4 * 8 && sizeof(ops::StepVerdict) == 4 * 8);
static_assert(sizeof(ops::StepTotals) == 2 * 8 && sizeof(ops::StepCounts) == 3 * 8);
static_assert(sizeof(ops::StepOutcome) == sizeof(ops::StepTotals) + sizeof(ops::StepCounts) + 3 * 8 + 2 * 4);

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

comm::CallsBehindGraphs calls_behind_graphs(const config::RunPlan& plan) {
  return plan.graphs.mode == capture::GraphMode::layers ? comm::CallsBehindGraphs::may_come
                                                        : comm::CallsBehindGraphs::never;
}

Engine::Engine(comm::World& world, const config::RunPlan& plan)
    : world_(world),
      plan_(plan),
      mesh_(comm::make_mesh(world, plan.grid, plan.transfers)),
      ledger_(plan.device),
      stage_(stage_config(plan), mesh_),
      train_executor_(stage_.schedule(), mesh_.pp, boundary(stage_)),
      eval_executor_(stage_.eval_schedule(), mesh_.pp, boundary(stage_)),
      train_graph_("training", warmup_runs(plan)),
      eval_graph_("evaluation", warmup_runs(plan)),
      rules_(optim::step_rules(plan.optimizer, plan.train.scaling)),
      graph_check_(world, plan, ledger_, layer_graphs_, [this] { return memory_names(); }) {
  for (ParamBuffer& params : stage_.params().buffers()) {
    if (params.has_gradients())
      optimizers_.emplace_back(plan.optimizer, params, mesh_.reduction_group({.grid = params.grid()}));
  }
  plan_optimizer();
}

void Engine::plan_optimizer() {
  Recording recording;
  Exec ex(plan_.device, recording);
  recording.begin_phase();
  for (const optim::Optimizer& optimizer : optimizers_) optimizer.sum_of_squares(ex, Tensor(nullptr, {2}, DType::f64));
  recording.begin_phase();
  for (const optim::Optimizer& optimizer : optimizers_) optimizer.step(ex, struct_tensor<ops::StepVerdict>());
  optimizer_plan_ = make_plan(recording);
}

BytesByOwner Engine::planned_bytes() const {
  BytesByOwner bytes = stage_.planned_bytes(optimizer_plan_.scratch_bytes);
  for (const optim::Optimizer& optimizer : optimizers_) bytes["optimizer"] += optimizer.bytes();
  bytes["pipeline buffers"] = train_executor_.buffer_bytes() + eval_executor_.buffer_bytes();
  bytes["step scalars"] = 6 * kAlignment;
  if (const Index workspace = ops::library_workspace_bytes(plan_.device); workspace > 0)
    bytes["library workspace"] = workspace;
  return bytes;
}

Index Engine::fragmentation_bytes() const {
  return planned_bytes().at(kScratchOwner) - std::max(stage_.scratch_alive_bytes(), optimizer_plan_.alive_bytes);
}

Index Engine::host_bytes() const {
  const Index taken = plan_.device == Device::cpu ? total(planned_bytes()) : 0;
  return taken + HostStaging::bytes(plan_.device);
}

void Engine::require_host_memory() {
  const auto lack = [&](Index less, const std::string& recompute) {
    return lack_of_host_memory(world_, host_bytes() - less, "[memory] the plan",
                               str("use a smaller train.micro_batch or model, or more ranks on more hosts", recompute,
                                   "; `megalith plan` prints what takes it"));
  };
  std::string text = lack(0, "");
  if (text.empty()) return;
  if (plan_.device == Device::cpu)
    text = lack(0, recompute_that_fits(plan_, world_.rank(), [&](Index less) { return lack(less, "").empty(); }));
  throw IoError(text);
}

void Engine::allocate(InitialValues values) {
  require_host_memory();
  ex_.emplace(plan_.device);
  replays_.emplace(world_, *ex_);
  ex_->set_determinism(plan_.train.determinism());
  ops::start_libraries(*ex_, mesh_.tp.channel().multiprocessors());
  if (plan_.graphs.mode != capture::GraphMode::none) prepare_captures(plan_.device);
  const Index workspace = ops::library_workspace_bytes(plan_.device);
  if (workspace > 0) ledger_.note("library workspace", workspace);
  if (plan_.device == Device::cuda) {
    BytesByOwner to_take = planned_bytes();
    to_take.erase("library workspace");
    require_gpu_memory(world_, plan_, to_take);
  }
  const Index not_ours = device::memory_in_use(plan_.device) - workspace;
  stage_.allocate(ledger_, optimizer_plan_.scratch_bytes);
  for (optim::Optimizer& optimizer : optimizers_) optimizer.allocate(*ex_, ledger_);
  train_executor_.allocate(ledger_);
  eval_executor_.allocate(ledger_);
  scalars_memory_ = ledger_.take("step scalars", planned_bytes().at("step scalars"));
  Index offset = 0;
  const auto carve = [&](const Shape& shape, DType dtype) {
    const Tensor tensor = scalars_memory_.view(shape, dtype, offset);
    offset += kAlignment;
    return tensor;
  };
  squares_ = carve({2 * static_cast<Index>(optimizers_.size())}, DType::f64);
  totals_ = carve({2}, DType::f64);
  counts_ = carve({3}, DType::u64);
  optimizer_state_ = carve({Index{sizeof(ops::OptimizerState)}}, DType::u8);
  verdict_ = carve({Index{sizeof(ops::StepVerdict)}}, DType::u8);
  outcome_ = carve({Index{sizeof(ops::StepOutcome)}}, DType::u8);
  staging_ = Staging(plan_.device, kAlignment, kMostStarted);
  outcomes_memory_ = Buffer(kMostStarted * kOutcomeBytes, plan_.device, Side::host);
  for (Started& started : under_way_) started.done = Event(plan_.device);

  if (values == InitialValues::from_seed) initialise();
  const ops::LossScaling& scaling = plan_.train.scaling;
  set_optimizer_state({.loss_scale = scaling.is_on() ? scaling.initial : 1.0});
  if (plan_.device == Device::cuda) warm_up(not_ours);
  graph_check_.require_memory();
}

void Engine::initialise() {
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
void Engine::initialise_trained(const ParamBuffer& params, Draw&& draw) {
  // Gradients are whole on every rank, masters may not be.
  for (const Param& param : params.params()) draw(param, param.grad);
  if (params.has_copy()) {
    ops::cast(*ex_, params.grads(), params.values());
    for (const OwnRange& range : params.own_ranges())
      ops::copy(*ex_, range.of_whole(params.grads()), params.own_masters(range));
  } else {
    ops::copy(*ex_, params.grads(), params.values());
  }
  ops::fill(*ex_, params.grads(), 0);
}

void Engine::warm_up(Index before) {
  const Index allocated = device::memory_in_use(plan_.device);
  warm_up_collectives();
  const Index connected = device::memory_in_use(plan_.device);
  warm_up_passes();
  const Index loaded = device::memory_in_use(plan_.device);
  ledger_.note(kContextOwner, before - world_.device_bytes() + loaded - connected);
  if (world_.size() > 1) ledger_.note(kTransportOwner, world_.device_bytes() + connected - allocated);
}

void Engine::warm_up_collectives() {
  stage_.warm_up_collectives(*ex_);
  for (const ParamBuffer& params : stage_.params().trained()) {
    if (params.is_sharded())  // the optimizer's, of its blocks' sums
      comm::all_reduce(*ex_, mesh_.reduction_group({.grid = params.grid()}), totals_, comm::Reduce::sum).wait(*ex_);
  }
  comm::all_reduce(*ex_, mesh_.world, totals_, comm::Reduce::sum).wait(*ex_);
  comm::all_reduce(*ex_, mesh_.world, counts_, comm::Reduce::sum).wait(*ex_);
  world_.wait_for(*ex_);
}

void Engine::warm_up_passes() {
  stage_.warm_up(*ex_, optimizer_state_);
  sum_squares([](std::size_t, std::size_t) {});
  update_parameters();  // the verdict is still all zero: it refuses the step
  world_.wait_for(*ex_);
}

ops::GemmChoices Engine::choose_gemms(std::span<const ops::KnownGemms> known) {
  if (!plan_.chooses_gemms()) return {};
  // The warm-up of allocate() has met all products. Its memory is free again and serves for timing.
  ops::GemmChoices choices = agree_on_gemms(world_, ops::gemm_chooser(*ex_), known, stage_.work());
  gemm_table_ = choices.table;
  stage_.warm_up(*ex_, optimizer_state_);  // loads the kernels, also where another rank has timed them
  world_.wait_for(*ex_);
  return choices;
}

template <class T>
T Engine::read(const Tensor& tensor) {
  T value;
  ex_->copy(&value, tensor.raw(), sizeof value);
  world_.wait_for(*ex_);
  return value;
}

ops::OptimizerState Engine::optimizer_state() { return read<ops::OptimizerState>(optimizer_state_); }

void Engine::set_optimizer_state(const ops::OptimizerState& state) {
  ex_->copy(optimizer_state_.raw(), &state, sizeof state);
  ex_->synchronize();
}

void Engine::refresh_values() {
  for (const ParamBuffer& params : stage_.params().trained()) {
    if (!params.has_copy()) continue;
    for (const OwnRange& range : params.own_ranges())
      ops::cast(*ex_, params.own_masters(range), range.of_whole(params.values()));
  }
  stage_.gather_all_params(*ex_);
}

GraphCache::State Engine::graph_state(Via via) const {
  const Index since_warmup = graph_steps() - plan_.graphs.warmup_steps;
  if (plan_.graphs.mode == capture::GraphMode::none || since_warmup < 0) return GraphCache::State::eager;
  if (via == Via::eager) return GraphCache::State::comparing;
  return since_warmup == 0 ? GraphCache::State::capturing : GraphCache::State::replaying;
}

void Engine::begin_layer_graphs(GraphCache::State state) {
  if (started_ == 0) {
    layer_graphs_.start("training", ledger_.memory());
    stage_.run_segments_from(layer_graphs_);
  }
  layer_graphs_.set_state(state);
}

void Engine::run_passes() {
  stage_.begin(*ex_);
  train_executor_.run(*ex_, stage_);
  ex_->set_place({.phase = StepPhase::optimizer});  // until run_update() ends
  sum_squares([&](std::size_t buffer, std::size_t bucket) { stage_.await_grads(*ex_, buffer, bucket); });
}

template <class Await>
void Engine::sum_squares(Await&& await) {
  ex_->begin(optimizer_plan_.phases[0], nullptr, stage_.scratch());
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    optimizers_[i].sum_of_squares(*ex_, squares_.rows(2 * static_cast<Index>(i), 2),
                                  [&](std::size_t bucket) { await(i, bucket); });
  }
  ex_->end();
}

void Engine::update_parameters() {
  ex_->begin(optimizer_plan_.phases[1], nullptr, stage_.scratch());
  for (const optim::Optimizer& optimizer : optimizers_) optimizer.step(*ex_, verdict_);
  ex_->end();
}

void Engine::upload_terms(const Requests& requests) {
  const std::uint64_t term = (requests.stop == Stop::asked ? 1 : 0) + (requests.save ? kSaveRequest : 0);
  const std::array<std::uint64_t, 2> terms = {world_.agreement_term(), term};
  staging_.upload(*ex_, static_cast<std::byte*>(counts_.raw()), sizeof terms,
                  [&](std::byte* host) { std::memcpy(host, &terms, sizeof terms); });
}

void Engine::sum_terms() {
  // Replicas of a number count once: optimizers count an owner's gradients, and losses are equal over tp.
  ops::step_terms(*ex_, {.sum_squares = squares_,
                         .loss_sum = stage_.loss_sum(),
                         .totals = totals_,
                         .counts = counts_,
                         .outcome = outcome_,
                         .loss = mesh_.tp_rank() == 0 ? ops::LossShare::counts : ops::LossShare::replica});
  comm::all_reduce(*ex_, mesh_.world, totals_, comm::Reduce::sum).wait(*ex_);
  comm::all_reduce(*ex_, mesh_.world, counts_, comm::Reduce::sum).wait(*ex_);
}

void Engine::run_update() {
  ops::decide_step(*ex_, {.totals = totals_,
                          .counts = counts_,
                          .state = optimizer_state_,
                          .verdict = verdict_,
                          .outcome = outcome_,
                          .rules = rules_});
  update_parameters();
  ex_->set_place({});
}

template <class Ops>
void Engine::run_capturing(Ops&& ops) {
  meet(world_, *ex_, "before graphs are captured");
  const Index before = device::memory_in_use(plan_.device);
  ops();
  graph_bytes_ += device::memory_in_use(plan_.device) - before;
  meet(world_, *ex_, "after graphs were captured");
  std::uint64_t sum = 0;
  for (const std::uint64_t term : comm::gather_values(world_.all(), world_.agreement_term())) sum += term;
  if (sum == 0) return;
  throw CollectiveError(
      "[capture] the ranks disagree about the collectives that their graphs hold, or that came before them: no graph "
      "is launched, parameters stay as they are");
}

CapturedGraphs Engine::captured_graphs() const {
  CapturedGraphs captured{
      .stats = layer_graphs_.stats(),
      .launches_per_step = static_cast<Index>(layer_graphs_.order().size()),
      .device_bytes = graph_bytes_,
  };
  captured.stats += train_graph_.graph().stats();
  captured.stats += eval_graph_.graph().stats();
  for (const GraphCache::Key& key : layer_graphs_.order())
    captured.comm_calls_per_step += layer_graphs_.graph(key).stats().comm_calls;
  if (train_graph_.captured()) {
    captured.launches_per_step = 1;
    captured.comm_calls_per_step = train_graph_.graph().stats().comm_calls;
  }
  if (hand_overs_ > 0) {
    captured.launch_s = launches_s_ / static_cast<double>(hand_overs_);
    captured.hand_over_s = hand_overs_s_ / static_cast<double>(hand_overs_);
    captured.timed_steps = hand_overs_;
  } else if (launches() > 0) {
    captured.launch_s =
        launching_s() * static_cast<double>(captured.launches_per_step) / static_cast<double>(launches());
  }
  return captured;
}

void Engine::forget_graphs() {
  if (steps_started() != 0) throw InternalError("[Engine::forget_graphs] a step is under way");
  meet(world_, *ex_, "before graphs are forgotten");
  const Index before = device::memory_in_use(plan_.device);
  layer_graphs_.clear();
  train_graph_.reset();
  eval_graph_.reset();
  graph_bytes_ -= before - device::memory_in_use(plan_.device);
  forgotten_at_step_ = started_;
  forgotten_at_batch_ = evaluated_batches_;
}

template <class Ops, class BeforeLaunch>
void Engine::run_by(capture::StepGraph& graph, Via via, Ops&& ops, BeforeLaunch&& before_launch) {
  if (via == Via::eager) return graph.run_beside(*ex_, ops);
  // No rank launches while another captures.
  if (graph.captures_next()) run_capturing([&] { graph.capture(*ex_, ledger_.memory(), ops); });
  if (graph.captured()) before_launch();
  graph.run(*ex_, ledger_.memory(), ops);
}

MemoryNames Engine::memory_names() const {
  using Part = StepOrder::Part;
  MemoryNames names;
  stage_.name_slots(names);
  for (const ParamBuffer& params : stage_.params().trained())
    add_names(names, params, params.grads(), Part::gradients, "gradient");
  add_name(names, stage_.loss_sum(), {Part::activations, std::numeric_limits<Index>::max()}, "sum of losses");
  Index order = 0;
  const auto add_scalar = [&](const Tensor& tensor, const char* name) {
    add_name(names, tensor, {Part::agreement, order++}, name);
  };
  add_scalar(squares_, "sum of the gradients' squares");
  add_scalar(totals_, "loss and squares over all ranks");
  add_scalar(counts_, "counts over all ranks");
  add_scalar(verdict_, "verdict on the step");
  add_scalar(outcome_, "outcome of the step");
  add_scalar(optimizer_state_, "optimizer's state");
  std::size_t index = 0;
  for (const ParamBuffer& params : stage_.params().buffers()) {
    if (params.has_gradients()) {
      const optim::Optimizer& optimizer = optimizers_[index++];
      add_names(names, params, optimizer.m(), Part::moments, "first moment");
      add_names(names, params, optimizer.v(), Part::moments, "second moment");
    }
    if (params.has_copy()) add_names(names, params, params.masters(), Part::parameters, "master value");
    add_names(names, params, params.values(), Part::parameters, "value");
  }
  return names;
}

void Engine::refuse(const ops::StepOutcome& outcome, Index step) {
  if (outcome.counts.calls != 0) {
    throw CollectiveError(str("[step ", step,
                              "] the ranks disagree about the collectives of this step: parameters stay those of step ",
                              step - 1));
  }
  std::uint64_t mine = outcome.finite_here != 0 ? 0 : 1;
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world_.size()));
  Exec host;
  comm::all_gather(host, world_.all(), Tensor(&mine, {1}, DType::u64), Tensor(all.data(), {world_.size()}, DType::u64))
      .wait(host);
  std::string ranks;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] != 0) ranks += str(ranks.empty() ? "" : ", ", rank);
  }
  throw NonFiniteError(str("[step ", step, "] loss = ", exact(outcome.totals.loss_sum),
                           ", gradient norm = ", exact(outcome.grad_norm), ": must be finite; seen on rank ", ranks,
                           "; parameters stay those of step ", step - 1,
                           ". A lower optimizer.lr or a longer warm-up may help"));
}

StepResult Engine::step(const model::BatchSource& source, const Progress& progress, Stop stop) {
  start_step(source, progress, [stop] { return Requests{.stop = stop}; });
  return finish_step();
}

comm::StepPattern* Engine::pattern_of_step(GraphCache::State state) {
  if (state == GraphCache::State::capturing) return nullptr;
  return state == GraphCache::State::replaying ? &calls_beside_graphs_ : &eager_calls_;
}

void Engine::run_step(const AskRequests& ask, Via via) {
  const GraphCache::State state = graph_state(via);
  std::optional<comm::WatchedStep> watched;
  if (comm::StepPattern* const pattern = pattern_of_step(state)) watched.emplace(world_, *pattern, *ex_);
  const auto upload = [&] { upload_terms(ask()); };
  const auto vote_and_update = [&] {
    sum_terms();
    if (watched) watched->end();
    run_update();
  };
  if (plan_.graphs.mode == capture::GraphMode::layers) {
    begin_layer_graphs(state);
    if (state == GraphCache::State::capturing) {
      run_capturing([this] {
        run_passes();
        meet(world_, *ex_, "before graphs are prepared");
        layer_graphs_.prepare(*ex_);
      });
    } else {
      run_passes();
    }
    layer_graphs_.end_step();
  } else if (!uses_step_graph(plan_)) {
    run_passes();
  } else if (plan_.graphs.optimizer) {
    const auto step = [&] {
      run_passes();
      if (ex_->capture() == nullptr) upload();  // a graph cannot hold it: it comes before the launch
      vote_and_update();
    };
    run_by(train_graph_, via, step, upload);
    if (watched) watched->end();
    return;
  } else {
    run_by(train_graph_, via, [this] { run_passes(); });
  }
  upload();
  vote_and_update();
}

void Engine::start_step(const model::BatchSource& source, const Progress& progress, const AskRequests& ask) {
  if (steps_started() == kMostStarted) throw InternalError("[Engine::start_step] too many steps are under way");
  world_.check_health();
  const comm::HostWait waiting(world_);
  const double tokens = static_cast<double>(plan_.train.global_batch * plan_.model.seq_len);
  stage_.load(*ex_, nn::Mode::train, source, progress.samples,
              {.step = static_cast<std::uint64_t>(progress.step), .loss_scale = 1.0 / tokens}, optimizer_state_);
  const double begin = monotonic_s(), launched_s = launching_s();
  const Index launched = launches();
  const GraphCheck::Checked checked = graph_check_.turn(graph_steps());
  std::optional<Requests> answer;  // one, also where graphs.check runs the step twice
  const auto ask_once = [&] { return answer ? *answer : answer.emplace(ask()); };
  graph_check_.run(*ex_, {"step", progress.step + 1}, checked, [&](Via via) { run_step(ask_once, via); });
  if (checked == GraphCheck::Checked::results) ++steps_checked_;
  if (graph_check_.turn(graph_steps() + 1) == GraphCheck::Checked::no) graph_check_.release();

  const Index place = started_++ % kMostStarted;
  Started& started = under_way_[static_cast<std::size_t>(place)];
  started.step = progress.step + 1;
  ex_->copy(outcomes_memory_.data() + place * kOutcomeBytes, outcome_.raw(), sizeof(ops::StepOutcome));
  started.done.record(ex_->stream());
  // The first launch may be in the step of the capture.
  if (launched == 0 || launches() == launched || checked != GraphCheck::Checked::no) return;
  hand_overs_s_ += monotonic_s() - begin;
  launches_s_ += launching_s() - launched_s;
  ++hand_overs_;
}

StepResult Engine::finish_step() {
  if (steps_started() == 0) throw InternalError("[Engine::finish_step] no step is under way");
  const Index place = finished_++ % kMostStarted;
  const Started& started = under_way_[static_cast<std::size_t>(place)];
  world_.wait_for(started.done);
  ops::StepOutcome outcome;
  std::memcpy(&outcome, outcomes_memory_.data() + place * kOutcomeBytes, sizeof outcome);
  const bool skipped = outcome.applied == 0;
  const bool scaled = rules_.scaling.is_on() && outcome.counts.calls == 0;
  if (skipped && !scaled) refuse(outcome, started.step);
  const double tokens = static_cast<double>(plan_.train.global_batch * plan_.model.seq_len);
  return {.loss = outcome.totals.loss_sum / tokens,
          .grad_norm = outcome.grad_norm,
          .learning_rate = skipped ? 0.0 : outcome.learning_rate,
          .loss_scale = outcome.loss_scale,
          .skipped = skipped,
          .stop = outcome.counts.requests % kSaveRequest != 0,
          .save = outcome.counts.requests >= kSaveRequest};
}

double Engine::evaluate(const model::BatchSource& source, Index samples) {
  if (steps_started() != 0) throw InternalError("[Engine::evaluate] a step is under way");
  stage_.gather_all_params(*ex_);
  double sum = 0;
  for (Index first = 0; first < samples; first += plan_.train.global_batch) {
    const comm::HostWait waiting(world_);
    stage_.load(*ex_, nn::Mode::evaluate, source, first, {}, {});
    const auto checked = uses_step_graph(plan_) ? graph_check_.turn(graph_evaluations()) : GraphCheck::Checked::no;
    graph_check_.run(*ex_, {"evaluated batch", evaluated_batches_ + 1}, checked, [this](Via via) {
      run_by(eval_graph_, via, [this] {
        stage_.begin(*ex_);
        eval_executor_.run(*ex_, stage_);
      });
    });
    ++evaluated_batches_;
    sum += read<double>(stage_.loss_sum());
  }
  if (graph_check_.turn(graph_steps()) == GraphCheck::Checked::no) graph_check_.release();
  if (mesh_.tp_rank() != 0) sum = 0;
  Exec host;
  comm::all_reduce(host, world_.all(), Tensor(&sum, {1}, DType::f64), comm::Reduce::sum).wait(host);
  return sum / static_cast<double>(samples * plan_.model.seq_len);
}

}  // namespace megalith::train
