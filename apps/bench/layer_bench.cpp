#include "apps/bench/layer_bench.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"
#include "megalith/comm/group.h"
#include "megalith/model/expert_counts.h"
#include "megalith/model/layer_groups.h"
#include "megalith/model/model_spec.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/gemm_chooser.h"
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/init.h"
#include "megalith/ops/library.h"

namespace megalith::apps {
namespace {

constexpr const char* kLayerName = "moe";

constexpr std::size_t kCombinePart = 4, kClonePlanner = 0, kCloneRewriting = 1, kCloneWeights = 2, kCloneGradients = 3;

/// What is timed after a stage (nn::ForwardStage or BackwardStage) has run; nothing: the stage is none of the parts.
template <class Stage>
std::optional<std::size_t> part_of(Stage stage) {
  switch (stage) {
    case Stage::route:
      return 0;
    case Stage::preprocess:
      return 1;
    case Stage::dispatch:
      return 2;
    case Stage::experts:
      return 3;
    case Stage::combine:
      return kCombinePart;
    default:
      return std::nullopt;
  }
}

/// Of an op; nothing: it is none of a plan's.
std::optional<std::size_t> clone_part_of(std::string_view op) {
  if (op == "count_pairs" || op == "plan_echo") return kClonePlanner;
  if (op == "rewrite_choices" || op == "list_clones") return kCloneRewriting;
  return std::nullopt;
}

const nn::MoeSpec& moe_spec(const model::ModelSpec& model) {
  for (const nn::SublayerSpec& sublayer : model.sublayers) {
    if (const auto* moe = std::get_if<nn::MoeSpec>(&sublayer.body)) return *moe;
  }
  throw InternalError("[LayerBench] the model has no MoE layer");
}

/// A normal number for every element of a tensor, of a stream of its own.
double noise_at(std::uint32_t stream, std::size_t i) { return RandomSite{.seed = 1, .step = stream}.normal(i); }

}  // namespace

LayerBench::LayerBench(comm::World& world, const config::RunPlan& plan, const ExpertLoad& load)
    : world_(world),
      plan_(plan),
      load_(load),
      mesh_(comm::make_mesh(world, plan.grid, plan.transfers)),
      clone_times_(plan.device),
      groups_(layer_groups()),
      ex_(plan.device),
      ledger_(plan.device) {
  ex_.set_determinism(plan.train.determinism());
  ops::start_libraries(ex_, mesh_.ep.channel().multiprocessors());
  const model::ModelSpec model = model::model_spec(plan.model);
  const nn::MoeSpec& spec = moe_spec(model);
  std::vector<ParamSpec> specs;
  nn::Moe::declare(specs, kLayerName, spec, model.stream, groups_);
  params_.emplace(std::move(specs), plan.train.policy());
  params_->allocate(ledger_);
  const Policy policy = plan.train.policy();
  const nn::GemmFormats gemms = nn::gemm_formats(policy.gemms, plan.fp8, 0, plan.model.num_layers);
  const nn::SublayerOptions options{
      .seed = plan.train.seed,
      .recompute = plan.recompute,
      .group_alignment = model::expert_alignment(plan.model, plan.device, policy, plan.fp8, plan.grid.etp),
      .gemms = gemms,
      .expert_gemms = nn::expert_formats(gemms, plan.fp8, plan.model.hidden_size)};
  moe_.emplace(kLayerName, spec, options, groups_, *params_);
  initialise();
  memory_plan_ = planned();
  kept_ = ledger_.take(kActivationsOwner, memory_plan_.saved_bytes);
  scratch_ = ledger_.take(kScratchOwner, memory_plan_.scratch_bytes);
  saved_ = moe_->make_saved();
  saved_->take_host_memory(plan.device);
}

nn::LayerGroups LayerBench::layer_groups() {
  const nn::TensorParallel tp(mesh_.tp, nn::SequenceParallel::off, 1);
  if (!has_clones()) return model::layer_groups(tp, plan_.model, mesh_);
  return {tp, nn::ExpertParallel(tp, clone_times_.timed(mesh_.ep), mesh_.etp, mesh_.etp_ep)};
}

void LayerBench::initialise() {
  const DType dtype = plan_.train.policy().compute;
  const Index tokens = plan_.train.micro_batch * plan_.model.seq_len, hidden = plan_.model.hidden_size,
              experts = plan_.model.moe.num_experts;
  for (const ParamBuffer& buffer : params_->buffers()) {
    for (const Param& param : buffer.params()) {
      const Tensor& wide = buffer.has_gradients() ? param.grad : param.value;
      ops::initialise(ex_, {param.spec.slice, param.spec.init, param.spec.init_std}, wide, plan_.train.seed);
      if (buffer.has_gradients()) ops::cast(ex_, wide, param.value);
    }
  }
  // The router's weight: the unit matrix.
  const Tensor& weight = params_->at(str(kLayerName, ".router.weight")).value;
  dispatch_float(weight.dtype(), "LayerBench", [&]<class T>() {
    std::vector<T> unit(static_cast<std::size_t>(experts * hidden), static_cast<T>(0.0f));
    for (Index e = 0; e < experts; ++e) unit[static_cast<std::size_t>(e * hidden + e)] = static_cast<T>(1.0f);
    ex_.copy(weight.raw(), unit.data(), weight.bytes());
    ex_.synchronize();
  });
  const Index layers = plan_.model.num_moe_layers();
  const nn::EchoTotals of_echo = has_clones() ? nn::EchoTotals::counted : nn::EchoTotals::none;
  totals_ = ex_.tensor({nn::MoeTotals::in(nullptr, layers, experts, of_echo).bytes()}, DType::u8);
  moe_step_.totals = nn::MoeTotals::in(static_cast<std::byte*>(totals_.raw()), layers, experts, of_echo);
  const StepState state{.step = 0, .first_sample = 0, .loss_scale = 1 / static_cast<double>(tokens * world_.size())};
  step_state_ = ex_.tensor({Index{sizeof state}}, DType::u8);
  ex_.copy(step_state_.raw(), &state, sizeof state);
  x_ = ex_.tensor({tokens, hidden}, dtype);
  dx_ = ex_.tensor_like(x_);
  dy_ = ex_.tensor_like(x_);
  host_rows_.resize(static_cast<std::size_t>(x_.bytes()));
  noise_.resize(static_cast<std::size_t>(x_.numel()));
  const auto rank = static_cast<std::uint32_t>(world_.rank());
  dispatch_float(dtype, "LayerBench", [&]<class T>() {
    T* to = reinterpret_cast<T*>(host_rows_.data());
    for (std::size_t i = 0; i < noise_.size(); ++i) {
      noise_[i] = std::clamp(noise_at(2 * rank, i), -2.0, 2.0);
      to[i] = static_cast<T>(static_cast<float>(noise_at(2 * rank + 1, i)));
    }
  });
  ex_.copy(dy_.raw(), host_rows_.data(), dy_.bytes());
  ex_.synchronize();
}

// The first E numbers of a row are its logits. The wanted experts have the greatest, each another one.
void LayerBench::put_rows(Index step) {
  const Index hidden = plan_.model.hidden_size, top_k = plan_.model.moe.top_k;
  const std::vector<std::int32_t> choices = load_.choices(step, world_.rank());
  dispatch_float(x_.dtype(), "LayerBench", [&]<class T>() {
    T* const rows = reinterpret_cast<T*>(host_rows_.data());
    for (std::size_t i = 0; i < noise_.size(); ++i) rows[i] = static_cast<T>(static_cast<float>(noise_[i]));
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const auto pair = static_cast<Index>(i);
      const double place = static_cast<double>(pair % top_k) / static_cast<double>(top_k);
      rows[pair / top_k * hidden + choices[i]] = static_cast<T>(static_cast<float>(4 - place));
    }
  });
  ex_.copy(x_.raw(), host_rows_.data(), x_.bytes());
  device::fill_bytes(ex_.device(), totals_.raw(), 0, totals_.bytes(), ex_.stream());
  world_.wait_for(ex_);
}

nn::Microbatch LayerBench::microbatch() const {
  return {.batch = plan_.train.micro_batch,
          .seq_len = plan_.model.seq_len,
          .step_state = step_state_,
          .mode = nn::Mode::train,
          .weight_grads = ops::Write::overwrite,
          .moe = &moe_step_};
}

template <class Done>
void LayerBench::pass_forward(Exec& ex, nn::Sublayer::Saved& saved, Done&& done) const {
  const nn::Microbatch of = microbatch();
  for (const nn::ForwardStage stage : moe_->forward_stages()) {
    moe_->forward(ex, of, stage, x_, saved).wait(ex);
    done(LayerPass::forward, part_of(stage));
  }
}

template <class Done>
void LayerBench::pass_backward(Exec& ex, nn::Sublayer::Saved& saved, Done&& done) const {
  const nn::Microbatch of = microbatch();
  const nn::Sublayer::Gradients grads{.dy = {dy_}, .dx = dx_};
  for (const nn::BackwardStage stage : moe_->backward_stages()) {
    moe_->backward(ex, of, stage, grads, saved).wait(ex);
    done(LayerPass::backward, part_of(stage));
  }
}

MemoryPlan LayerBench::planned() const {
  Recording recording;
  Exec recorder(plan_.device, recording);
  recorder.set_determinism(ex_.determinism());
  const std::unique_ptr<nn::Sublayer::Saved> saved = moe_->make_saved();
  const auto nothing = [](LayerPass, std::optional<std::size_t>) {};
  recording.begin_phase();
  pass_forward(recorder, *saved, nothing);
  recording.begin_phase();
  pass_backward(recorder, *saved, nothing);
  return make_plan(recording);
}

template <class Done>
void LayerBench::run(Exec& ex, nn::Sublayer::Saved& saved, Done&& done) const {
  ex.begin(memory_plan_.phases[0], kept_.data(), scratch_.data());
  pass_forward(ex, saved, done);
  ex.end();
  ex.begin(memory_plan_.phases[1], kept_.data(), scratch_.data());
  pass_backward(ex, saved, done);
  ex.end();
}

void LayerBench::warm_up() {
  const auto nothing = [](LayerPass, std::optional<std::size_t>) {};
  put_rows(0);
  {
    const ops::AllGroupSizes all_sizes(ex_);
    run(ex_, *saved_, nothing);
    world_.wait_for(ex_);
  }
  if (plan_.chooses_gemms()) {
    ops::GemmChooser& chooser = ops::gemm_chooser(ex_);
    const ops::GemmTable seen = chooser.current();
    chooser.use(ops::choose_gemms(chooser, seen, {}, {}).table);
    comm::barrier(ex_, mesh_.world);
    run(ex_, *saved_, nothing);
    world_.wait_for(ex_);
  }
}

void LayerBench::greatest(std::vector<double>& values) const {
  Exec host;
  comm::all_reduce(host, world_.all(), Tensor(values.data(), {std::ssize(values)}, DType::f64), comm::Reduce::max)
      .wait(host);
}

void LayerBench::run_timed(LayerTimes& times) {
  struct Mark {
    LayerPass pass;
    std::optional<std::size_t> part;
    TimePoint end;
  };
  std::vector<Mark> marks;
  marks.reserve(moe_->forward_stages().size() + moe_->backward_stages().size());
  comm::barrier(ex_, mesh_.world);
  clone_times_.clear();
  TimePoint begin(plan_.device);
  begin.record(ex_.stream());
  run(ex_, *saved_, [&](LayerPass pass, std::optional<std::size_t> part) {
    marks.push_back({pass, part, TimePoint(plan_.device)});
    marks.back().end.record(ex_.stream());
    if (pass == LayerPass::forward) forward_calls_ = clone_times_.calls();
    // Weights that are sent again start before the first products of the backward pass, gradients after them.
    if (pass == LayerPass::forward || part == kCombinePart) weight_calls_ = clone_times_.calls();
  });
  world_.wait_for(ex_);
  const TimePoint* before = &begin;
  for (const Mark& mark : marks) {
    const double seconds = mark.end.seconds_since(*before);
    const auto pass = static_cast<std::size_t>(mark.pass);
    if (mark.part) times.parts[pass][*mark.part].seconds += seconds;
    times.whole_s[pass] += seconds;
    before = &mark.end;
  }
  if (has_clones()) add_clone_times(times);
}

void LayerBench::add_clone_times(LayerTimes& times) const {
  const auto add = [&](LayerPass pass, std::size_t part, std::size_t first, std::size_t end) {
    const CloneTimes::Sum sum = clone_times_.sum(first, end);
    times.clones[static_cast<std::size_t>(pass)][part] = {sum.moving_s, sum.exposed_s};
  };
  add(LayerPass::forward, kCloneWeights, 0, forward_calls_);
  add(LayerPass::backward, kCloneWeights, forward_calls_, weight_calls_);
  add(LayerPass::backward, kCloneGradients, weight_calls_, clone_times_.calls());
}

void LayerBench::run_traced(LayerTimes& times) {
  struct Extent {
    LayerPass pass;
    std::optional<std::size_t> part;
    std::size_t end;
  };
  std::vector<Extent> extents;
  comm::barrier(ex_, mesh_.world);
  Tracer tracer(plan_.device);
  ex_.set_tracer(&tracer);
  const std::uint64_t first = ex_.ops_run();
  run(ex_, *saved_, [&](LayerPass pass, std::optional<std::size_t> part) {
    extents.push_back({pass, part, static_cast<std::size_t>(ex_.ops_run() - first)});
  });
  ex_.set_tracer(nullptr);
  world_.wait_for(ex_);
  const std::vector<Tracer::Span> spans = tracer.spans();
  std::size_t next = 0;
  for (const Extent& extent : extents) {
    for (; next < extent.end; ++next) {
      if (const std::optional<std::size_t> part = clone_part_of(spans.at(next).name)) {
        LayerTimes::ClonePart& of = times.clones[static_cast<std::size_t>(extent.pass)][*part];
        of.seconds += spans[next].duration_s;
        of.exposed_s += spans[next].duration_s;
      }
      if (!extent.part || spans.at(next).phase != StepPhase::communication) continue;
      times.parts[static_cast<std::size_t>(extent.pass)][*extent.part].communication_s += spans[next].duration_s;
    }
  }
}

void LayerBench::expect_load(Index step) {
  const Tensor choices = moe_step_.totals.choices(0);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(choices.numel()));
  ex_.copy(counts.data(), choices.raw(), choices.bytes());
  world_.wait_for(ex_);
  Exec host;
  comm::all_reduce(host, world_.all(), Tensor(counts.data(), {std::ssize(counts)}, DType::i64), comm::Reduce::sum)
      .wait(host);
  const std::vector<Index> wanted = load_.counts(step);
  for (std::size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] != wanted[e])
      throw InternalError(
          str("[bench moe] step ", step, ", expert ", e, ": choices = ", counts[e], ": must be ", wanted[e]));
  }
}

void LayerBench::read_totals(LayerTimes& times) {
  std::array<std::int64_t, 2> overflow{};
  ex_.copy(overflow.data(), moe_step_.totals.overflow.raw(), sizeof overflow);
  std::array<double, ops::kEchoTotals> echo{};
  if (has_clones()) ex_.copy(echo.data(), moe_step_.totals.of_echo(0).raw(), sizeof echo);
  world_.wait_for(ex_);
  Exec host;
  comm::all_reduce(host, world_.all(), Tensor(overflow.data(), {1}, DType::i64), comm::Reduce::sum).wait(host);
  times.lacking_rows = overflow[0];
  const auto of = [&](ops::EchoTotal total) { return echo[static_cast<std::size_t>(total)]; };
  // Rank 0 has counted, and prints.
  if (of(ops::EchoTotal::mean_load) > 0)
    times.max_over_mean = of(ops::EchoTotal::load_after) / of(ops::EchoTotal::mean_load);
}

LayerTimes LayerBench::step(Index step) {
  LayerTimes times;
  put_rows(step);
  run_timed(times);
  expect_load(step);
  read_totals(times);
  run_traced(times);
  std::vector<double> values(times.whole_s.begin(), times.whole_s.end());
  for (const auto& pass : times.parts) {
    for (const LayerTimes::Part& part : pass) values.insert(values.end(), {part.seconds, part.communication_s});
  }
  for (const auto& pass : times.clones) {
    for (const LayerTimes::ClonePart& part : pass) values.insert(values.end(), {part.seconds, part.exposed_s});
  }
  greatest(values);
  auto value = values.cbegin();
  for (double& seconds : times.whole_s) seconds = *value++;
  for (auto& pass : times.parts) {
    for (LayerTimes::Part& part : pass) part = {*value, *(value + 1)}, value += 2;
  }
  for (auto& pass : times.clones) {
    for (LayerTimes::ClonePart& part : pass) part = {*value, *(value + 1)}, value += 2;
  }
  return times;
}

}  // namespace megalith::apps
