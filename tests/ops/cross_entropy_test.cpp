#include "megalith/ops/cross_entropy.h"

#include <cmath>
#include <limits>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

class CrossEntropyTest : public OpTest {
 protected:
  /// One rank's share of a vocabulary in `parts` equal shards; the reductions between the steps are done here.
  struct Result {
    Values loss, gradient;  // [T], [T, V]
    double loss_sum = 0;
  };
  Result run(const Values& logits, const std::vector<std::int32_t>& targets, Index columns, Index parts,
             Index vocab_size, double loss_scale) {
    const auto tokens = static_cast<Index>(targets.size());
    const Index held = columns / parts;
    const Tensor t_targets = put_ids(targets), state = put_state({.loss_scale = loss_scale});
    std::vector<Tensor> z, sums;
    Values max(targets.size(), -std::numeric_limits<double>::infinity()), total(2 * targets.size(), 0.0);
    for (Index p = 0; p < parts; ++p) {
      Values part;
      for (Index t = 0; t < tokens; ++t) {
        const auto row = logits.begin() + t * columns + p * held;
        part.insert(part.end(), row, row + held);
      }
      z.push_back(put({tokens, held}, part));
      const Tensor row_max = empty({tokens});
      logits_max(ex_, z.back(), row_max, p * held, vocab_size);
      const Values local = values_of(row_max);
      for (std::size_t t = 0; t < max.size(); ++t) max[t] = std::max(max[t], local[t]);
    }
    for (Index p = 0; p < parts; ++p) {
      sums.push_back(empty({2, tokens}));
      logits_sum_exp(ex_, {.logits = z[static_cast<std::size_t>(p)],
                           .row_max = put({tokens}, max),
                           .targets = t_targets,
                           .sums = sums.back(),
                           .first_id = p * held,
                           .vocab_size = vocab_size});
      const Values local = values_of(sums.back());
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += local[i];
    }
    partial_sums_ = values_of(sums[0]);
    max_ = max;
    const Tensor all = put({2, tokens}, total), loss = empty({tokens}), loss_sum = put({1}, {0.5}, DType::f64);
    loss_from_sums(ex_,
                   {.sums = all, .targets = t_targets, .loss = loss, .loss_sum = loss_sum, .vocab_size = vocab_size});
    Result result{values_of(loss), Values(logits.size()), values_of(loss_sum)[0] - 0.5};
    for (Index p = 0; p < parts; ++p) {
      const Tensor& part = z[static_cast<std::size_t>(p)];
      logits_backward(ex_,
                      {.logits = part, .sums = all, .targets = t_targets, .step_state = state, .first_id = p * held});
      const Values local = values_of(part);
      for (Index i = 0; i < tokens * held; ++i) {
        result.gradient[static_cast<std::size_t>(i / held * columns + p * held + i % held)] =
            local[static_cast<std::size_t>(i)];
      }
    }
    return result;
  }
  Values partial_sums_, max_;
};
MEGALITH_OPS_PRECISIONS(CrossEntropyTest);

TEST_P(CrossEntropyTest, WorkedExampleOnTwoShards) {
  const Result got = run({1, 2, 3, 4}, {2}, 4, 2, 4, 1);
  const double tolerance = dtype() == DType::f32 ? 3e-7 : 1e-10;
  EXPECT_EQ(max_[0], 4);
  EXPECT_NEAR(partial_sums_[0], 0.1851223516, tolerance);
  EXPECT_NEAR(got.loss[0], 1.440189699, 4 * tolerance + 5e-10);
  const Values want{0.03205860328, 0.08714431874, -0.7631171819, 0.6439142599};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(got.gradient[i], want[i], tolerance);
  run({3, 4, 1, 2}, {0}, 4, 2, 4, 1);
  EXPECT_NEAR(partial_sums_[0], 1.367879441, 4 * tolerance + 5e-10);
}

TEST_P(CrossEntropyTest, EqualsLoopsAndDifferences) {
  const Index columns = 24, vocab_size = 21;  // three columns of padding
  const std::vector<std::int32_t> targets{0, 20, -1, 7, 13};
  const Values logits = random_values(5 * columns, 1, 8);
  const auto losses = [&](const Values& z) {
    Values loss;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      double sum = 0;
      for (std::size_t v = 0; v < 21; ++v) sum += std::exp(z[t * 24 + v]);
      loss.push_back(targets[t] < 0 ? 0.0 : std::log(sum) - z[t * 24 + static_cast<std::size_t>(targets[t])]);
    }
    return loss;
  };
  const auto total = [&](const Values& z) {
    double sum = 0;
    for (const double loss : losses(z)) sum += loss;
    return sum;
  };
  Values gradient = numeric_gradient(logits, total);
  for (double& value : gradient) value *= 0.25;
  for (const Index parts : {1, 2, 4, 8}) {  // the last of eight holds nothing but padding
    const Result got = run(logits, targets, columns, parts, vocab_size, 0.25);
    EXPECT_LT(relative_error(got.loss, losses(logits)), GetParam().tolerance) << parts;
    EXPECT_NEAR(got.loss_sum, total(logits), 10 * GetParam().tolerance * total(logits)) << parts;
    EXPECT_LT(relative_error(got.gradient, gradient), dtype() == DType::f32 ? 2e-6 : 1e-8) << parts;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      for (std::size_t v = 21; v < 24; ++v) EXPECT_EQ(got.gradient[t * 24 + v], 0);
    }
    for (std::size_t v = 0; v < 24; ++v) EXPECT_EQ(got.gradient[2 * 24 + v], 0);
  }
}

TEST_P(CrossEntropyTest, NoTokens) {
  const Result got = run({}, {}, 8, 2, 8, 1);
  EXPECT_EQ(got.loss_sum, 0);
}

TEST_P(CrossEntropyTest, NaNInTheLogitsReachesTheLoss) {
  EXPECT_TRUE(std::isnan(run({1, NAN, 3, 4}, {2}, 4, 1, 4, 1).loss[0]));
}

TEST_P(CrossEntropyTest, NamesTheTargetOutsideTheVocabulary) {
  const Values logits(8, 0.0);
  EXPECT_EQ(error_text([&] {
              run(logits, {1, 4}, 4, 1, 4, 1);
            }),
            "[cross_entropy] targets[1] = 4: must be in [0, 4), the vocabulary, or -1 for no loss");
  EXPECT_EQ(error_text([&] {
              run(logits, {-2, 0}, 4, 1, 4, 1);
            }),
            "[cross_entropy] targets[0] = -2: must be in [0, 4), the vocabulary, or -1 for no loss");
}

TEST_P(CrossEntropyTest, SameBitsForAnyTeam) {
  std::vector<std::int32_t> targets;
  for (int t = 0; t < 100; ++t) targets.push_back(t * 7 % 500);
  const Values logits = random_values(100 * 500, 1, 8);
  expect_same_bits_for_any_team([&] {
    const Result r = run(logits, targets, 500, 1, 500, 0.01);
    Values all = r.gradient;
    all.insert(all.end(), r.loss.begin(), r.loss.end());
    all.push_back(r.loss_sum);
    return all;
  });
}

TEST_P(CrossEntropyTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor z = empty({3, 4}), t = empty({3}), sums = empty({2, 3}), ids = put_ids({0, 1, 2});
  EXPECT_EQ(error_text([&] { logits_max(ex_, z, empty({4}), 0, 4); }), "[logits_max.row_max] shape = [4]: must be [3]");
  EXPECT_EQ(error_text([&] {
              logits_sum_exp(ex_,
                             {.logits = z, .row_max = t, .targets = ids, .sums = z, .first_id = 0, .vocab_size = 4});
            }),
            "[logits_sum_exp.sums] shape = [3, 4]: must be [2, 3]");
  EXPECT_EQ(error_text([&] {
              loss_from_sums(
                  ex_,
                  {.sums = sums, .targets = ids, .loss = t, .loss_sum = ex_.tensor({1}, DType::f32), .vocab_size = 4});
            }),
            "[loss_from_sums.loss_sum] dtype = f32: must be f64");
}

}  // namespace
}  // namespace megalith::ops
