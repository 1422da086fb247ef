#include "megalith/ops/norm.h"

#include <cmath>
#include <utility>

#include "megalith/base/str.h"
#include "megalith/runtime/memory_plan.h"

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

enum class NormKind : std::uint8_t { layer, rms };

class LayerNormTest : public OpTest {};
MEGALITH_OPS_PRECISIONS(LayerNormTest);

TEST_P(LayerNormTest, Forward) {
  for (const auto [rows, columns] : kNormSizes) {
    const Values x = random_values(rows * columns, 1, 4), gamma = random_values(columns, 2),
                 beta = random_values(columns, 3);
    const NormReference want = normalised(x, gamma, beta, columns);
    const Tensor y = empty({rows, columns}), mean = empty({rows}), rstd = empty({rows});
    norm_forward(ex_, {.x = put({rows, columns}, x),
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
  norm_forward(ex_, {.x = put({1, columns}, x),
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
      norm_backward(ex_, {.dy = from,
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

/// A gradient that comes as a sum of two is that of the sum, over dy too.
TEST_P(LayerNormTest, BackwardTakesAGradientOfTwoParts) {
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (const auto [rows, columns] : kNormSizes) {
      const bool is_layer = kind == NormKind::layer;
      const Shape shape{rows, columns};
      const Values dy = random_values(rows * columns, 1), more = random_values(rows * columns, 2);
      const Tensor x = put(shape, random_values(rows * columns, 3)), gamma = put({columns}, random_values(columns, 4)),
                   rstd = put({rows}, random_values(rows, 5)), mean = put({rows}, random_values(rows, 6));
      struct Results {
        Values dx, gamma, beta, bias;
      };
      const auto backward = [&](const Tensor& first, const Tensor& second, const Tensor& dx) {
        const Tensor of_gamma = put({columns}, random_values(columns, 7)),
                     of_beta = put({columns}, random_values(columns, 8)),
                     of_bias = put({columns}, random_values(columns, 9));
        norm_backward(ex_, {.dy = first,
                            .x = x,
                            .gamma = gamma,
                            .mean = is_layer ? mean : Tensor(),
                            .rstd = rstd,
                            .residual = {},
                            .more_dy = second,
                            .dx = dx,
                            .gamma_grad = of_gamma,
                            .beta_grad = is_layer ? of_beta : Tensor(),
                            .bias_grad = of_bias});
        return Results{values_of(dx), values_of(of_gamma), values_of(of_beta), values_of(of_bias)};
      };
      const Tensor sum = empty(shape), in_place = put(shape, dy);
      add(ex_, put(shape, dy), put(shape, more), sum);
      const Results want = backward(sum, {}, empty(shape));
      for (const Results& got :
           {backward(put(shape, dy), put(shape, more), empty(shape)), backward(in_place, put(shape, more), in_place)}) {
        EXPECT_EQ(got.dx, want.dx) << rows << " x " << columns;
        EXPECT_EQ(got.gamma, want.gamma);
        EXPECT_EQ(got.beta, want.beta);
        EXPECT_EQ(got.bias, want.bias);
      }
    }
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
    norm_forward(ex_, {.x = sum, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
    const Tensor sum2 = empty({rows, columns}), y2 = empty({rows, columns}), mean2 = empty({rows}),
                 rstd2 = empty({rows});
    residual_norm(ex_, {.x = x,
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
    norm_backward(ex_, {.dy = put({rows, columns}, dy),
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
    norm_forward(ex_, {.x = x, .gamma = gamma, .beta = gamma, .y = y, .mean = mean, .rstd = rstd});
    norm_backward(ex_, {.dy = y,
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

/// A call of `op` with one tensor after the other of another shape fails, and names that tensor.
template <class Args>
void expect_every_shape_checked(Exec& ex, void (*op)(Exec&, const Args&), const char* name, const Args& args,
                                const std::vector<std::pair<const char*, Tensor Args::*>>& tensors) {
  const Tensor wrong = ex.tensor({5, 5}, args.x.dtype());
  for (const auto& [argument, tensor] : tensors) {
    const Shape wanted = (args.*tensor).shape();
    Args spoilt = args;
    spoilt.*tensor = wrong;
    EXPECT_EQ(error_text([&] { op(ex, spoilt); }), str("[", name, ".", argument, "] shape = [5, 5]: must be ", wanted));
    spoilt.*tensor = ex.tensor(wanted, DType::i32);
    EXPECT_EQ(error_text([&] { op(ex, spoilt); }),
              str("[", name, ".", argument, "] dtype = i32: must be ", name_of((args.*tensor).dtype())));
  }
}

TEST_P(LayerNormTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor x = empty({3, 4}), h = empty({4}), t = empty({3});
  using Forward = NormForward;
  expect_every_shape_checked(ex_, norm_forward, "norm", {.x = x, .gamma = h, .beta = h, .y = x, .mean = t, .rstd = t},
                             {{"gamma", &Forward::gamma},
                              {"beta", &Forward::beta},
                              {"y", &Forward::y},
                              {"mean", &Forward::mean},
                              {"rstd", &Forward::rstd}});
  using Residual = ResidualNorm;
  expect_every_shape_checked(
      ex_, residual_norm, "residual_norm",
      {.x = x, .bias = h, .residual = x, .gamma = h, .beta = h, .sum = x, .y = x, .mean = t, .rstd = t, .dropout = {}},
      {{"bias", &Residual::bias},
       {"residual", &Residual::residual},
       {"gamma", &Residual::gamma},
       {"beta", &Residual::beta},
       {"sum", &Residual::sum},
       {"y", &Residual::y},
       {"mean", &Residual::mean},
       {"rstd", &Residual::rstd}});
  using Backward = NormBackward;
  expect_every_shape_checked(ex_, norm_backward, "norm_backward",
                             {.dy = x,
                              .x = x,
                              .gamma = h,
                              .mean = t,
                              .rstd = t,
                              .residual = x,
                              .dx = x,
                              .gamma_grad = h,
                              .beta_grad = h,
                              .bias_grad = h},
                             {{"dy", &Backward::dy},
                              {"gamma", &Backward::gamma},
                              {"mean", &Backward::mean},
                              {"rstd", &Backward::rstd},
                              {"residual", &Backward::residual},
                              {"dx", &Backward::dx},
                              {"gamma_grad", &Backward::gamma_grad},
                              {"beta_grad", &Backward::beta_grad},
                              {"bias_grad", &Backward::bias_grad}});
  const Backward of_two{.dy = x,
                        .x = x,
                        .gamma = h,
                        .mean = t,
                        .rstd = t,
                        .residual = {},
                        .more_dy = x,
                        .dx = x,
                        .gamma_grad = h,
                        .beta_grad = h};
  expect_every_shape_checked(ex_, norm_backward, "norm_backward", of_two, {{"more_dy", &Backward::more_dy}});
  Backward both = of_two;
  both.residual = x;
  EXPECT_EQ(error_text([&] { norm_backward(ex_, both); }),
            "[norm_backward] more_dy, residual: at most one of them can be given");
}

TEST_P(LayerNormTest, HasAMeanAndBetaOrIsAnRmsNorm) {
  const Tensor x = empty({3, 4}), h = empty({4}), t = empty({3});
  const auto forward = [&](const Tensor& beta, const Tensor& mean) {
    return error_text([&] { norm_forward(ex_, {.x = x, .gamma = h, .beta = beta, .y = x, .mean = mean, .rstd = t}); });
  };
  EXPECT_EQ(forward({}, t), "[norm] mean, beta: a layer norm needs both, an RMS norm must have neither");
  EXPECT_EQ(forward(h, {}), forward({}, t));
  EXPECT_EQ(forward({}, {}), "");
  const auto residual = [&](const Tensor& beta, const Tensor& mean) {
    return error_text([&] {
      residual_norm(ex_, {.x = x,
                          .bias = {},
                          .residual = x,
                          .gamma = h,
                          .beta = beta,
                          .sum = x,
                          .y = x,
                          .mean = mean,
                          .rstd = t,
                          .dropout = {}});
    });
  };
  EXPECT_EQ(residual({}, t), "[residual_norm] mean, beta: a layer norm needs both, an RMS norm must have neither");
  EXPECT_EQ(residual(h, {}), residual({}, t));
  const auto backward = [&](const Tensor& beta_grad, const Tensor& mean) {
    return error_text([&] {
      norm_backward(ex_, {.dy = x,
                          .x = x,
                          .gamma = h,
                          .mean = mean,
                          .rstd = t,
                          .residual = {},
                          .dx = x,
                          .gamma_grad = h,
                          .beta_grad = beta_grad});
    });
  };
  EXPECT_EQ(backward({}, t), "[norm_backward] mean, beta_grad: a layer norm needs both, an RMS norm must have neither");
  EXPECT_EQ(backward(h, {}), backward({}, t));
  EXPECT_EQ(backward({}, {}), "");
}

/// Scratch of the backward pass: an array of sums per gradient, for each block of 128 rows on a CPU, for each of 33
/// parts of 8 rows on a GPU. A CPU sums bias_grad in the array of another.
TEST(NormPlan, ScratchFollowsTheDeviceAndTheGradients) {
  const auto scratch = [](Device device, NormKind kind, bool has_bias_grad) {
    Recording recording;
    recording.begin_phase();
    Exec ex(device, recording);
    const auto f32 = [&](const Shape& shape) { return ex.tensor(shape, DType::f32); };
    const Tensor x = f32({261, 96}), h = f32({96}), t = f32({261});
    const bool is_layer = kind == NormKind::layer;
    norm_backward(ex, {.dy = x,
                       .x = x,
                       .gamma = h,
                       .mean = is_layer ? t : Tensor(),
                       .rstd = t,
                       .residual = {},
                       .dx = x,
                       .gamma_grad = h,
                       .beta_grad = is_layer ? h : Tensor(),
                       .bias_grad = has_bias_grad ? h : Tensor()});
    return recording.tensors().back().bytes / (96 * 4);
  };
  EXPECT_EQ(scratch(Device::cpu, NormKind::layer, true), 3 * 2);
  EXPECT_EQ(scratch(Device::cpu, NormKind::rms, true), 3 * 1);
  EXPECT_EQ(scratch(Device::cuda, NormKind::layer, false), 33 * 2);
  EXPECT_EQ(scratch(Device::cuda, NormKind::layer, true), 33 * 3);
  EXPECT_EQ(scratch(Device::cuda, NormKind::rms, false), 33 * 1);
  EXPECT_EQ(scratch(Device::cuda, NormKind::rms, true), 33 * 2);
}

}  // namespace
}  // namespace megalith::ops
