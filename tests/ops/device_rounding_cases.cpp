#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "megalith/ops/elementwise.h"
#include "megalith/ops/init.h"
#include "megalith/ops/norm.h"

#include "tests/ops/device_cases.h"

// Bits: ops that do no more than round, held to the scalar conversions (of zeros and NaNs the value), and ops that do
// the work of two, held to the two.
namespace megalith::ops {
namespace {

using support::Twin;

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

// What cast and fill take, whichever dtype the row is of.
constexpr DType kFloats[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
// Nothing, less than a vector of 16 bytes, one, odd rests, and many blocks of whole vectors.
constexpr Index kLengths[] = {0, 1, 7, 8, 65, 4099, 20008};

/// As the scalar conversions round it.
double rounded_to(DType dtype, double value) {
  return dispatch_float(dtype, "rounded_to", [&]<class T>() { return converted<double>(converted<T>(value)); });
}

/// Numbers of both signs and of exponents from below f16's least to above its largest, every second with a fraction of
/// 11 bits, among which are the halfway cases of 16 bits; then edges.
std::vector<double> numbers_to_round(Index n) {
  constexpr std::array kEdges = {0.0, 65504.0, 65519.0, 65520.0, 0x1p-14, 0x1p-24, 0x1p-25, 0x1.8p-25, kInfinity, kNan};
  const RandomSite site{.seed = 3};
  std::vector<double> numbers(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Philox4 words = site.block(i);
    const double fraction = i % 2 == 0 ? (words[0] >> 21) * 0x1p-11 : words[0] * 0x1p-32 + words[1] * 0x1p-64;
    const double size =
        i % 16 == 15 ? kEdges[i / 16 % kEdges.size()] : std::ldexp(1 + fraction, static_cast<int>(words[2] % 48) - 28);
    numbers[i] = words[3] % 2 == 0 ? size : -size;
  }
  return numbers;
}

void expect_equal(const std::vector<double>& got, const std::vector<double>& want) {
  const auto equal = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  const auto [in_got, in_want] = std::ranges::mismatch(got, want, equal);
  if (in_got == got.end() && in_want == want.end()) return;
  ASSERT_EQ(got.size(), want.size());
  ADD_FAILURE() << "element " << in_got - got.begin() << " is " << *in_got << ", must be " << *in_want;
}

/// n of n + 1 elements are written, from the first on or, at no multiple of 16 bytes, from the second. The other one
/// stays NaN.
TEST_P(DeviceOps, Casts) {
  Exec& ex = t().tested();
  for (const Index n : kLengths) {
    const std::vector<double> numbers = numbers_to_round(n + 1);
    for (const DType from : kFloats) {
      for (const DType to : kFloats) {
        // The CPU rounds f64 to 16 bits by way of f32, a GPU at once: only numbers that f32 holds round alike.
        const DType held = size_of(to) == 2 && from == DType::f64 ? DType::f32 : from;
        std::vector<double> values(numbers.size());
        std::ranges::transform(numbers, values.begin(), [&](double value) { return rounded_to(held, value); });
        Exec host;
        const Tensor wide(values.data(), {n + 1}, DType::f64), rounded = host.tensor({n + 1}, from);
        cast(host, wide, rounded);
        for (const Index first : {0, 1}) {
          SCOPED_TRACE(::testing::Message()
                       << n << " from element " << first << ", " << name_of(from) << " to " << name_of(to));
          const Tensor in = ex.tensor({n + 1}, from), out = ex.tensor({n + 1}, to);
          ex.copy(in.raw(), rounded.raw(), in.bytes());
          cast(ex, in.rows(first, n), out.rows(first, n));
          std::vector<double> want(values.size(), kNan);
          std::transform(values.begin() + first, values.begin() + first + n, want.begin() + first,
                         [&](double value) { return rounded_to(to, value); });
          expect_equal(t().read(out), want);
          t().release();
        }
      }
    }
  }
}

TEST_P(DeviceOps, Fills) {
  for (const Index n : kLengths) {
    for (const DType dtype : kFloats) {
      for (const double value : {0.0, -0.1, 1e5}) {  // of which f16 makes infinity
        for (const Index first : {0, 1}) {
          SCOPED_TRACE(::testing::Message()
                       << n << " from element " << first << " of " << name_of(dtype) << ", " << value);
          const Tensor out = t().tested().tensor({n + 1}, dtype);
          fill(t().tested(), out.rows(first, n), value);
          std::vector<double> want(static_cast<std::size_t>(n + 1), kNan);
          std::fill_n(want.begin() + first, n, rounded_to(dtype, value));
          expect_equal(t().read(out), want);
          t().release();
        }
      }
    }
  }
}

/// So a block that is followed by another gives what one that ends a stage gives, forward and backward.
TEST_P(DeviceOps, WhatNormsDoBesides) {
  struct Size {
    Index rows, columns;
  };
  constexpr Size kNorms[] = {{1, 64}, {3, 70}, {37, 768}, {500, 1001}, {8500, 128}, {9, 5120}, {9, 8200}, {5, 12288}};
  Exec& ex = t().tested();
  const StepState state{.step = 3, .first_sample = 5};
  for (const auto [rows, columns] : kNorms) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
    const Shape matrix{rows, columns};
    const Tensor x = t().in(matrix, 1, 2).on(ex), bias = t().in({columns}, 2).on(ex),
                 residual = t().in(matrix, 3).on(ex), gamma = t().in({columns}, 4).on(ex),
                 beta = t().in({columns}, 5).on(ex), dy = t().in(matrix, 6).on(ex);
    const Tensor mean = t().out_f32({rows}).on(ex), rstd = t().out_f32({rows}).on(ex),
                 mean_of_two = t().out_f32({rows}).on(ex), rstd_of_two = t().out_f32({rows}).on(ex);
    for (const double probability : {0.0, 0.3}) {
      const Dropout dropout{.probability = probability,
                            .seed = 9,
                            .site = 4,
                            .step_state = t().structure(state).on(ex),
                            .seq_len = 1,
                            .first_row = 3};
      const Tensor sum = t().out(matrix).on(ex), y = t().out(matrix).on(ex), sum_of_two = t().out(matrix).on(ex),
                   y_of_two = t().out(matrix).on(ex);
      residual_norm(ex, {.x = x,
                         .bias = bias,
                         .residual = residual,
                         .gamma = gamma,
                         .beta = beta,
                         .sum = sum,
                         .y = y,
                         .mean = mean,
                         .rstd = rstd,
                         .dropout = dropout});
      bias_dropout_residual(ex, {.x = x, .bias = bias, .residual = residual, .out = sum_of_two, .dropout = dropout});
      norm_forward(
          ex, {.x = sum_of_two, .gamma = gamma, .beta = beta, .y = y_of_two, .mean = mean_of_two, .rstd = rstd_of_two});
      expect_equal(t().read(sum), t().read(sum_of_two));
      expect_equal(t().read(y), t().read(y_of_two));
      expect_equal(t().read(mean), t().read(mean_of_two));
      expect_equal(t().read(rstd), t().read(rstd_of_two));
    }
    for (const Tensor& past : {residual, Tensor()}) {
      const auto backward = [&](const Tensor& bias_grad) {
        const NormBackward args{.dy = dy,
                                .x = x,
                                .gamma = gamma,
                                .mean = mean,
                                .rstd = rstd,
                                .residual = past,
                                .dx = t().out(matrix).on(ex),
                                .gamma_grad = t().in_f32({columns}, 7).on(ex),
                                .beta_grad = t().in_f32({columns}, 8).on(ex),
                                .bias_grad = bias_grad};
        norm_backward(ex, args);
        return args;
      };
      const NormBackward both = backward(t().in_f32({columns}, 9).on(ex)), alone = backward({});
      const Tensor sums = t().in_f32({columns}, 9).on(ex);
      bias_backward(ex, alone.dx, sums);
      expect_equal(t().read(both.dx), t().read(alone.dx));
      expect_equal(t().read(both.gamma_grad), t().read(alone.gamma_grad));
      expect_equal(t().read(both.beta_grad), t().read(alone.beta_grad));
      expect_equal(t().read(both.bias_grad), t().read(sums));
    }
    t().release();
  }
}

struct NormGradientSize {
  Index rows, columns;
};
// Nothing, odd sizes, one row, whole vectors, and wide rows.
constexpr NormGradientSize kNormGradientSizes[] = {{0, 8},      {3, 7},     {1, 768},   {33, 257},  {200, 768},
                                                   {130, 1536}, {33, 5120}, {9, 16383}, {5, 16384}, {9001, 264}};

/// Where the gradient of y is a sum of two, both norms have the bits of a sum that is stored first.
TEST_P(DeviceOps, NormsWithAGradientOfTwoParts) {
  Exec& ex = t().tested();
  for (const auto [rows, columns] : kNormGradientSizes) {
    const Shape matrix{rows, columns};
    const Tensor x = t().in(matrix, 1, 2).tested, gamma = t().in({columns}, 2).tested, dy = t().in(matrix, 4).tested,
                 more = t().in(matrix, 5).tested, sum = ex.tensor(matrix, t().dtype());
    add(ex, dy, more, sum);
    for (const bool is_layer : {true, false}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << columns << ", layer norm " << is_layer);
      const Tensor y = t().out(matrix).tested, rstd = t().out_f32({rows}).tested,
                   mean = is_layer ? t().out_f32({rows}).tested : Tensor(),
                   beta = is_layer ? t().in({columns}, 3).tested : Tensor();
      norm_forward(ex, {.x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd});
      const auto backward = [&](const Tensor& of_y, const Tensor& more_of_y) {
        const NormBackward args{.dy = of_y,
                                .x = x,
                                .gamma = gamma,
                                .mean = mean,
                                .rstd = rstd,
                                .residual = {},
                                .more_dy = more_of_y,
                                .dx = t().out(matrix).tested,
                                .gamma_grad = t().in_f32({columns}, 7).tested,
                                .beta_grad = is_layer ? t().in_f32({columns}, 8).tested : Tensor(),
                                .bias_grad = t().in_f32({columns}, 9).tested};
        norm_backward(ex, args);
        return args;
      };
      const NormBackward want = backward(sum, {}), got = backward(dy, more);
      expect_equal(t().read(got.dx), t().read(want.dx));
      expect_equal(t().read(got.gamma_grad), t().read(want.gamma_grad));
      if (is_layer) expect_equal(t().read(got.beta_grad), t().read(want.beta_grad));
      expect_equal(t().read(got.bias_grad), t().read(want.bias_grad));
    }
    t().release();
  }
}

}  // namespace
}  // namespace megalith::ops
