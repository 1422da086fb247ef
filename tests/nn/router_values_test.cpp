#include <cmath>

#include <gtest/gtest.h>

#include "megalith/nn/moe/router.h"

#include "tests/nn/layer_harness.h"

// What the keys of [moe] mean, in numbers that were worked out by hand: other tests compare grids, or a gradient with
// differences of the reported loss, so a factor that is wrong everywhere would pass them.
namespace megalith::nn {
namespace {

using Ids = std::vector<std::int32_t>;
using Values = std::vector<double>;

/// Probabilities of a row of logits are these over their sum.
using Row = std::array<double, 4>;
/// Two sequences of two tokens; p = 1/2, 1/4, 1/8, 1/8 in another order each. The last row is twice as large: the same
/// p, another z-loss.
const std::vector<Row> kTokens = {{4, 2, 1, 1}, {4, 2, 1, 1}, {1, 1, 2, 4}, {4, 8, 2, 2}};

/// A config of 4 experts.
MoeConfig config_with(void (*set)(MoeConfig&)) {
  MoeConfig config;
  config.num_experts = 4;
  set(config);
  return config;
}

/// What a router of one rank makes of these rows. Its weight is the unit matrix, so that the logits are the rows.
struct Routed {
  Ids experts;
  Values weights;
  double load_loss = 0, z_loss = 0;
};

Routed route(void (*set)(MoeConfig&), const std::vector<Row>& rows = kTokens, const Row& shares = {},
             Mode mode = Mode::train) {
  Routed result;
  const MoeConfig config = config_with(set);
  comm::run_ranks(1, [&](comm::World& world) {
    const TensorParallel tp = support::whole_rows(world.all());
    const LayerGroups groups{tp, ExpertParallel(tp, world.all(), world.all(), world.all())};
    const MoeSpec spec{.config = config};
    std::vector<ParamSpec> specs;
    Router::declare(specs, "r", spec, {.hidden_size = 4}, *groups.experts);
    support::LayerParams layer(std::move(specs));
    for (int i = 0; i < 16; ++i) layer.params.at("r.weight").value.data<double>()[i] = i % 5 == 0 ? 1 : 0;
    if (Param* of = layer.params.find("r.shares")) std::ranges::copy(shares, of->value.data<double>());
    if (Param* of = layer.params.find("r.bias")) std::ranges::fill(of->value.span<double>(), 0.0);
    const Router router("r", spec, groups, layer.params);
    Exec ex;
    support::SmallMicrobatch microbatch{.seq_len = static_cast<Index>(rows.size()) / 2};
    const Tensor totals = ex.tensor({MoeTotals::in(nullptr, 1, 4).bytes() / 8}, DType::f64);
    ops::fill(ex, totals, 0);
    microbatch.moe.totals = MoeTotals::in(static_cast<std::byte*>(totals.raw()), 1, 4);
    Router::Saved saved;
    saved.x = ex.tensor({static_cast<Index>(rows.size()), 4}, DType::f64);
    for (std::size_t t = 0; t < rows.size(); ++t) {
      for (std::size_t e = 0; e < 4; ++e) saved.x.data<double>()[t * 4 + e] = std::log(rows[t][e]);
    }
    Microbatch of = microbatch.get();
    of.mode = mode;
    router.forward(ex, of, saved);
    const auto experts = saved.experts.span<std::int32_t>();
    result = {{experts.begin(), experts.end()},
              support::values_of(saved.weights),
              microbatch.moe.totals.load_loss(0).data<double>()[0],
              microbatch.moe.totals.z_loss(0).data<double>()[0]};
  });
  return result;
}

void expect_values(const Values& got, const Values& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-14) << i;
}

TEST(RouterValues, LoadLossOfAMicrobatch) {
  // Counts 3, 3, 1, 1 of 8 choices; sums of p 1.375, 1.125, 0.625, 0.875 over 4 tokens:
  // 4 experts * (3 * 1.375 + 3 * 1.125 + 0.625 + 0.875) / (8 * 4) = 1.125, times 4 tokens and 0.1.
  const Routed got = route([](MoeConfig& c) { c.aux_loss = 0.1; });
  EXPECT_EQ(got.experts, (Ids{0, 1, 0, 1, 3, 2, 1, 0}));
  EXPECT_NEAR(got.load_loss, 0.45, 1e-15);
  EXPECT_EQ(got.z_loss, 0);
}

TEST(RouterValues, LoadLossOfSequences) {
  // 4 * (1/2 * 1/2 + 1/2 * 1/4) = 1.5 of the first, whose choices are all of experts 0 and 1; 1 of the second, whose
  // load is even. Times 2 tokens each and 0.1.
  EXPECT_NEAR(route([](MoeConfig& c) { c.aux_loss = 0.1, c.aux_scope = AuxScope::sequence; }).load_loss, 0.5, 1e-15);
}

TEST(RouterValues, LoadLossOfTheStepBefore) {
  // f = 1/4, 1/4, 1/2, 0, the shares of all choices, with the means of p: 4 * (0.34375 + 0.28125 + 2 * 0.15625) / 4 =
  // 0.9375, times 4 tokens and 0.1.
  EXPECT_NEAR(
      route([](MoeConfig& c) { c.aux_loss = 0.1, c.aux_scope = AuxScope::global; }, kTokens, {0.25, 0.25, 0.5, 0})
          .load_loss,
      0.375, 1e-12);
  // An even load costs its weight, however many experts a token has.
  constexpr auto kOne = [](MoeConfig& c) { c.top_k = 1, c.aux_loss = 0.1, c.aux_scope = AuxScope::global; };
  constexpr auto kAll = [](MoeConfig& c) { c.top_k = 4, c.aux_loss = 0.1, c.aux_scope = AuxScope::global; };
  constexpr Row kEven = {0.25, 0.25, 0.25, 0.25};
  EXPECT_NEAR(route(kOne, kTokens, kEven).load_loss, 0.4, 1e-12);
  EXPECT_NEAR(route(kAll, kTokens, kEven).load_loss, 0.4, 1e-12);
}

TEST(RouterValues, LoadLossOfSigmoids) {
  // p = x / (1 + x): 4/5, 2/3, 1/2, 1/2, over their sum 37/15. All choices are of experts 0 and 1:
  // 4 * (1/2 * 24/74 + 1/2 * 20/74) = 88/74, times 2 tokens and 0.1.
  const Routed got =
      route([](MoeConfig& c) { c.score = ops::RouterScore::sigmoid, c.aux_loss = 0.1; }, {{4, 2, 1, 1}, {4, 2, 1, 1}});
  EXPECT_NEAR(got.load_loss, 0.2 * 88 / 74, 1e-15);
  expect_values(got.weights, {0.8, 2.0 / 3, 0.8, 2.0 / 3});
}

TEST(RouterValues, ZLoss) {
  // 0.01 * (3 log(8)^2 + log(16)^2)
  EXPECT_NEAR(route([](MoeConfig& c) { c.aux_loss = 0, c.z_loss = 0.01; }).z_loss, 0.2065947959848266, 1e-15);
}

TEST(RouterValues, WeightsOfTheChosen) {
  const std::vector<Row> rows = {{4, 2, 1, 1}, {1, 1, 2, 4}};
  expect_values(route([](MoeConfig&) {}, rows).weights, {0.5, 0.25, 0.5, 0.25});
  expect_values(route([](MoeConfig& c) { c.scale = 2.5; }, rows).weights, {1.25, 0.625, 1.25, 0.625});
  expect_values(route([](MoeConfig& c) { c.normalize_top_k = true; }, rows).weights,
                {2.0 / 3, 1.0 / 3, 2.0 / 3, 1.0 / 3});
  expect_values(route([](MoeConfig& c) { c.normalize_top_k = true, c.scale = 3; }, rows).weights, {2, 1, 2, 1});
  // A softmax over the two chosen ones; with one choice before and after differ most.
  expect_values(route([](MoeConfig& c) { c.score_before_top_k = false; }, rows).weights,
                {2.0 / 3, 1.0 / 3, 2.0 / 3, 1.0 / 3});
  expect_values(route([](MoeConfig& c) { c.top_k = 1; }, rows).weights, {0.5, 0.5});
  expect_values(route([](MoeConfig& c) { c.top_k = 1, c.score_before_top_k = false; }, rows).weights, {1, 1});
}

TEST(RouterValues, GroupsThatAreChosenFrom) {
  // Experts 0 and 1 are a group, 2 and 3 the other. Without groups the best are 0 and 2.
  const std::vector<Row> rows = {{8, 1, 4, 2}, {1, 2, 4, 3}};
  EXPECT_EQ(route([](MoeConfig&) {}, rows).experts, (Ids{0, 2, 2, 3}));
  EXPECT_EQ(route([](MoeConfig& c) { c.num_groups = 2, c.group_top_k = 1; }, rows).experts, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(route([](MoeConfig& c) { c.num_groups = 2, c.group_top_k = 2; }, rows).experts, (Ids{0, 2, 2, 3}));
}

// The logit of expert e is that of a row whose entry is divided by (1 + e)^skew, for all that follows from it.
TEST(RouterValues, ASkewDividesTheOddsOfExperts) {
  constexpr auto kSkewed = [](MoeConfig& c) { c.router_skew = 2, c.aux_loss = 0.1, c.z_loss = 0.01; };
  constexpr auto kPlain = [](MoeConfig& c) { c.aux_loss = 0.1, c.z_loss = 0.01; };
  constexpr auto kSkewedSigmoid = [](MoeConfig& c) {
    c.router_skew = 2, c.score = ops::RouterScore::sigmoid, c.aux_loss = 0.1;
    c.aux_scope = AuxScope::sequence, c.normalize_top_k = true;
  };
  constexpr auto kSigmoid = [](MoeConfig& c) {
    c.score = ops::RouterScore::sigmoid, c.aux_loss = 0.1;
    c.aux_scope = AuxScope::sequence, c.normalize_top_k = true;
  };
  const auto expect_same = [](void (*skewed)(MoeConfig&), void (*plain)(MoeConfig&)) {
    std::vector<Row> divided = kTokens;
    for (Row& row : divided) {
      for (std::size_t e = 0; e < 4; ++e) row[e] /= static_cast<double>((1 + e) * (1 + e));
    }
    const Routed got = route(skewed), want = route(plain, divided);
    EXPECT_EQ(got.experts, want.experts);
    expect_values(got.weights, want.weights);
    EXPECT_NEAR(got.load_loss, want.load_loss, 1e-14);
    EXPECT_NEAR(got.z_loss, want.z_loss, 1e-14);
    EXPECT_NE(got.experts, route(plain).experts);
    EXPECT_EQ(route(skewed, kTokens, {}, Mode::evaluate).experts, want.experts);
  };
  expect_same(kSkewed, kPlain);
  expect_same(kSkewedSigmoid, kSigmoid);
}

TEST(MoeConfigValues, Rules) {
  const ops::RouterRules all = config_with([](MoeConfig& c) {
                                 c.top_k = 3, c.score = ops::RouterScore::sigmoid, c.score_before_top_k = false;
                                 c.normalize_top_k = true, c.scale = 2.5, c.num_groups = 8, c.group_top_k = 4;
                               }).rules();
  EXPECT_EQ(all.top_k, 3);
  EXPECT_EQ(all.score, ops::RouterScore::sigmoid);
  EXPECT_EQ(all.order, ops::ScoreOrder::after_top_k);
  EXPECT_EQ(all.normalize, ops::NormalizeTopK::yes);
  EXPECT_EQ(all.scale, 2.5);
  EXPECT_EQ(all.num_groups, 8);
  EXPECT_EQ(all.group_top_k, 4);
  const ops::RouterRules defaults = MoeConfig{}.rules();
  EXPECT_EQ(defaults.top_k, 2);
  EXPECT_EQ(defaults.score, ops::RouterScore::softmax);
  EXPECT_EQ(defaults.order, ops::ScoreOrder::before_top_k);
  EXPECT_EQ(defaults.normalize, ops::NormalizeTopK::no);
  EXPECT_EQ(defaults.scale, 1);
  EXPECT_EQ(defaults.num_groups, 1);
  EXPECT_EQ(defaults.group_top_k, 1);
}

TEST(MoeConfigValues, Capacity) {
  const auto capacity = [](Index experts, Index top_k, double factor, Index run) {
    MoeConfig c;
    c.num_experts = experts, c.top_k = top_k, c.capacity_factor = factor;
    return c.capacity_of(run);
  };
  EXPECT_EQ(capacity(8, 2, 1, 16), 4) << "the even share";
  EXPECT_EQ(capacity(8, 2, 1.25, 16), 5);
  EXPECT_EQ(capacity(8, 2, 1.01, 16), 5) << "rounded up";
  EXPECT_EQ(capacity(8, 1, 1, 12), 2) << "of an even share of 1.5";
  EXPECT_EQ(capacity(64, 1, 1, 4), 1) << "at least one";
  EXPECT_EQ(capacity(4, 2, 100, 16), 16) << "a token goes to an expert once";
}

}  // namespace
}  // namespace megalith::nn
