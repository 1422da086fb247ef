#include <cmath>
#include <string>

#include "megalith/base/philox.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/embedding.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

constexpr double kProbability = 0.3;
constexpr StepState kDropoutState{.step = 5, .first_sample = 3, .loss_scale = 1};

/// What dropout multiplies the global element by, word by word.
double keep(std::uint64_t element) {
  const RandomSite site{.seed = 0x123456789abcdefULL, .step = 5, .site = 77};
  return site.word(element) >= dropout_threshold(kProbability) ? 1 / (1 - kProbability) : 0.0;
}

class DropoutTest : public OpTest {
 protected:
  Dropout dropout(const StepState& state, Index seq_len) {
    return {.probability = kProbability,
            .seed = 0x123456789abcdefULL,
            .site = 77,
            .step_state = put_state(state),
            .seq_len = seq_len};
  }
};
MEGALITH_OPS_PRECISIONS(DropoutTest);

struct DropoutSizes {
  Index batch, seq_len, hidden;
};
// Columns that are no multiple of four: rows then start in the middle of a Philox block.
constexpr DropoutSizes kDropoutSizes[] = {{0, 4, 5}, {1, 1, 1}, {2, 3, 7}, {2, 5, 33}, {1, 2, 1030}};

TEST_P(DropoutTest, BiasDropoutResidual) {
  for (const auto [batch, seq_len, hidden] : kDropoutSizes) {
    const Index rows = batch * seq_len, first = 3 * seq_len * hidden;
    const Values x = random_values(rows * hidden, 1), b = random_values(hidden, 2), r = random_values(rows * hidden, 3);
    Values with_bias = r, without = r, plain = r;
    for (Index i = 0; i < rows * hidden; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double z = x[at] + b[static_cast<std::size_t>(i % hidden)],
                   factor = keep(static_cast<std::uint64_t>(first + i));
      with_bias[at] += z * factor;
      without[at] += x[at] * factor;
      plain[at] += z;
    }
    const Tensor tx = put({rows, hidden}, x), bias = put({hidden}, b), residual = put({rows, hidden}, r),
                 out = empty({rows, hidden});
    bias_dropout_residual(
        ex_, {.x = tx, .bias = bias, .residual = residual, .out = out, .dropout = dropout(kDropoutState, seq_len)});
    expect_near(out, with_bias, "with bias");
    bias_dropout_residual(ex_, {.x = tx, .bias = bias, .residual = residual, .out = out, .dropout = {}});
    expect_near(out, plain, "probability 0");
    bias_dropout_residual(
        ex_, {.x = tx, .bias = {}, .residual = residual, .out = residual, .dropout = dropout(kDropoutState, seq_len)});
    expect_near(residual, without, "without bias, in place");
  }
}

TEST_P(DropoutTest, BackwardDrawsTheSameMask) {
  for (const auto [batch, seq_len, hidden] : kDropoutSizes) {
    const Index rows = batch * seq_len, first = 3 * seq_len * hidden;
    const Values dout = random_values(rows * hidden, 1);
    Values want = dout;
    for (std::size_t i = 0; i < want.size(); ++i) want[i] *= keep(static_cast<std::uint64_t>(first) + i);
    const Tensor td = put({rows, hidden}, dout), dx = empty({rows, hidden});
    dropout_backward(ex_, {.dout = td, .dx = dx, .dropout = {}});
    EXPECT_EQ(values_of(dx), dout);
    dropout_backward(ex_, {.dout = td, .dx = td, .dropout = dropout(kDropoutState, seq_len)});
    expect_near(td, want, "masked");
  }
}

TEST_P(DropoutTest, AddPosition) {
  for (const auto [batch, seq_len, hidden] : kDropoutSizes) {
    const Index rows = batch * seq_len, first = 3 * seq_len * hidden;
    const Values x = random_values(rows * hidden, 1), p = random_values(seq_len * hidden, 2);
    Values want = x;
    for (Index i = 0; i < rows * hidden; ++i) {
      const auto at = static_cast<std::size_t>(i);
      want[at] =
          (x[at] + p[static_cast<std::size_t>(i % (seq_len * hidden))]) * keep(static_cast<std::uint64_t>(first + i));
    }
    const Tensor y = put({rows, hidden}, x);
    add_position(ex_, {.x = y, .position = put({seq_len, hidden}, p), .y = y, .dropout = dropout(kDropoutState, 0)});
    expect_near(y, want, "x + position, dropped");
  }
}

TEST_P(DropoutTest, AShareOfTheRowsDrawsItsShareOfTheMask) {
  const Index batch = 2, seq_len = 5, hidden = 12, rows = batch * seq_len;
  const Values x = random_values(rows * hidden, 1), p = random_values(seq_len * hidden, 2);
  const Tensor whole = put({rows, hidden}, x), position = put({seq_len, hidden}, p);
  Dropout site = dropout(kDropoutState, seq_len);
  const Tensor dx = empty({rows, hidden}), sum = empty({rows, hidden}), placed = empty({rows, hidden});
  const auto run = [&](Index first, Index count) {
    site.first_row = first;
    const Tensor in = whole.rows(first, count);
    dropout_backward(ex_, {.dout = in, .dx = dx.rows(first, count), .dropout = site});
    bias_dropout_residual(ex_, {.x = in, .bias = {}, .residual = in, .out = sum.rows(first, count), .dropout = site});
    add_position(ex_, {.x = in, .position = position, .y = placed.rows(first, count), .dropout = site});
  };
  run(0, rows);
  const Values want[] = {values_of(dx), values_of(sum), values_of(placed)};
  for (const Tensor& result : {dx, sum, placed}) fill(ex_, result, 0);
  for (const auto& [first, count] : {std::pair{0, 3}, {3, 4}, {7, 3}}) run(first, count);  // cuts within the samples
  EXPECT_EQ(values_of(dx), want[0]);
  EXPECT_EQ(values_of(sum), want[1]);
  EXPECT_EQ(values_of(placed), want[2]);
}

TEST_P(DropoutTest, PartOfTheSamplesDrawsItsPartOfTheMask) {
  const Index seq_len = 3, hidden = 11;
  const Values ones(static_cast<std::size_t>(4 * seq_len * hidden), 1.0);
  const Tensor whole = put({4 * seq_len, hidden}, ones),
               part = put({2 * seq_len, hidden}, Values(ones.begin(), ones.begin() + 66));
  dropout_backward(ex_, {.dout = whole, .dx = whole, .dropout = dropout({.step = 5, .first_sample = 8}, seq_len)});
  dropout_backward(ex_, {.dout = part, .dx = part, .dropout = dropout({.step = 5, .first_sample = 10}, seq_len)});
  EXPECT_EQ(values_of(part), values_of(whole.rows(2 * seq_len, 2 * seq_len)));
}

TEST_P(DropoutTest, KeepsTheRightShare) {
  const Index rows = 500, hidden = 401;
  const Tensor x = put({rows, hidden}, Values(static_cast<std::size_t>(rows * hidden), 1.0));
  dropout_backward(ex_, {.dout = x, .dx = x, .dropout = dropout(kDropoutState, rows)});
  double kept = 0;
  const double scale = dtype() == DType::f32 ? static_cast<float>(1 / (1 - kProbability)) : 1 / (1 - kProbability);
  for (const double value : values_of(x)) {
    ASSERT_TRUE(value == 0 || value == scale) << value;
    kept += value != 0 ? 1 : 0;
  }
  const double count = static_cast<double>(rows * hidden);
  EXPECT_NEAR(kept / count, 1 - kProbability, 3 * std::sqrt(kProbability * (1 - kProbability) / count));
}

TEST_P(DropoutTest, SameBitsForAnyTeam) {
  const Index rows = 600, hidden = 77;
  expect_same_bits_for_any_team([&] {
    const Tensor x = put({rows, hidden}, random_values(rows * hidden, 1));
    bias_dropout_residual(ex_,
                          {.x = x, .bias = {}, .residual = x, .out = x, .dropout = dropout(kDropoutState, rows / 2)});
    dropout_backward(ex_, {.dout = x, .dx = x, .dropout = dropout(kDropoutState, rows / 2)});
    return values_of(x);
  });
}

TEST_P(DropoutTest, RefusesWhatItCannotNumber) {
  const Tensor x = empty({6, 4});
  EXPECT_EQ(error_text([&] { dropout_backward(ex_, {.dout = x, .dx = x, .dropout = dropout(kDropoutState, 0)}); }),
            "[dropout_backward.dropout.seq_len] = 0: must be at least 1: it is the number of rows of one sample, from "
            "which the random numbers follow");
  EXPECT_EQ(
      error_text([&] { dropout_backward(ex_, {.dout = x, .dx = x, .dropout = {.probability = 1, .step_state = {}}}); }),
      "[dropout_backward.dropout.probability] = 1: must be in [0, 1)");
  EXPECT_EQ(error_text([&] {
              dropout_backward(ex_,
                               {.dout = x, .dx = x, .dropout = {.probability = 0.5, .step_state = {}, .seq_len = 3}});
            }),
            "[dropout_backward.dropout.step_state] there is no tensor: must have shape [" +
                std::to_string(sizeof(StepState)) + "]");
}

}  // namespace
}  // namespace megalith::ops
