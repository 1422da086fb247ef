#include "megalith/ops/router_losses.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

using Counts = std::vector<std::int64_t>;

/// p, or p / sum_e p.
Values shares(const Values& p, RouterScore score, std::size_t experts) {
  Values out = p;
  if (score == RouterScore::softmax) return out;
  for (std::size_t begin = 0; begin < p.size(); begin += experts) {
    double sum = 0;
    for (std::size_t e = 0; e < experts; ++e) sum += p[begin + e];
    for (std::size_t e = 0; e < experts; ++e) out[begin + e] /= sum;
  }
  return out;
}

Values sums_of(const Values& p, RouterScore score, std::size_t experts, const TokenRuns& runs, std::size_t count) {
  const Values share = shares(p, score, experts);
  Values sums(count * experts, 0.0);
  for (std::size_t i = 0; i < p.size(); ++i)
    sums[static_cast<std::size_t>(runs.of(static_cast<Index>(i / experts))) * experts + i % experts] += share[i];
  return sums;
}

double load_loss_of(const Counts& counts, const Values& sums, std::size_t experts, const LoadLossFactors& factors) {
  double loss = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const double f = static_cast<double>(counts[i]) / (static_cast<double>(factors.top_k) * factors.counted_tokens);
    loss += factors.weight * static_cast<double>(experts) * f * sums[i] / factors.tokens;
  }
  return loss;
}

double z_loss_of(const Values& logits, std::size_t experts, double weight) {
  double loss = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += experts) {
    double sum = 0;
    for (std::size_t e = 0; e < experts; ++e) sum += std::exp(logits[begin + e]);
    loss += weight * std::pow(std::log(sum), 2);
  }
  return loss;
}

Values positive(Index count, std::uint32_t seed) {
  Values values = random_values(count, seed);
  for (double& value : values) value = static_cast<float>(0.5 + 0.45 * value);
  return values;
}
Counts some_counts(std::size_t count) {
  Counts counts(count);
  for (std::size_t i = 0; i < count; ++i) counts[i] = static_cast<std::int64_t>(i * 7 % 11);
  return counts;
}

struct LossCase {
  Index tokens, experts;
  TokenRuns runs;
  Index num_runs;
};
// One run, whole ones, runs that begin and end outside, a run without a row here, more rows than a part has.
const LossCase kLossCases[] = {{0, 4, {}, 1},
                               {7, 3, {}, 1},
                               {12, 5, {.seq_len = 4}, 3},
                               {9, 40, {.seq_len = 4, .first_row = 6}, 5},
                               {700, 6, {.seq_len = 600, .first_row = 100}, 2},
                               {1100, 70, {}, 1}};

class RouterLossesTest : public OpTest {
 protected:
  Tensor put_counts(const Shape& shape, const Counts& counts) {
    const Tensor tensor = ex_.tensor(shape, DType::i64);
    std::copy(counts.begin(), counts.end(), tensor.data<std::int64_t>());
    return tensor;
  }
  Tensor put_loss(double value) { return put({1}, {value}, DType::f64); }
};
MEGALITH_OPS_PRECISIONS(RouterLossesTest);

TEST_P(RouterLossesTest, SumsOfProbabilities) {
  for (const LossCase& c : kLossCases) {
    for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
      const Values p = positive(c.tokens * c.experts, 1);
      const Tensor sums = empty({c.num_runs, c.experts});
      sum_probabilities(ex_,
                        {.probabilities = put({c.tokens, c.experts}, p), .sums = sums, .score = score, .runs = c.runs});
      expect_near(sums,
                  sums_of(p, score, static_cast<std::size_t>(c.experts), c.runs, static_cast<std::size_t>(c.num_runs)),
                  "sums");
    }
  }
}

TEST_P(RouterLossesTest, LoadLossAndItsGradient) {
  for (const LossCase& c : kLossCases) {
    if (c.tokens > 100) continue;
    for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
      SCOPED_TRACE(::testing::Message() << c.tokens << " x " << c.experts << ", score " << static_cast<int>(score));
      const auto experts = static_cast<std::size_t>(c.experts), runs = static_cast<std::size_t>(c.num_runs);
      const LoadLossFactors factors{.top_k = 2, .counted_tokens = 20, .tokens = 6, .weight = 0.3};
      const Values p = positive(c.tokens * c.experts, 1);
      const Counts counts = some_counts(runs * experts);
      const Tensor tcounts = put_counts({c.num_runs, c.experts}, counts), loss = put_loss(4);
      const Values sums = sums_of(p, score, experts, c.runs, runs);
      load_loss(ex_, {.counts = tcounts, .sums = put({c.num_runs, c.experts}, sums), .loss = loss, .factors = factors});
      EXPECT_NEAR(values_of(loss)[0], 4 + load_loss_of(counts, sums, experts, factors),
                  GetParam().tolerance * 100 * factors.weight);
      Values want = numeric_gradient(p, [&](const Values& at) {
        return load_loss_of(counts, sums_of(at, score, experts, c.runs, runs), experts, factors);
      });
      for (double& value : want) value *= 0.5;
      const Tensor out = empty({c.tokens, c.experts});
      load_loss_backward(ex_, {.counts = tcounts,
                               .probabilities = put({c.tokens, c.experts}, p),
                               .step_state = put_state({.loss_scale = 0.5}),
                               .d_probabilities = out,
                               .factors = factors,
                               .score = score,
                               .runs = c.runs});
      EXPECT_LT(relative_error(values_of(out), want), dtype() == DType::f32 ? 5e-6 : 1e-8);
    }
  }
}

/// 1 where the load is even, E / K where K experts get all.
TEST_P(RouterLossesTest, AnEvenLoadCostsItsWeight) {
  const LoadLossFactors factors{.top_k = 2, .counted_tokens = 8, .tokens = 8, .weight = 3};
  const auto loss_of = [&](const Counts& counts, const Values& sums) {
    const Tensor loss = put_loss(0);
    load_loss(ex_, {.counts = put_counts({1, 4}, counts), .sums = put({1, 4}, sums), .loss = loss, .factors = factors});
    return values_of(loss)[0];
  };
  EXPECT_DOUBLE_EQ(loss_of({4, 4, 4, 4}, {2, 2, 2, 2}), 3);
  EXPECT_DOUBLE_EQ(loss_of({8, 8, 0, 0}, {4, 4, 0, 0}), 6);
}

TEST_P(RouterLossesTest, SigmoidScoresThatAllUnderflowAddNothing) {
  const Tensor p = put({2, 3}, {0, 0, 0, 0.25, 0.5, 0.25}), sums = empty({1, 3}), d = empty({2, 3});
  sum_probabilities(ex_, {.probabilities = p, .sums = sums, .score = RouterScore::sigmoid});
  EXPECT_EQ(values_of(sums), (Values{0.25, 0.5, 0.25}));
  load_loss_backward(ex_, {.counts = put_counts({1, 3}, {4, 0, 0}),
                           .probabilities = p,
                           .step_state = put_state({}),
                           .d_probabilities = d,
                           .factors = {},
                           .score = RouterScore::sigmoid});
  const Values gradients = values_of(d);
  // The router's backward multiplies those of the first row by p (1 - p) = 0.
  for (const double value : gradients) EXPECT_TRUE(std::isfinite(value)) << value;
  EXPECT_NEAR(gradients[3], 12 * (1 - 0.25), 1e-5);
  EXPECT_NEAR(gradients[4], 12 * -0.25, 1e-5);
}

TEST_P(RouterLossesTest, ZLossAndItsGradient) {
  for (const LossCase& c : kLossCases) {
    const auto experts = static_cast<std::size_t>(c.experts);
    const Values logits = random_values(c.tokens * c.experts, 1, 4), before = random_values(c.tokens * c.experts, 2);
    const Tensor in = put({c.tokens, c.experts}, logits), loss = put_loss(2);
    z_loss(ex_, {.logits = in, .loss = loss, .weight = 0.25});
    const double want_loss = 2 + z_loss_of(logits, experts, 0.25);
    EXPECT_NEAR(values_of(loss)[0], want_loss, GetParam().tolerance * want_loss);
    if (c.tokens > 100) continue;
    Values want = numeric_gradient(logits, [&](const Values& at) { return z_loss_of(at, experts, 0.25); });
    for (std::size_t i = 0; i < want.size(); ++i) want[i] = before[i] + 0.5 * want[i];
    const Tensor d = put({c.tokens, c.experts}, before);
    z_loss_backward(ex_, {.logits = in, .step_state = put_state({.loss_scale = 0.5}), .d_logits = d, .weight = 0.25});
    EXPECT_LT(relative_error(values_of(d), want), dtype() == DType::f32 ? 5e-6 : 1e-8);
  }
}

TEST_P(RouterLossesTest, SameBitsForAnyTeam) {
  const Index tokens = 1500, experts = 24;
  expect_same_bits_for_any_team([&] {
    const Tensor p = put({tokens, experts}, positive(tokens * experts, 1)), sums = empty({3, experts}),
                 d = empty({tokens, experts}), loss = put_loss(0), state = put_state({}),
                 counts = put_counts({3, experts}, some_counts(static_cast<std::size_t>(3 * experts)));
    const TokenRuns runs{.seq_len = 600, .first_row = 100};
    sum_probabilities(ex_, {.probabilities = p, .sums = sums, .score = RouterScore::sigmoid, .runs = runs});
    load_loss(ex_, {.counts = counts, .sums = sums, .loss = loss, .factors = {}});
    load_loss_backward(ex_, {.counts = counts,
                             .probabilities = p,
                             .step_state = state,
                             .d_probabilities = d,
                             .factors = {},
                             .score = RouterScore::sigmoid,
                             .runs = runs});
    z_loss(ex_, {.logits = p, .loss = loss});
    z_loss_backward(ex_, {.logits = p, .step_state = state, .d_logits = d});
    Values all = values_of(sums);
    for (const Values& more : {values_of(d), values_of(loss)}) all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

TEST_P(RouterLossesTest, NamesWhatDoesNotFit) {
  const Tensor p = empty({6, 4}), sums = empty({2, 4}), loss = put_loss(0), state = put_state({}),
               counts = put_counts({2, 4}, Counts(8));
  EXPECT_EQ(error_text([&] {
              sum_probabilities(ex_, {.probabilities = p, .sums = sums, .runs = {.seq_len = 2, .first_row = 1}});
            }),
            "[sum_probabilities.sums] runs = 2: must be at least 4, as 6 rows from row 1 on reach into run 3");
  EXPECT_EQ(error_text([&] { load_loss(ex_, {.counts = sums, .sums = sums, .loss = loss, .factors = {}}); }),
            dtype() == DType::f32 ? "[load_loss.counts] dtype = f32: must be i64"
                                  : "[load_loss.counts] dtype = f64: must be i64");
  EXPECT_EQ(error_text([&] {
              load_loss(ex_, {.counts = counts, .sums = sums, .loss = loss, .factors = {.counted_tokens = 0}});
            }),
            "[load_loss] top_k, counted_tokens, tokens = 1, 0, 1: must be above 0");
  EXPECT_EQ(error_text([&] {
              load_loss_backward(ex_, {.counts = counts,
                                       .probabilities = p,
                                       .step_state = state,
                                       .d_probabilities = sums,
                                       .factors = {},
                                       .runs = {.seq_len = 3}});
            }),
            "[load_loss_backward.d_probabilities] shape = [2, 4]: must be [6, 4]");
  EXPECT_EQ(error_text([&] { z_loss(ex_, {.logits = p, .loss = sums}); }), "[z_loss.loss] shape = [2, 4]: must be [1]");
  EXPECT_EQ(error_text([&] { z_loss_backward(ex_, {.logits = p, .step_state = state, .d_logits = sums}); }),
            "[z_loss_backward.d_logits] shape = [2, 4]: must be [6, 4]");
}

}  // namespace
}  // namespace megalith::ops
