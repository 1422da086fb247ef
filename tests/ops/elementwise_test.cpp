#include "megalith/ops/elementwise.h"

#include <atomic>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/ops/cpu/parallel.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

struct BiasSizes {
  Index rows, columns;
};
constexpr BiasSizes kBiasSizes[] = {{0, 5}, {1, 1}, {1, 37}, {3, 8}, {7, 19}, {300, 67}};

double gelu(double z, GeluForm form) {
  if (form == GeluForm::erf) return 0.5 * z * std::erfc(-z * M_SQRT1_2);
  return 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
}
constexpr GeluForm kGeluForms[] = {GeluForm::tanh, GeluForm::erf};

class ElementwiseTest : public OpTest {};
MEGALITH_OPS_PRECISIONS(ElementwiseTest);

TEST_P(ElementwiseTest, AddBiasAndItsBackward) {
  for (const auto [rows, columns] : kBiasSizes) {
    const Values x = random_values(rows * columns, 1), b = random_values(columns, 2), start = random_values(columns, 3);
    Values sum = x, grad = start;
    for (Index i = 0; i < rows * columns; ++i) {
      sum[static_cast<std::size_t>(i)] += b[static_cast<std::size_t>(i % columns)];
      grad[static_cast<std::size_t>(i % columns)] += x[static_cast<std::size_t>(i)];
    }
    const Tensor y = put({rows, columns}, x), dy = put({rows, columns}, x), bias_grad = put({columns}, start);
    add_bias(ex_, y, put({columns}, b));
    expect_near(y, sum, "x + bias");
    bias_backward(ex_, dy, bias_grad);
    expect_near(bias_grad, grad, "bias gradient");
  }
}

TEST_P(ElementwiseTest, BiasGelu) {
  for (std::size_t i = 0; i < 2 * std::size(kBiasSizes); ++i) {
    const auto [rows, columns] = kBiasSizes[i / 2];
    const GeluForm form = kGeluForms[i % 2];
    const Values x = random_values(rows * columns, 1, 6), b = random_values(columns, 2);
    Values z = x, y(x.size());
    for (std::size_t at = 0; at < x.size(); ++at) {
      z[at] += b[at % b.size()];
      y[at] = gelu(z[at], form);
    }
    const Tensor tx = put({rows, columns}, x), ty = empty({rows, columns}), again = empty({rows, columns});
    bias_gelu(ex_, {.x = tx, .bias = put({columns}, b), .y = ty, .form = form});
    ops::gelu(ex_, {.z = tx, .y = again, .form = form});
    expect_near(tx, z, "z");
    expect_near(ty, y, "gelu(z)");
    EXPECT_EQ(values_of(again), values_of(ty)) << "gelu(z) again";
  }
}

TEST_P(ElementwiseTest, GeluBackwardEqualsDifferences) {
  for (const GeluForm form : kGeluForms) {
    const Values z = random_values(137, 1, 5), dy = random_values(137, 2);
    Values want(z.size());
    for (std::size_t i = 0; i < z.size(); ++i)
      want[i] = dy[i] * (gelu(z[i] + kStep, form) - gelu(z[i] - kStep, form)) / (2 * kStep);
    const Tensor dz = put({137}, dy);
    gelu_backward(ex_, {.z = put({137}, z), .dy = dz, .dz = dz, .form = form});  // in place
    EXPECT_LT(relative_error(values_of(dz), want), std::max(GetParam().tolerance, 1e-9));
  }
}

TEST_P(ElementwiseTest, TanhAndItsBackwardPass) {
  for (const Index n : {Index{0}, Index{1}, Index{137}, Index{40001}}) {
    // Not near the limits, where 1 - y^2 has few digits of an f32.
    Values x = random_values(n, 1, 1), dy = random_values(n, 2), y = x, dx = x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[i] = std::tanh(x[i]);
      dx[i] = dy[i] * (std::tanh(x[i] + kStep) - std::tanh(x[i] - kStep)) / (2 * kStep);
    }
    const Tensor in_place = put({n}, x), gradient = put({n}, dy);
    tanh_forward(ex_, in_place, in_place);
    expect_near(in_place, y, "tanh");
    tanh_backward(ex_, {.y = in_place, .dy = gradient, .dx = gradient});
    EXPECT_LT(relative_error(values_of(gradient), dx), std::max(GetParam().tolerance, 1e-9));
  }
  const Tensor x = put({3}, {NAN, -INFINITY, INFINITY});
  tanh_forward(ex_, x, x);
  EXPECT_TRUE(std::isnan(values_of(x)[0]));
  EXPECT_EQ(values_of(x)[1], -1);
  EXPECT_EQ(values_of(x)[2], 1);
}

// Nowhere above 2e-7, which is the error of the polynomial and of an f32 exponent.
TEST_P(ElementwiseTest, GeluWithTheErrorFunctionIsExactEverywhere) {
  Values z;
  for (int i = -6000; i <= 6000; ++i) z.push_back(static_cast<float>(i * 1e-3));
  const Tensor y = empty({static_cast<Index>(z.size())});
  ops::gelu(ex_, {.z = put({static_cast<Index>(z.size())}, z), .y = y, .form = GeluForm::erf});
  const Values got = values_of(y);
  const double worst = dtype() == DType::f32 ? 2e-7 : 1e-15;
  for (std::size_t i = 0; i < z.size(); ++i)
    ASSERT_NEAR(got[i], gelu(z[i], GeluForm::erf), worst * std::max(1.0, std::abs(z[i]))) << z[i];
}

TEST_P(ElementwiseTest, GeluFarFromZeroIsExact) {
  const Values z{-1e30, -1e4, -50, 50, 1e4, 1e30}, one(6, 1.0);
  for (const GeluForm form : kGeluForms) {
    const Tensor x = put({1, 6}, z), y = empty({1, 6}), dz = empty({1, 6});
    bias_gelu(ex_, {.x = x, .bias = put({6}, Values(6, 0.0)), .y = y, .form = form});
    gelu_backward(ex_, {.z = x, .dy = put({1, 6}, one), .dz = dz, .form = form});
    EXPECT_EQ(values_of(dz), (Values{0, 0, 0, 1, 1, 1}));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(values_of(y)[i], 0);
    for (std::size_t i = 3; i < 6; ++i) EXPECT_EQ(values_of(y)[i], values_of(x)[i]);
  }
}

TEST_P(ElementwiseTest, AddScaleFillCopy) {
  for (const Index n : {Index{0}, Index{1}, Index{33}, Index{40001}}) {
    const Values a = random_values(n, 1), b = random_values(n, 2);
    Values sum = a, half = a;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum[i] += b[i];
      half[i] *= 0.5;
    }
    const Tensor ta = put({n}, a), out = empty({n}), copied = empty({n}), filled = empty({n});
    add(ex_, ta, put({n}, b), out);
    expect_near(out, sum, "sum");
    copy(ex_, ta, copied);
    EXPECT_EQ(values_of(copied), a);
    scale(ex_, ta, 0.5);
    EXPECT_EQ(values_of(ta), half);
    fill(ex_, filled, 2.5);
    EXPECT_EQ(values_of(filled), Values(a.size(), 2.5));
  }
}

TEST_P(ElementwiseTest, NaNIsNotHidden) {
  for (const GeluForm form : kGeluForms) {
    const Tensor x = put({1, 3}, {NAN, 1, INFINITY}), y = empty({1, 3});
    bias_gelu(ex_, {.x = x, .bias = put({3}, {0, 0, 0}), .y = y, .form = form});
    EXPECT_TRUE(std::isnan(values_of(y)[0]));
    EXPECT_EQ(values_of(y)[2], INFINITY);
  }
}

TEST_P(ElementwiseTest, SameBitsForAnyTeam) {
  const Index rows = 700, columns = 129;
  expect_same_bits_for_any_team([&] {
    const Tensor x = put({rows, columns}, random_values(rows * columns, 1)), y = empty({rows, columns});
    const Tensor bias = put({columns}, random_values(columns, 2)), grad = put({columns}, random_values(columns, 3));
    bias_gelu(ex_, {.x = x, .bias = bias, .y = y});
    gelu_backward(ex_, {.z = x, .dy = y, .dz = y});
    bias_backward(ex_, y, grad);
    Values all = values_of(y);
    const Values sums = values_of(grad);
    all.insert(all.end(), sums.begin(), sums.end());
    return all;
  });
}

TEST_P(ElementwiseTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor x = empty({3, 4}), wrong = empty({3});
  EXPECT_EQ(error_text([&] { add_bias(ex_, x, wrong); }), "[add_bias.bias] shape = [3]: must be [4]");
  EXPECT_EQ(error_text([&] { bias_backward(ex_, x, wrong); }), "[bias_backward.bias_grad] shape = [3]: must be [4]");
  EXPECT_EQ(error_text([&] { bias_gelu(ex_, {.x = x, .bias = empty({4}), .y = wrong}); }),
            "[bias_gelu.y] shape = [3]: must be [3, 4]");
  EXPECT_EQ(error_text([&] { add(ex_, x, wrong, x); }), "[add.b] shape = [3]: must be [3, 4]");
  EXPECT_EQ(error_text([&] { copy(ex_, x, wrong); }), "[copy.to] shape = [3]: must be [3, 4]");
  EXPECT_EQ(error_text([&] { gelu_backward(ex_, {.z = x, .dy = x, .dz = Tensor()}); }),
            "[gelu_backward.dz] there is no tensor: must have shape [3, 4]");
  EXPECT_EQ(error_text([&] { tanh_forward(ex_, x, wrong); }), "[tanh_forward.y] shape = [3]: must be [3, 4]");
  EXPECT_EQ(error_text([&] { tanh_backward(ex_, {.y = x, .dy = wrong, .dx = x}); }),
            "[tanh_backward.dy] shape = [3]: must be [3, 4]");
}

TEST(ParallelFor, ThrowsWhatATaskThrowsWhenAllHaveEnded) {
  std::atomic<int> ended{0};
  const auto run = [&] {
    cpu::parallel_for(100, Index{1} << 20, [&](Index i) {
      ++ended;
      if (i == 37) throw BackendError("task 37");
    });
  };
  EXPECT_EQ(error_text(run), "task 37");
  EXPECT_EQ(ended.load(), 100);
}

}  // namespace
}  // namespace megalith::ops
