#include "megalith/ops/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

using Ids = std::vector<std::int32_t>;

struct Routed {
  Values probabilities, weights;
  Ids experts;
  std::vector<std::int64_t> counts;
};

Values scores_of(const RouterRules& rules, const Values& logits, std::size_t begin, std::size_t experts) {
  Values p(experts);
  double sum = 0;
  for (std::size_t e = 0; e < experts; ++e) sum += std::exp(logits[begin + e]);
  for (std::size_t e = 0; e < experts; ++e)
    p[e] = rules.score == RouterScore::softmax ? std::exp(logits[begin + e]) / sum
                                               : 1 / (1 + std::exp(-logits[begin + e]));
  return p;
}

/// Weights of the chosen experts, from the formula of RouterForward.
Values weights_of(const RouterRules& rules, const Values& logits, std::size_t begin, const Values& p,
                  const Ids& chosen) {
  Values c;
  double over_chosen = 0;
  for (const std::int32_t e : chosen) over_chosen += std::exp(logits[begin + static_cast<std::size_t>(e)]);
  for (const std::int32_t e : chosen) {
    const bool after = rules.score == RouterScore::softmax && rules.order == ScoreOrder::after_top_k;
    const auto at = static_cast<std::size_t>(e);
    c.push_back(after ? std::exp(logits[begin + at]) / over_chosen : p[at]);
  }
  const double sum = rules.normalize == NormalizeTopK::yes ? std::accumulate(c.begin(), c.end(), 0.0) : 1;
  for (double& value : c) value *= rules.scale / sum;
  return c;
}

/// By sorting: stable, so that of equal keys the lower number comes first.
Routed routed(const RouterRules& rules, const Values& logits, const Values& bias, std::size_t experts) {
  Routed out;
  out.counts.resize(experts);
  for (std::size_t begin = 0; begin < logits.size(); begin += experts) {
    const Values p = scores_of(rules, logits, begin, experts);
    const auto key = [&](std::size_t e) { return bias.empty() ? p[e] : p[e] + bias[e]; };
    const auto better = [&](auto a, auto b) {
      return key(static_cast<std::size_t>(a)) > key(static_cast<std::size_t>(b));
    };
    const std::size_t groups = static_cast<std::size_t>(rules.num_groups), size = experts / groups;
    Values group_scores(groups);
    for (std::size_t g = 0; g < groups; ++g) {
      Values keys;
      for (std::size_t e = g * size; e < (g + 1) * size; ++e) keys.push_back(key(e));
      std::sort(keys.rbegin(), keys.rend());
      const bool two = (rules.score == RouterScore::sigmoid || !bias.empty()) && size > 1;
      group_scores[g] = keys[0] + (two ? keys[1] : 0);
    }
    std::vector<std::size_t> order(groups);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return group_scores[a] > group_scores[b]; });
    order.resize(static_cast<std::size_t>(rules.group_top_k));
    std::sort(order.begin(), order.end());
    Ids chosen;
    for (const std::size_t g : order) {
      for (std::size_t e = g * size; e < (g + 1) * size; ++e) chosen.push_back(static_cast<std::int32_t>(e));
    }
    std::stable_sort(chosen.begin(), chosen.end(), better);
    chosen.resize(static_cast<std::size_t>(rules.top_k));
    const Values w = weights_of(rules, logits, begin, p, chosen);
    out.probabilities.insert(out.probabilities.end(), p.begin(), p.end());
    out.weights.insert(out.weights.end(), w.begin(), w.end());
    out.experts.insert(out.experts.end(), chosen.begin(), chosen.end());
    for (const std::int32_t e : chosen) ++out.counts[static_cast<std::size_t>(e)];
  }
  return out;
}

struct RoutedCase {
  Index tokens, experts;
  RouterRules rules;
  bool biased = false;
};
std::vector<RoutedCase> all_cases() {
  std::vector<RoutedCase> cases{{.tokens = 0, .experts = 4, .rules = {.top_k = 2}},
                                {.tokens = 5, .experts = 1, .rules = {.top_k = 1}}};
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    for (const ScoreOrder order : {ScoreOrder::before_top_k, ScoreOrder::after_top_k}) {
      for (const NormalizeTopK normalize : {NormalizeTopK::no, NormalizeTopK::yes}) {
        for (const bool biased : {false, true}) {
          const RouterRules rules{.top_k = 2, .score = score, .order = order, .normalize = normalize, .scale = 2.5};
          cases.push_back({23, 8, rules, biased});
          RouterRules all = rules, grouped = rules;
          all.top_k = 7;
          cases.push_back({9, 7, all, biased});
          grouped.top_k = 3;
          grouped.num_groups = 4;
          grouped.group_top_k = 2;
          cases.push_back({40, 12, grouped, biased});
          grouped.num_groups = 12;
          grouped.group_top_k = 5;
          cases.push_back({11, 12, grouped, biased});
        }
      }
    }
  }
  return cases;
}

class RouterTest : public OpTest {
 protected:
  struct Outputs {
    Tensor probabilities, experts, weights, counts;
  };
  Outputs run(const RoutedCase& c, const Values& logits, const Values& bias, const TokenRuns& runs = {},
              Index num_runs = 1) {
    const Outputs out{empty({c.tokens, c.experts}), ex_.tensor({c.tokens, c.rules.top_k}, DType::i32),
                      empty({c.tokens, c.rules.top_k}), ex_.tensor({num_runs, c.experts}, DType::i64)};
    router_forward(ex_, {.logits = put({c.tokens, c.experts}, logits),
                         .bias = bias.empty() ? Tensor() : put({c.experts}, bias),
                         .probabilities = out.probabilities,
                         .experts = out.experts,
                         .weights = out.weights,
                         .counts = out.counts,
                         .rules = c.rules,
                         .runs = runs});
    return out;
  }
  static Ids ids_of(const Tensor& tensor) {
    const auto span = tensor.span<std::int32_t>();
    return {span.begin(), span.end()};
  }
  static std::vector<std::int64_t> counts_of(const Tensor& tensor) {
    const auto span = tensor.span<std::int64_t>();
    return {span.begin(), span.end()};
  }
};
MEGALITH_OPS_PRECISIONS(RouterTest);

TEST_P(RouterTest, ChoosesAndWeighs) {
  for (const RoutedCase& c : all_cases()) {
    SCOPED_TRACE(::testing::Message() << c.tokens << " x " << c.experts << ", top " << c.rules.top_k << ", score "
                                      << static_cast<int>(c.rules.score) << static_cast<int>(c.rules.order)
                                      << static_cast<int>(c.rules.normalize) << c.biased << ", " << c.rules.num_groups
                                      << " groups");
    const Values logits = random_values(c.tokens * c.experts, 1, 3);
    const Values bias = c.biased ? random_values(c.experts, 2, 0.3) : Values();
    const Routed want = routed(c.rules, logits, bias, static_cast<std::size_t>(c.experts));
    const Outputs got = run(c, logits, bias);
    EXPECT_EQ(ids_of(got.experts), want.experts);
    EXPECT_EQ(counts_of(got.counts), want.counts);
    expect_near(got.probabilities, want.probabilities, "probabilities");
    expect_near(got.weights, want.weights, "weights");
  }
}

TEST_P(RouterTest, TiesGoToTheLowerNumber) {
  const RoutedCase c{.tokens = 3, .experts = 6, .rules = {.top_k = 3}};
  const Values logits{1, 1, 1, 1, 1, 1, 0, 2, 0, 2, 0, 2, 0, 0, 5, 0, 0, 0};
  EXPECT_EQ(ids_of(run(c, logits, {}).experts), (Ids{0, 1, 2, 1, 3, 5, 2, 0, 1}));
  EXPECT_EQ(ids_of(run(c, logits, Values(6, 0.0)).experts), (Ids{0, 1, 2, 1, 3, 5, 2, 0, 1}));
  RoutedCase groups = c;
  groups.rules.num_groups = 3;
  groups.rules.group_top_k = 2;
  EXPECT_EQ(ids_of(run(groups, logits, {}).experts), (Ids{0, 1, 2, 1, 3, 0, 2, 0, 1}));
  // Infinite keys are keys like others; a NaN is seen: it is chosen, and what it weighs is NaN.
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const RoutedCase sigmoid{.tokens = 2, .experts = 4, .rules = {.top_k = 2, .score = RouterScore::sigmoid}};
  const Outputs got = run(sigmoid, {-infinity, -infinity, -infinity, 0, 0, 1, nan, 2}, {});
  EXPECT_EQ(ids_of(got.experts), (Ids{3, 0, 2, 3}));
  EXPECT_EQ(values_of(got.weights)[1], 0);
  EXPECT_TRUE(std::isnan(values_of(got.weights)[2]));
}

/// A group's two best, not its best alone, where there is a bias or a sigmoid; of a softmax the best.
TEST_P(RouterTest, GroupsAsInDeepSeek) {
  const RouterRules rules{.top_k = 2, .num_groups = 2, .group_top_k = 1};
  RoutedCase c{.tokens = 1, .experts = 4, .rules = rules};
  const Values logits{2, -3, 1.5, 1.4};
  EXPECT_EQ(ids_of(run(c, logits, {}).experts), (Ids{0, 1}));
  c.rules.score = RouterScore::sigmoid;
  EXPECT_EQ(ids_of(run(c, logits, {}).experts), (Ids{2, 3}));
}

TEST_P(RouterTest, CountsRunsOfTokens) {
  const RoutedCase c{.tokens = 9, .experts = 5, .rules = {.top_k = 2}};
  const Values logits = random_values(45, 4, 2);
  const Outputs got = run(c, logits, {}, {.seq_len = 4, .first_row = 6}, 4);  // rows 6, 7 | 8 to 11 | 12 to 14
  std::vector<std::int64_t> want(20);
  const Ids experts = ids_of(got.experts);
  for (std::size_t row = 0; row < 9; ++row) {
    for (std::size_t k = 0; k < 2; ++k) ++want[(6 + row) / 4 * 5 + static_cast<std::size_t>(experts[row * 2 + k])];
  }
  EXPECT_EQ(counts_of(got.counts), want);
  EXPECT_EQ(std::accumulate(want.begin(), want.begin() + 5, std::int64_t{0}), 0);
}

TEST_P(RouterTest, TakesGivenExperts) {
  const RouterRules rules{.top_k = 2, .normalize = NormalizeTopK::yes};
  const Values logits = random_values(12, 1, 2);
  const Tensor experts = put_ids({3, 0, 1, 2, 2, 3}).reshaped({3, 2}), weights = empty({3, 2}),
               counts = ex_.tensor({1, 4}, DType::i64), probabilities = empty({3, 4});
  const auto forward = [&] {
    router_forward(ex_, {.logits = put({3, 4}, logits),
                         .bias = {},
                         .probabilities = probabilities,
                         .experts = experts,
                         .weights = weights,
                         .counts = counts,
                         .rules = rules,
                         .choice = RouterChoice::given});
  };
  forward();
  EXPECT_EQ(ids_of(experts), (Ids{3, 0, 1, 2, 2, 3}));
  EXPECT_EQ(counts_of(counts), (std::vector<std::int64_t>{1, 1, 2, 2}));
  Values want;
  for (std::size_t row = 0; row < 3; ++row) {
    const Ids chosen{experts.data<std::int32_t>()[row * 2], experts.data<std::int32_t>()[row * 2 + 1]};
    const Values w = weights_of(rules, logits, row * 4, scores_of(rules, logits, row * 4, 4), chosen);
    want.insert(want.end(), w.begin(), w.end());
  }
  expect_near(weights, want, "weights");
  experts.data<std::int32_t>()[3] = 4;
  EXPECT_EQ(error_text(forward), "[router] experts[1, 1] = 4: must be in 0 .. 3");
}

TEST_P(RouterTest, BackwardEqualsDifferences) {
  for (const RoutedCase& c : all_cases()) {
    if (c.tokens > 25) continue;
    SCOPED_TRACE(::testing::Message() << c.tokens << " x " << c.experts << ", top " << c.rules.top_k << ", score "
                                      << static_cast<int>(c.rules.score) << static_cast<int>(c.rules.order)
                                      << static_cast<int>(c.rules.normalize) << c.biased);
    const Values logits = random_values(c.tokens * c.experts, 1, 3);
    const Values bias = c.biased ? random_values(c.experts, 2, 0.3) : Values();
    const auto experts = static_cast<std::size_t>(c.experts);
    const Routed fixed = routed(c.rules, logits, bias, experts);
    const Values dw = random_values(c.tokens * c.rules.top_k, 3), dp = random_values(c.tokens * c.experts, 4);
    const auto loss = [&](const Values& at, bool with_probabilities) {
      double sum = 0;
      for (std::size_t row = 0; row < at.size() / experts; ++row) {
        const auto top_k = static_cast<std::size_t>(c.rules.top_k);
        const Ids chosen(fixed.experts.begin() + static_cast<Index>(row * top_k),
                         fixed.experts.begin() + static_cast<Index>((row + 1) * top_k));
        const Values p = scores_of(c.rules, at, row * experts, experts);
        const Values w = weights_of(c.rules, at, row * experts, p, chosen);
        for (std::size_t k = 0; k < top_k; ++k) sum += w[k] * dw[row * top_k + k];
        for (std::size_t e = 0; e < experts && with_probabilities; ++e) sum += p[e] * dp[row * experts + e];
      }
      return sum;
    };
    const Outputs forward = run(c, logits, bias);
    const Tensor in = put({c.tokens, c.experts}, logits), gradient = put({c.tokens, c.rules.top_k}, dw);
    const double tolerance = dtype() == DType::f32 ? 5e-6 : 1e-8;
    for (const bool with_probabilities : {false, true}) {
      const Tensor past = put({c.tokens, c.experts}, dp), out = empty({c.tokens, c.experts});
      RouterBackward args{.logits = in,
                          .probabilities = forward.probabilities,
                          .experts = forward.experts,
                          .d_weights = gradient,
                          .d_probabilities = with_probabilities ? past : Tensor(),
                          .d_logits = out,
                          .rules = c.rules};
      router_backward(ex_, args);
      const Values want = numeric_gradient(logits, [&](const Values& at) { return loss(at, with_probabilities); });
      EXPECT_LT(relative_error(values_of(out), want), tolerance);
      if (!with_probabilities) continue;
      args.d_logits = past;
      router_backward(ex_, args);
      EXPECT_EQ(values_of(past), values_of(out)) << "in place";
    }
  }
}

TEST_P(RouterTest, SameBitsForAnyTeam) {
  const RoutedCase c{.tokens = 700, .experts = 48, .rules = {.top_k = 6, .num_groups = 8, .group_top_k = 3}};
  expect_same_bits_for_any_team([&] {
    const Outputs out = run(c, random_values(c.tokens * c.experts, 1, 3), random_values(c.experts, 2, 0.1));
    const Tensor d = empty({c.tokens, c.experts});
    router_backward(ex_, {.logits = out.probabilities,
                          .probabilities = out.probabilities,
                          .experts = out.experts,
                          .d_weights = out.weights,
                          .d_probabilities = {},
                          .d_logits = d,
                          .rules = c.rules});
    Values all = values_of(out.weights);
    for (const Values& more : {values_of(out.probabilities), values_of(d)})
      all.insert(all.end(), more.begin(), more.end());
    for (const std::int32_t e : ids_of(out.experts)) all.push_back(e);
    return all;
  });
}

TEST_P(RouterTest, NamesWhatDoesNotFit) {
  const auto error = [&](const RouterRules& rules, Index experts = 4, Index runs = 1, const TokenRuns& of = {}) {
    return error_text([&] { run({3, experts, rules}, random_values(3 * experts, 1), {}, of, runs); });
  };
  EXPECT_EQ(error({.top_k = 0}), "[router.top_k] = 0: must be in 1 .. 4");
  EXPECT_EQ(error({.top_k = 5}), "[router.top_k] = 5: must be in 1 .. 4");
  EXPECT_EQ(error({.top_k = 1, .num_groups = 3}),
            "[router.num_groups] = 3: must be at least 1, at most 64, and divide the 4 experts");
  EXPECT_EQ(error({.top_k = 1, .num_groups = 2, .group_top_k = 3}), "[router.group_top_k] = 3: must be in 1 .. 2");
  EXPECT_EQ(error({.top_k = 3, .num_groups = 2, .group_top_k = 1}),
            "[router.top_k] = 3: must be at most 2, the experts of 1 groups");
  EXPECT_EQ(error({.top_k = 1}, 1025), "[router.experts] = 1025: must be in 1 .. 1024");
  EXPECT_EQ(error({.top_k = 1}, 4, 1, {.seq_len = 2, .first_row = 1}),
            "[router.counts] runs = 1: must be at least 2, as 3 rows from row 1 on reach into run 1");
  EXPECT_EQ(error({.top_k = 1}, 4, 1, {.seq_len = -1}),
            "[router.counts] seq_len, first_row = -1, 0: must be at least 0");
  const Tensor half = ex_.tensor({3, 4}, DType::bf16);
  EXPECT_EQ(error_text([&] {
              router_forward(ex_, {.logits = half,
                                   .bias = {},
                                   .probabilities = half,
                                   .experts = half,
                                   .weights = half,
                                   .counts = half,
                                   .rules = {}});
            }),
            "[router.logits] dtype = bf16: must be f32");
  const Tensor wide = empty({3, 4}), narrow = empty({3, 2}), ids = put_ids({0, 1, 2, 3, 0, 1}).reshaped({3, 2});
  EXPECT_EQ(error_text([&] {
              router_backward(ex_, {.logits = wide,
                                    .probabilities = wide,
                                    .experts = ids,
                                    .d_weights = wide,
                                    .d_probabilities = {},
                                    .d_logits = wide,
                                    .rules = {.top_k = 2}});
            }),
            "[router_backward.d_weights] shape = [3, 4]: must be [3, 2]");
  EXPECT_EQ(error_text([&] {
              router_backward(ex_, {.logits = wide,
                                    .probabilities = wide,
                                    .experts = ids,
                                    .d_weights = narrow,
                                    .d_probabilities = narrow,
                                    .d_logits = wide,
                                    .rules = {.top_k = 2}});
            }),
            "[router_backward.d_probabilities] shape = [3, 2]: must be [3, 4]");
}

// exp(-logit) is then infinite, and every score 0: 0 / 0 without the guard of the sum.
TEST_P(RouterTest, SigmoidScoresThatAllUnderflowWeighNothing) {
  const Index tokens = 3, experts = 5;
  for (const NormalizeTopK normalize : {NormalizeTopK::no, NormalizeTopK::yes}) {
    const RouterRules rules{.top_k = 2, .score = RouterScore::sigmoid, .normalize = normalize, .scale = 2.5};
    const Values logits(static_cast<std::size_t>(tokens * experts), -1000.0);
    const Outputs out = run({tokens, experts, rules}, logits, {});
    EXPECT_EQ(values_of(out.probabilities), Values(15, 0.0));
    EXPECT_EQ(ids_of(out.experts), (Ids{0, 1, 0, 1, 0, 1}));
    EXPECT_EQ(values_of(out.weights), Values(6, 0.0));
    const Tensor d_logits = empty({tokens, experts});
    router_backward(ex_, {.logits = put({tokens, experts}, logits),
                          .probabilities = out.probabilities,
                          .experts = out.experts,
                          .d_weights = put({tokens, 2}, random_values(tokens * 2, 1)),
                          .d_probabilities = {},
                          .d_logits = d_logits,
                          .rules = rules});
    for (const double d : values_of(d_logits)) EXPECT_EQ(d, 0);
  }
}

TEST_P(RouterTest, SkewLowersTheLogitsOfLaterExperts) {
  for (const auto& [tokens, experts] : {std::pair<Index, Index>{0, 3}, {1, 1}, {300, 7}, {5, kMaxRouterExperts}}) {
    const Values before = random_values(tokens * experts, 1);
    for (const double skew : {0.0, 0.7, 40.0}) {
      const Tensor logits = put({tokens, experts}, before);
      skew_logits(ex_, logits, skew);
      Values want = before;
      for (std::size_t i = 0; i < want.size(); ++i)
        want[i] -= skew * std::log(1.0 + static_cast<double>(i % static_cast<std::size_t>(experts)));
      expect_near(logits, want, "logits");
    }
  }
  const Tensor half = ex_.tensor({3, 4}, DType::bf16), logits = empty({3, 4});
  EXPECT_EQ(error_text([&] { skew_logits(ex_, half, 1); }), "[skew_logits.logits] dtype = bf16: must be f32");
  EXPECT_EQ(error_text([&] { skew_logits(ex_, logits, std::nan("")); }),
            "[skew_logits.skew] skew = nan: must be finite");
}

}  // namespace
}  // namespace megalith::ops
