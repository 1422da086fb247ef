#include "megalith/ops/norm.h"

#include <cmath>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

struct NormSizes {
  Index rows, columns;
};
constexpr NormSizes kNormSizes[] = {{0, 5}, {1, 3}, {5, 8}, {3, 37}, {261, 96}};

struct NormReference {
  Values y, mean, rstd;
};
NormReference normalised(const Values& x, const Values& gamma, const Values& beta, Index columns) {
  NormReference out;
  for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(columns)) {
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < gamma.size(); ++c) mean += x[begin + c] / static_cast<double>(columns);
    for (std::size_t c = 0; c < gamma.size(); ++c)
      variance += std::pow(x[begin + c] - mean, 2) / static_cast<double>(columns);
    const double rstd = 1 / std::sqrt(variance + 1e-5);
    for (std::size_t c = 0; c < gamma.size(); ++c) out.y.push_back((x[begin + c] - mean) * rstd * gamma[c] + beta[c]);
    out.mean.push_back(mean);
    out.rstd.push_back(rstd);
  }
  return out;
}

class LayerNormTest : public OpTest {};
MEGALITH_OPS_PRECISIONS(LayerNormTest);

TEST_P(LayerNormTest, Forward) {
  for (const auto [rows, columns] : kNormSizes) {
    const Values x = random_values(rows * columns, 1, 4), gamma = random_values(columns, 2),
                 beta = random_values(columns, 3);
    const NormReference want = normalised(x, gamma, beta, columns);
    const Tensor y = empty({rows, columns}), mean = empty({rows}), rstd = empty({rows});
    layer_norm_forward(ex_, {.x = put({rows, columns}, x),
                             .gamma = put({columns}, gamma),
                             .beta = put({columns}, beta),
                             .y = y,
                             .mean = mean,
                             .rstd = rstd});
    expect_near(y, want.y, "y");
    expect_near(mean, want.mean, "mean");
    expect_near(rstd, want.rstd, "rstd");
  }
}

TEST_P(LayerNormTest, LargeMeanDoesNotCancel) {
  const Index columns = 64;
  Values x = random_values(columns, 1);
  for (double& value : x) value = static_cast<float>(value + 1000);
  const Values ones(64, 1.0), zeros(64, 0.0);
  const Tensor y = empty({1, columns}), mean = empty({1}), rstd = empty({1});
  layer_norm_forward(ex_, {.x = put({1, columns}, x),
                           .gamma = put({columns}, ones),
                           .beta = put({columns}, zeros),
                           .y = y,
                           .mean = mean,
                           .rstd = rstd});
  // The mean itself is rounded to 6e-5 in f32; E[x^2] - E[x]^2 would have lost everything.
  EXPECT_LT(relative_error(values_of(y), normalised(x, ones, zeros, columns).y), dtype() == DType::f32 ? 1e-4 : 1e-12);
}

TEST_P(LayerNormTest, BackwardEqualsDifferences) {
  for (const auto [rows, columns] : {NormSizes{1, 3}, NormSizes{3, 19}, NormSizes{5, 8}}) {
    const Values x = random_values(rows * columns, 1, 2), gamma = random_values(columns, 2),
                 beta = random_values(columns, 3);
    const Values dy = random_values(rows * columns, 4), residual = random_values(rows * columns, 5);
    const Index width = columns;
    Values dx =
        numeric_gradient(x, [&](const Values& at) { return weighted(normalised(at, gamma, beta, width).y, dy); });
    Values dgamma =
        numeric_gradient(gamma, [&](const Values& at) { return weighted(normalised(x, at, beta, width).y, dy); });
    Values dbeta =
        numeric_gradient(beta, [&](const Values& at) { return weighted(normalised(x, gamma, at, width).y, dy); });
    const NormReference forward = normalised(x, gamma, beta, columns);
    const Tensor tdy = put({rows, columns}, dy), tx = put({rows, columns}, x), mean = put({rows}, forward.mean);
    const Tensor rstd = put({rows}, forward.rstd), tgamma = put({columns}, gamma), out = empty({rows, columns});
    const double tolerance = dtype() == DType::f32 ? 1e-5 : 1e-8;  // of differences, and of the rounded f32 statistics
    const Tensor gamma_grad = put({columns}, Values(gamma.size(), 0)),
                 beta_grad = put({columns}, Values(gamma.size(), 0));
    const auto backward = [&](const Tensor& from, const Tensor& past, const Tensor& to) {
      layer_norm_backward(ex_, {.dy = from,
                                .x = tx,
                                .gamma = tgamma,
                                .mean = mean,
                                .rstd = rstd,
                                .residual = past,
                                .dx = to,
                                .gamma_grad = gamma_grad,
                                .beta_grad = beta_grad});
    };
    backward(tdy, {}, out);
    EXPECT_LT(relative_error(values_of(out), dx), tolerance);
    EXPECT_LT(relative_error(values_of(gamma_grad), dgamma), tolerance);
    EXPECT_LT(relative_error(values_of(beta_grad), dbeta), tolerance);
    const Tensor over_dy = put({rows, columns}, dy);
    backward(over_dy, {}, over_dy);
    EXPECT_EQ(values_of(over_dy), values_of(out));
    const Tensor in_place = put({rows, columns}, residual);
    backward(tdy, in_place, in_place);
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += residual[i];
    EXPECT_LT(relative_error(values_of(in_place), dx), tolerance);
    for (Values* grad : {&dgamma, &dbeta}) {
      for (double& value : *grad) value *= 3;  // three times added
    }
    EXPECT_LT(relative_error(values_of(gamma_grad), dgamma), tolerance);
    EXPECT_LT(relative_error(values_of(beta_grad), dbeta), tolerance);
  }
}

TEST_P(LayerNormTest, ResidualFormEqualsItsParts) {
  for (const auto [rows, columns] : kNormSizes) {
    const Tensor x = put({rows, columns}, random_values(rows * columns, 1)),
                 bias = put({columns}, random_values(columns, 2));
    const Tensor residual = put({rows, columns}, random_values(rows * columns, 3));
    const Tensor gamma = put({columns}, random_values(columns, 4)), beta = put({columns}, random_values(columns, 5));
    const Dropout dropout{.probability = 0.25,
                          .seed = 3,
                          .site = 2,
                          .step_state = put_state({.step = 5, .first_sample = 7}),
                          .seq_len = 1};
    const Tensor sum = empty({rows, columns}), y = empty({rows, columns}), mean = empty({rows}), rstd = empty({rows});
    bias_dropout_residual(ex_, {.x = x, .bias = bias, .residual = residual, .out = sum, .dropout = dropout});
    layer_norm_forward(ex_, {.x = sum, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
    const Tensor sum2 = empty({rows, columns}), y2 = empty({rows, columns}), mean2 = empty({rows}),
                 rstd2 = empty({rows});
    residual_layer_norm(ex_, {.x = x,
                              .bias = bias,
                              .residual = residual,
                              .gamma = gamma,
                              .beta = beta,
                              .sum = sum2,
                              .y = y2,
                              .mean = mean2,
                              .rstd = rstd2,
                              .dropout = dropout});
    EXPECT_EQ(values_of(sum2), values_of(sum));
    EXPECT_EQ(values_of(y2), values_of(y));
    EXPECT_EQ(values_of(mean2), values_of(mean));
    EXPECT_EQ(values_of(rstd2), values_of(rstd));
  }
}

TEST_P(LayerNormTest, WeightGradientsAdd) {
  for (const auto [rows, columns] : kNormSizes) {
    const Values x = random_values(rows * columns, 1), dy = random_values(rows * columns, 2),
                 start = random_values(columns, 3);
    const Values mean = random_values(rows, 4), rstd = random_values(rows, 5);
    Values gamma = start, beta = start;
    for (Index i = 0; i < rows * columns; ++i) {
      const auto at = static_cast<std::size_t>(i), r = static_cast<std::size_t>(i / columns),
                 c = static_cast<std::size_t>(i % columns);
      gamma[c] += dy[at] * (x[at] - mean[r]) * rstd[r];
      beta[c] += dy[at];
    }
    const Tensor gamma_grad = put({columns}, start), beta_grad = put({columns}, start);
    layer_norm_backward(ex_, {.dy = put({rows, columns}, dy),
                              .x = put({rows, columns}, x),
                              .gamma = put({columns}, start),
                              .mean = put({rows}, mean),
                              .rstd = put({rows}, rstd),
                              .residual = {},
                              .dx = empty({rows, columns}),
                              .gamma_grad = gamma_grad,
                              .beta_grad = beta_grad});
    expect_near(gamma_grad, gamma, "gamma");
    expect_near(beta_grad, beta, "beta");
  }
}

TEST_P(LayerNormTest, SameBitsForAnyTeam) {
  const Index rows = 500, columns = 70;
  expect_same_bits_for_any_team([&] {
    const Tensor x = put({rows, columns}, random_values(rows * columns, 1)),
                 gamma = put({columns}, random_values(columns, 2));
    const Tensor y = empty({rows, columns}), mean = empty({rows}), rstd = empty({rows});
    const Tensor gamma_grad = put({columns}, random_values(columns, 3)),
                 beta_grad = put({columns}, random_values(columns, 4));
    layer_norm_forward(ex_, {.x = x, .gamma = gamma, .beta = gamma, .y = y, .mean = mean, .rstd = rstd});
    layer_norm_backward(ex_, {.dy = y,
                              .x = x,
                              .gamma = gamma,
                              .mean = mean,
                              .rstd = rstd,
                              .residual = {},
                              .dx = y,
                              .gamma_grad = gamma_grad,
                              .beta_grad = beta_grad});
    Values all = values_of(y);
    for (const Tensor& tensor : {gamma_grad, beta_grad}) {
      const Values more = values_of(tensor);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  });
}

TEST_P(LayerNormTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor x = empty({3, 4}), h = empty({4}), t = empty({3});
  EXPECT_EQ(error_text([&] { layer_norm_forward(ex_, {.x = x, .gamma = h, .beta = t, .y = x, .mean = t, .rstd = t}); }),
            "[layer_norm.beta] shape = [3]: must be [4]");
  const auto backward_error = [&](const Tensor& residual, const Tensor& bias_grad) {
    return error_text([&] {
      layer_norm_backward(ex_, {.dy = x,
                                .x = x,
                                .gamma = h,
                                .mean = t,
                                .rstd = t,
                                .residual = residual,
                                .dx = x,
                                .gamma_grad = h,
                                .beta_grad = h,
                                .bias_grad = bias_grad});
    });
  };
  EXPECT_EQ(backward_error(h, {}), "[layer_norm_backward.residual] shape = [4]: must be [3, 4]");
  EXPECT_EQ(backward_error(x, t), "[layer_norm_backward.bias_grad] shape = [3]: must be [4]");
}

}  // namespace
}  // namespace megalith::ops
