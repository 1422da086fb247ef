#include <cmath>

#include "megalith/ops/elementwise.h"
#include "megalith/ops/norm.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

struct RmsNormSizes {
  Index rows, columns;
};
constexpr RmsNormSizes kRmsNormSizes[] = {{0, 5}, {1, 3}, {5, 8}, {3, 37}, {261, 96}};

struct RmsNormReference {
  Values y, rstd;
};
RmsNormReference normalised(const Values& x, const Values& gamma, Index columns, double eps = 1e-5) {
  RmsNormReference out;
  for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(columns)) {
    double squares = 0;
    for (std::size_t c = 0; c < gamma.size(); ++c) squares += x[begin + c] * x[begin + c];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + eps);
    for (std::size_t c = 0; c < gamma.size(); ++c) out.y.push_back(x[begin + c] * rstd * gamma[c]);
    out.rstd.push_back(rstd);
  }
  return out;
}

class RmsNormTest : public OpTest {};
MEGALITH_OPS_PRECISIONS(RmsNormTest);

TEST_P(RmsNormTest, Forward) {
  for (const double eps : {1e-5, 0.5}) {
    for (const auto [rows, columns] : kRmsNormSizes) {
      const Values x = random_values(rows * columns, 1, 4), gamma = random_values(columns, 2);
      const RmsNormReference want = normalised(x, gamma, columns, eps);
      const Tensor y = empty({rows, columns}), rstd = empty({rows});
      norm_forward(ex_,
                   {.x = put({rows, columns}, x), .gamma = put({columns}, gamma), .y = y, .rstd = rstd, .eps = eps});
      expect_near(y, want.y, "y");
      expect_near(rstd, want.rstd, "rstd");
    }
  }
}

TEST_P(RmsNormTest, BackwardEqualsDifferences) {
  for (const auto [rows, columns] : {RmsNormSizes{1, 3}, RmsNormSizes{3, 19}, RmsNormSizes{5, 8}}) {
    const Values x = random_values(rows * columns, 1, 2), gamma = random_values(columns, 2);
    const Values dy = random_values(rows * columns, 4), residual = random_values(rows * columns, 5);
    const Index width = columns;
    Values dx = numeric_gradient(x, [&](const Values& at) { return weighted(normalised(at, gamma, width).y, dy); });
    Values dgamma = numeric_gradient(gamma, [&](const Values& at) { return weighted(normalised(x, at, width).y, dy); });
    const Tensor tdy = put({rows, columns}, dy), tx = put({rows, columns}, x), tgamma = put({columns}, gamma);
    const Tensor rstd = put({rows}, normalised(x, gamma, columns).rstd), out = empty({rows, columns});
    const double tolerance = dtype() == DType::f32 ? 1e-5 : 1e-8;  // of differences, and of the rounded f32 statistics
    const Tensor gamma_grad = put({columns}, Values(gamma.size(), 0));
    const auto backward = [&](const Tensor& from, const Tensor& past, const Tensor& to) {
      norm_backward(
          ex_,
          {.dy = from, .x = tx, .gamma = tgamma, .rstd = rstd, .residual = past, .dx = to, .gamma_grad = gamma_grad});
    };
    backward(tdy, {}, out);
    EXPECT_LT(relative_error(values_of(out), dx), tolerance);
    EXPECT_LT(relative_error(values_of(gamma_grad), dgamma), tolerance);
    const Tensor over_dy = put({rows, columns}, dy);
    backward(over_dy, {}, over_dy);
    EXPECT_EQ(values_of(over_dy), values_of(out));
    const Tensor in_place = put({rows, columns}, residual);
    backward(tdy, in_place, in_place);
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += residual[i];
    EXPECT_LT(relative_error(values_of(in_place), dx), tolerance);
    for (double& value : dgamma) value *= 3;  // three times added
    EXPECT_LT(relative_error(values_of(gamma_grad), dgamma), tolerance);
  }
}

TEST_P(RmsNormTest, SumsOfDxAreThoseOfItsRows) {
  for (const auto [rows, columns] : kRmsNormSizes) {
    const Tensor dx = empty({rows, columns}), sums = put({columns}, random_values(columns, 6)),
                 alone = put({columns}, random_values(columns, 6));
    norm_backward(ex_, {.dy = put({rows, columns}, random_values(rows * columns, 1)),
                        .x = put({rows, columns}, random_values(rows * columns, 2)),
                        .gamma = put({columns}, random_values(columns, 3)),
                        .rstd = put({rows}, random_values(rows, 4)),
                        .residual = put({rows, columns}, random_values(rows * columns, 5)),
                        .dx = dx,
                        .gamma_grad = put({columns}, random_values(columns, 7)),
                        .bias_grad = sums});
    bias_backward(ex_, dx, alone);
    EXPECT_EQ(values_of(sums), values_of(alone));
  }
}

TEST_P(RmsNormTest, ResidualFormEqualsItsParts) {
  for (const auto [rows, columns] : kRmsNormSizes) {
    for (const bool has_bias : {true, false}) {
      const Tensor x = put({rows, columns}, random_values(rows * columns, 1)),
                   bias = has_bias ? put({columns}, random_values(columns, 2)) : Tensor();
      const Tensor residual = put({rows, columns}, random_values(rows * columns, 3)),
                   gamma = put({columns}, random_values(columns, 4));
      const Dropout dropout{.probability = 0.25,
                            .seed = 3,
                            .site = 2,
                            .step_state = put_state({.step = 5, .first_sample = 7}),
                            .seq_len = 1};
      const Tensor sum = empty({rows, columns}), y = empty({rows, columns}), rstd = empty({rows});
      bias_dropout_residual(ex_, {.x = x, .bias = bias, .residual = residual, .out = sum, .dropout = dropout});
      norm_forward(ex_, {.x = sum, .gamma = gamma, .y = y, .rstd = rstd});
      const Tensor sum2 = empty({rows, columns}), y2 = empty({rows, columns}), rstd2 = empty({rows});
      residual_norm(ex_, {.x = x,
                          .bias = bias,
                          .residual = residual,
                          .gamma = gamma,
                          .sum = sum2,
                          .y = y2,
                          .rstd = rstd2,
                          .dropout = dropout});
      EXPECT_EQ(values_of(sum2), values_of(sum));
      EXPECT_EQ(values_of(y2), values_of(y));
      EXPECT_EQ(values_of(rstd2), values_of(rstd));
    }
  }
}

TEST_P(RmsNormTest, ResidualLayerNormTakesNoBias) {
  for (const auto [rows, columns] : kRmsNormSizes) {
    const Tensor x = put({rows, columns}, random_values(rows * columns, 1)),
                 gamma = put({columns}, Values(static_cast<std::size_t>(columns), 1.0)),
                 residual = put({rows, columns}, random_values(rows * columns, 3));
    const auto with = [&](const Tensor& bias) {
      const Tensor sum = empty({rows, columns}), y = empty({rows, columns}), mean = empty({rows}), rstd = empty({rows});
      residual_norm(ex_, {.x = x,
                          .bias = bias,
                          .residual = residual,
                          .gamma = gamma,
                          .beta = gamma,
                          .sum = sum,
                          .y = y,
                          .mean = mean,
                          .rstd = rstd,
                          .dropout = {}});
      return std::pair{values_of(sum), values_of(y)};
    };
    EXPECT_EQ(with({}), with(put({columns}, Values(static_cast<std::size_t>(columns), 0.0))));
  }
}

TEST_P(RmsNormTest, SameBitsForAnyTeam) {
  const Index rows = 500, columns = 70;
  expect_same_bits_for_any_team([&] {
    const Tensor x = put({rows, columns}, random_values(rows * columns, 1)),
                 gamma = put({columns}, random_values(columns, 2));
    const Tensor y = empty({rows, columns}), rstd = empty({rows});
    const Tensor gamma_grad = put({columns}, random_values(columns, 3));
    norm_forward(ex_, {.x = x, .gamma = gamma, .y = y, .rstd = rstd});
    norm_backward(ex_,
                  {.dy = y, .x = x, .gamma = gamma, .rstd = rstd, .residual = {}, .dx = y, .gamma_grad = gamma_grad});
    Values all = values_of(y);
    const Values more = values_of(gamma_grad);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

TEST_P(RmsNormTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor x = empty({3, 4}), h = empty({4}), t = empty({3});
  EXPECT_EQ(error_text([&] { norm_forward(ex_, {.x = x, .gamma = t, .y = x, .rstd = t}); }),
            "[norm.gamma] shape = [3]: must be [4]");
  EXPECT_EQ(error_text([&] { norm_forward(ex_, {.x = x, .gamma = h, .y = x, .rstd = h}); }),
            "[norm.rstd] shape = [4]: must be [3]");
  const auto residual_error = [&](const Tensor& bias, const Dropout& dropout) {
    return error_text([&] {
      residual_norm(ex_,
                    {.x = x, .bias = bias, .residual = x, .gamma = h, .sum = x, .y = x, .rstd = t, .dropout = dropout});
    });
  };
  EXPECT_EQ(residual_error(t, {}), "[residual_norm.bias] shape = [3]: must be [4]");
  EXPECT_EQ(residual_error({}, {.probability = 1, .step_state = {}}),
            "[residual_norm.dropout.probability] = 1: must be in [0, 1)");
}

}  // namespace
}  // namespace megalith::ops
