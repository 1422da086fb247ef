#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "megalith/comm/threads/thread_world.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/init.h"
#include "megalith/ops/masters.h"
#include "megalith/optim/optim_config.h"
#include "megalith/optim/optimizer.h"

namespace megalith::optim {
namespace {

struct Sample {
  Index update;
  double lr;
};

double rate(const OptimConfig& config, Index update) { return step_rules(config, {}).learning_rate.of(update); }

void expect_curve(const OptimConfig& config, std::initializer_list<Sample> samples) {
  for (const Sample& s : samples) EXPECT_NEAR(rate(config, s.update), s.lr, 1e-9 * config.lr + 1e-18) << s.update;
}

// The curves of arXiv:1909.08053, sections 4 and 5: GPT-2 (cosine) and BERT (linear).
TEST(LearningRate, CosineOfGpt2) {
  const OptimConfig config{
      .lr = 1.5e-4, .min_lr = 1e-5, .warmup_steps = 3000, .decay = DecayCurve::cosine, .decay_steps = 300000};
  expect_curve(config, {{0, 0},
                        {1, 5e-8},
                        {1500, 7.5e-5},
                        {3000, 1.5e-4},
                        {77250, 0.00012949747468305832},
                        {151500, 8e-5},
                        {225750, 3.0502525316941682e-05},
                        {300000, 1e-5},
                        {400000, 1e-5}});
  EXPECT_NEAR(rate(config, 100000), 0.0001162745568, 1e-13);
}

TEST(LearningRate, LinearOfBert) {
  const OptimConfig config{
      .lr = 1e-4, .min_lr = 0, .warmup_steps = 10000, .decay = DecayCurve::linear, .decay_steps = 2000000};
  expect_curve(config, {{0, 0},
                        {1, 1e-8},
                        {5000, 5e-5},
                        {10000, 1e-4},
                        {507500, 7.5e-5},
                        {1005000, 5e-5},
                        {1500000, 2.5125628140703518e-05},
                        {2000000, 0},
                        {2500000, 0}});
}

// A tenth of the way down each 20 steps: 1e-3 - 9e-4 * 20/200 = 9.1e-4.
TEST(LearningRate, WsdStaysUntilTheLastSteps) {
  const OptimConfig config{
      .lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 100, .decay = DecayCurve::wsd, .decay_steps = 200, .run_steps = 1000};
  expect_curve(config, {{1, 1e-5},
                        {100, 1e-3},
                        {101, 1e-3},
                        {800, 1e-3},
                        {801, 9.955e-4},
                        {820, 9.1e-4},
                        {900, 5.5e-4},
                        {999, 1.045e-4},
                        {1000, 1e-4},
                        {2000, 1e-4}});
  EXPECT_EQ(rate(config, 101), 1e-3);
}

// sqrt(100/400) = 1/2, sqrt(100/900) = 1/3; sqrt(100/1e6) = 1/100 is below min_lr / lr = 1/20.
TEST(LearningRate, InverseSqrtFallsToTheLeastRate) {
  const OptimConfig config{.lr = 2e-3, .min_lr = 1e-4, .warmup_steps = 100, .decay = DecayCurve::inverse_sqrt};
  expect_curve(config, {{50, 1e-3}, {100, 2e-3}, {400, 1e-3}, {900, 2e-3 / 3}, {40000, 1e-4}, {1000000, 1e-4}});
}

// The table of docs/recipe.md.
TEST(LearningRate, AreThoseOfTheRecipePage) {
  const auto row = [](DecayCurve decay, Index decay_steps) {
    const OptimConfig config{
        .lr = 1, .min_lr = 0.1, .warmup_steps = 100, .decay = decay, .decay_steps = decay_steps, .run_steps = 1000};
    std::vector<double> rates;
    for (const Index step : {50, 100, 300, 900, 1000}) rates.push_back(std::round(100 * rate(config, step)) / 100);
    return rates;
  };
  EXPECT_EQ(row(DecayCurve::constant, 1000), (std::vector<double>{0.5, 1, 1, 1, 1}));
  EXPECT_EQ(row(DecayCurve::linear, 1000), (std::vector<double>{0.5, 1, 0.8, 0.2, 0.1}));
  EXPECT_EQ(row(DecayCurve::cosine, 1000), (std::vector<double>{0.5, 1, 0.89, 0.13, 0.1}));
  EXPECT_EQ(row(DecayCurve::wsd, 200), (std::vector<double>{0.5, 1, 1, 0.55, 0.1}));
  EXPECT_EQ(row(DecayCurve::inverse_sqrt, 1000), (std::vector<double>{0.5, 1, 0.58, 0.33, 0.32}));
}

TEST(LearningRate, AreDescribedInWords) {
  OptimConfig config{.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 100, .decay_steps = 1000, .run_steps = 1000};
  EXPECT_EQ(curve_text(config), "0 to 0.001 in 100 steps, then on a cosine to 0.0001 at step 1000");
  config.decay = DecayCurve::inverse_sqrt;
  EXPECT_EQ(curve_text(config), "0 to 0.001 in 100 steps, then 0.001 * sqrt(100 / step), at least 0.0001");
  config.decay = DecayCurve::wsd;
  config.decay_steps = 200;
  EXPECT_EQ(curve_text(config), "0 to 0.001 in 100 steps, stays to step 800, then on a line to 0.0001 at step 1000");
  config.warmup_steps = 0;
  config.decay = DecayCurve::constant;
  EXPECT_EQ(curve_text(config), "0.001, stays");
}

TEST(LearningRate, ConstantAfterWarmup) {
  const OptimConfig config{.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 10, .decay = DecayCurve::constant};
  expect_curve(config, {{5, 5e-4}, {10, 1e-3}, {100000, 1e-3}});
}

TEST(Clip, ScalesToTheLimitAndNeverUp) {
  EXPECT_NEAR(ops::clip_factor(1.0, 5.0) * 3.0, 0.59999988, 1e-8);
  EXPECT_NEAR(ops::clip_factor(1.0, 5.0) * 4.0, 0.79999984, 1e-8);
  EXPECT_EQ(ops::clip_factor(1.0, 0.5), 1.0);
  EXPECT_EQ(ops::clip_factor(0.0, 5.0), 1.0);
}

TEST(OptimConfigCheck, NamesEveryBrokenRule) {
  Problems problems;
  check({.lr = 1e-3, .min_lr = 2e-3, .warmup_steps = 5, .decay_steps = 5}, problems);
  EXPECT_EQ(problems.lines(),
            (std::vector<std::string>{"optimizer.min_lr = 0.002: must be at most optimizer.lr = 0.001",
                                      "optimizer.decay_steps = 5: must exceed optimizer.warmup_steps = 5"}));
}

TEST(OptimConfigCheck, CurvesHaveTheirOwnRules) {
  const auto broken = [](const OptimConfig& config) {
    Problems problems;
    check(config, problems);
    return problems.lines();
  };
  OptimConfig config{.warmup_steps = 80, .decay = DecayCurve::wsd, .decay_steps = 21, .run_steps = 100};
  EXPECT_EQ(broken(config), (std::vector<std::string>{
                                "optimizer.warmup_steps + optimizer.decay_steps = 101: must be at most train.steps = "
                                "100 with optimizer.decay = wsd: the decay takes the last steps of the run"}));
  config.decay_steps = 20;
  EXPECT_EQ(broken(config), std::vector<std::string>{});
  config.decay = DecayCurve::inverse_sqrt;
  EXPECT_EQ(broken(config), std::vector<std::string>{}) << "it reads no decay_steps";
  config.warmup_steps = 0;
  EXPECT_EQ(broken(config), (std::vector<std::string>{
                                "optimizer.warmup_steps = 0: must be at least 1 with optimizer.decay = inverse_sqrt: "
                                "the rate is lr * sqrt(warmup_steps / step)"}));
}

struct OneParam {
  explicit OneParam(Decay decay, Ownership ownership = Ownership::owner)
      : params({{TensorSlice::whole("w", {2}), {2}, Init::ones, 0, decay, grid::kReplicated}}, {DType::f64, DType::f64},
               {.bucket_elements = 1, .place = {.tp = ownership == Ownership::owner ? 0 : 1}}),
        optimizer(config, params, alone->all(), alone->all()) {
    params.allocate(ledger);
    optimizer.allocate(ex, ledger);
    ops::initialise(ex, {params.params()[0].spec.slice, params.params()[0].spec.init, params.params()[0].spec.init_std},
                    params.params()[0].masters.whole, 0);
  }
  double after(std::initializer_list<double> gradients, std::int32_t apply = 1) {
    ops::StepVerdict verdict{.apply = apply, .learning_rate = 1e-3};
    for (const double g : gradients) {
      params.params()[0].grad.data<double>()[0] = g;
      optimizer.step(ex, Tensor(&verdict, {sizeof(verdict)}, DType::u8));
      ++verdict.update;
    }
    return params.params()[0].value.data<double>()[0];
  }
  OptimConfig config{.weight_decay = 0.01};
  std::unique_ptr<comm::World> alone = comm::dry_world(0, 1);
  MemoryLedger ledger{Device::cpu};
  ParamBuffer params;
  Optimizer optimizer;
  Exec ex;
};

TEST(Optimizer, DecaysWeightsAndNotBiases) {
  EXPECT_NEAR(OneParam(Decay::yes).after({0.1, 0.1, -0.2}), 0.998045679825, 1e-12);
  const double plain = OneParam(Decay::no).after({0.1});
  EXPECT_NEAR(plain, 1 - 1e-3 / (1 + 1e-7), 1e-12);
}

TEST(Optimizer, AVerdictAgainstTheStepChangesNothing) {
  OneParam p(Decay::yes);
  EXPECT_EQ(p.after({0.1, 5.0}, 0), 1.0);
  EXPECT_EQ(p.optimizer.m().data<double>()[0], 0.0);
  EXPECT_EQ(p.optimizer.v().data<double>()[0], 0.0);
}

TEST(Optimizer, ReplicasDoNotCountInTheNorm) {
  std::array<double, 2> sums{-1, -1};
  const Tensor out(sums.data(), {2}, DType::f64);
  OneParam owner(Decay::yes), replica(Decay::yes, Ownership::replica);
  for (OneParam* p : {&owner, &replica}) {
    p->params.params()[0].grad.data<double>()[0] = 3;
    p->params.params()[0].grad.data<double>()[1] = 4;
  }
  owner.optimizer.sum_of_squares(owner.ex, out);
  EXPECT_EQ(sums, (std::array<double, 2>{25, 0}));
  replica.optimizer.sum_of_squares(replica.ex, out);
  EXPECT_EQ(sums, (std::array<double, 2>{0, 25})) << "they are looked at by themselves";
}

TEST(Optimizer, SquaresThatAnOpSummedAreNotSummedAgain) {
  const auto params_of = [](const Partition& partition) {
    std::vector<ParamSpec> specs;
    for (const auto& [name, squares] : {std::pair{"a", 0}, {"b", 3}, {"c", 0}, {"d", 2}}) {
      specs.push_back({{name, {200}, {}, {200}}, {200}});
      specs.back().grad_squares = squares;
      specs.back().layer = 0;
    }
    return std::make_unique<ParamBuffer>(std::move(specs), Policy{}, partition);
  };
  const std::unique_ptr<comm::World> world = comm::dry_world(0, 1);
  const std::unique_ptr<ParamBuffer> params = params_of({.bucket_elements = 1, .one_microbatch = true});
  Optimizer optimizer({}, *params, world->all(), world->all());
  MemoryLedger ledger(Device::cpu);
  Exec ex;
  params->allocate(ledger);
  optimizer.allocate(ex, ledger);
  ops::fill(ex, params->grads(), 0);
  for (const char* name : {"a", "c"}) ops::fill(ex, params->at(name).grad, 2);
  for (const char* name : {"b", "d"}) {
    ops::fill(ex, params->at(name).grad, std::nan(""));  // not read
    ops::fill(ex, params->at(name).grad_squares, 10);
  }
  std::array<double, 2> sums{};
  optimizer.sum_of_squares(ex, Tensor(sums.data(), {2}, DType::f64));
  EXPECT_EQ(sums, (std::array<double, 2>{2 * 200 * 4 + 5 * 10, 0}));
  // Several microbatches add to a gradient, and other ranks do.
  for (const Partition& several : {Partition{.bucket_elements = 1}, Partition{.shards = 2, .one_microbatch = true}}) {
    const std::unique_ptr<ParamBuffer> without = params_of(several);
    for (const Param& param : without->params()) EXPECT_FALSE(param.grad_squares) << param.name();
  }
}

struct Updated {
  std::array<double, 2> sum_squares{};
  /// Masters, copies and moments, in the places of the whole; NaN where another rank has them.
  std::array<std::vector<double>, 4> state;
};

/// Three updates by gradients that are the same on all ranks.
Updated update(const comm::Group& dp, Sharding sharding) {
  constexpr Index kLong = 2200000;  // a shard has several blocks of the sum of squares
  ParamBuffer params(
      {{TensorSlice::whole("weight", {kLong}), {kLong}, Init::normal, 0.02, Decay::yes},
       {TensorSlice::whole("bias", {77}), {77}, Init::ones, 0, Decay::no},
       {TensorSlice::whole("tied", {300}), {300}, Init::ones, 0, Decay::yes, grid::kReplicated}},
      {DType::f32, DType::bf16},
      {.bucket_elements = 1, .shards = dp.size(), .own = dp.rank(), .sharding = sharding, .place = {.tp = 1}});
  Optimizer optimizer({}, params, dp, comm::dry_world(0, 1)->all());
  MemoryLedger ledger(Device::cpu);
  Exec ex;
  params.allocate(ledger);
  optimizer.allocate(ex, ledger);
  for (const Param& param : params.params())
    ops::initialise(ex, {param.spec.slice, param.spec.init, param.spec.init_std}, param.grad, 5);
  for (const OwnRange& range : params.own_ranges())
    ops::write_masters(ex, range.of_whole(params.grads()), params.own_masters(range));
  Updated updated;
  optimizer.sum_of_squares(ex, Tensor(updated.sum_squares.data(), {2}, DType::f64));
  ops::StepVerdict verdict{.apply = 1, .learning_rate = 1e-2};
  for (; verdict.update < 3; ++verdict.update) optimizer.step(ex, Tensor(&verdict, {sizeof(verdict)}, DType::u8));
  for (std::vector<double>& whole : updated.state) whole.assign(static_cast<std::size_t>(params.numel()), std::nan(""));
  Buffer memory;
  for (const OwnRange& range : params.own_ranges()) {
    const Tensor own[] = {ops::readable(ex, params.own_masters(range), memory), range.of_whole(params.values()),
                          range.of_own(optimizer.m()), range.of_own(optimizer.v())};
    for (std::size_t i = 0; i < updated.state.size(); ++i)
      ops::cast(ex, own[i], Tensor(updated.state[i].data() + range.in_whole, {range.count}, DType::f64));
  }
  return updated;
}

TEST(Optimizer, TheNormWaitsForEachBucketBeforeItReadsIt) {
  const std::unique_ptr<comm::World> world = comm::dry_world(0, 1);
  const auto spec = [](const char* name, const grid::Placement& placement, Index layer) {
    ParamSpec result{{name, {500}, {}, {500}}, {500}};
    result.placement = placement;
    result.layer = layer;
    return result;
  };
  // The tied table of a last stage counts on the first.
  ParamBuffer params(
      {spec("table", grid::kTiedEnds, kOutsideLayers), spec("a", grid::kSharded, 0), spec("b", grid::kSharded, 1)}, {},
      {.bucket_elements = 1, .place = {.pp = 1}});
  Optimizer optimizer({}, params, world->all(), world->all());
  MemoryLedger ledger(Device::cpu);
  Exec ex;
  params.allocate(ledger);
  optimizer.allocate(ex, ledger);
  ASSERT_EQ(params.buckets().size(), 3u);
  std::array<double, 2> sums{};
  std::vector<std::size_t> awaited;
  optimizer.sum_of_squares(ex, Tensor(sums.data(), {2}, DType::f64), [&](std::size_t bucket) {
    awaited.push_back(bucket);
    ops::fill(ex, params.part(params.grads(), params.buckets()[bucket]), 2);  // it arrives now
  });
  EXPECT_EQ(awaited, (std::vector<std::size_t>{0, 1, 2}));
  std::array<double, 2> want{};
  for (const Bucket& bucket : params.buckets())
    want[bucket.ownership == Ownership::owner ? 0 : 1] += 4.0 * static_cast<double>(bucket.numel());
  EXPECT_EQ(sums, want);
}

TEST(Optimizer, ShardsHaveTheBitsOfTheWhole) {
  constexpr int kRanks = 2;
  comm::run_ranks(kRanks, [](comm::World& world) {
    const Updated whole = update(world.all(), Sharding::none), sharded = update(world.all(), Sharding::optimizer);
    const bool counts = world.rank() == 0;  // the other holds a copy
    EXPECT_GT(whole.sum_squares[counts ? 0 : 1], 77);
    EXPECT_EQ(whole.sum_squares[counts ? 1 : 0], counts ? 300 : 0) << "of the replica's ones";
    EXPECT_EQ(sharded.sum_squares, whole.sum_squares);
    for (std::size_t i = 0; i < whole.state.size(); ++i) {
      const std::vector<double>&want = whole.state[i], &got = sharded.state[i];
      ASSERT_EQ(got.size(), want.size());
      std::size_t own = 0, equal = 0;
      for (std::size_t j = 0; j < got.size(); ++j) {
        own += std::isnan(got[j]) ? 0 : 1;
        equal += got[j] == want[j] ? 1 : 0;
      }
      EXPECT_EQ(kRanks * own, got.size()) << "state " << i;
      EXPECT_EQ(equal, own) << "state " << i;
    }
  });
}

/// The masters after 50 updates by gradients of many sizes, of the elements that this rank updates.
std::vector<double> masters_after(const comm::Group& dp, Sharding sharding, const Policy& policy, MomentType moments) {
  ParamBuffer params({{TensorSlice::whole("weight", {70000}), {70000}, Init::normal, 0.02, Decay::yes},
                      {TensorSlice::whole("bias", {77}), {77}, Init::ones, 0, Decay::no}},
                     policy, {.bucket_elements = 1, .shards = dp.size(), .own = dp.rank(), .sharding = sharding});
  Optimizer optimizer({.moments = moments}, params, dp, comm::dry_world(0, 1)->all(), 3);
  MemoryLedger ledger(Device::cpu);
  Exec ex;
  params.allocate(ledger);
  optimizer.allocate(ex, ledger);
  for (const Param& param : params.params())
    ops::initialise(ex, {param.spec.slice, param.spec.init, param.spec.init_std}, param.grad, 5);
  for (const OwnRange& range : params.own_ranges())
    ops::write_masters(ex, range.of_whole(params.grads()), params.own_masters(range));
  ops::StepVerdict verdict{.apply = 1, .learning_rate = 1e-3};
  for (; verdict.update < 50; ++verdict.update) {
    const RandomSite site{.seed = 8, .step = static_cast<std::uint32_t>(verdict.update)};
    for (const Param& param : params.params())
      for (Index i = 0; i < param.grad.numel(); ++i)
        param.grad.data<float>()[i] = static_cast<float>(site.normal(static_cast<std::uint64_t>(i)));
    optimizer.step(ex, Tensor(&verdict, {sizeof(verdict)}, DType::u8));
  }
  std::vector<double> masters;
  Buffer memory;
  for (const OwnRange& range : params.own_ranges()) {
    const std::span<const float> values = ops::readable(ex, params.own_masters(range), memory).span<float>();
    masters.insert(masters.end(), values.begin(), values.end());
    if (!params.has_copy()) continue;
    const std::span<const bfloat16> copies = range.of_whole(params.values()).span<bfloat16>();
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(copies[i].bits, bfloat16(values[i]).bits) << i;
  }
  return masters;
}

TEST(Optimizer, SplitMastersHaveTheBitsOfWholeOnes) {
  comm::run_ranks(2, [](comm::World& world) {
    for (const Sharding sharding : {Sharding::none, Sharding::optimizer}) {
      for (const MomentType moments : {MomentType::f32, MomentType::bf16}) {
        SCOPED_TRACE(::testing::Message()
                     << "sharding " << static_cast<int>(sharding) << ", moments " << static_cast<int>(moments));
        EXPECT_TRUE(masters_after(world.all(), sharding, {DType::f32, DType::bf16}, moments) ==
                    masters_after(world.all(), sharding, {DType::f32, DType::f32}, moments));
      }
    }
  });
}

}  // namespace
}  // namespace megalith::optim
