#include "megalith/ops/swiglu.h"

#include <cmath>
#include <limits>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

struct Sizes {
  Index rows, units;
};
constexpr Sizes kSizes[] = {{0, 5}, {1, 1}, {1, 3}, {5, 8}, {3, 37}, {261, 96}};

Values reference(const Values& gate_up) {
  Values y;
  for (std::size_t i = 0; i < gate_up.size(); i += 2)
    y.push_back(gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[i + 1]);
  return y;
}

class SwigluTest : public OpTest {};
MEGALITH_OPS_PRECISIONS(SwigluTest);

TEST_P(SwigluTest, Forward) {
  for (const auto [rows, units] : kSizes) {
    const Values gate_up = random_values(rows * units * 2, 1, 6);
    const Tensor y = empty({rows, units});
    swiglu(ex_, {.gate_up = put({rows, 2 * units}, gate_up), .y = y});
    expect_near(y, reference(gate_up), "y");
  }
}

TEST_P(SwigluTest, BackwardEqualsDifferences) {
  for (const auto [rows, units] : kSizes) {
    if (rows > 200) continue;
    const Values gate_up = random_values(rows * units * 2, 1, 4), dy = random_values(rows * units, 2);
    const Values want = numeric_gradient(gate_up, [&](const Values& at) {
      const Values y = reference(at);
      double sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
      return sum;
    });
    const Tensor in = put({rows, 2 * units}, gate_up), d = put({rows, units}, dy), out = empty({rows, 2 * units});
    swiglu_backward(ex_, {.gate_up = in, .dy = d, .dgate_up = out});
    EXPECT_LT(relative_error(values_of(out), want), dtype() == DType::f32 ? 1e-6 : 1e-8);
    swiglu_backward(ex_, {.gate_up = in, .dy = d, .dgate_up = in});
    EXPECT_EQ(values_of(in), values_of(out)) << "in place";
  }
}

TEST_P(SwigluTest, FarFromZeroNothingOverflows) {
  const Tensor in = put({1, 8}, {-1000, 2, 1000, 2, -80, 3, 80, 3}), y = empty({1, 4}), out = empty({1, 8});
  swiglu(ex_, {.gate_up = in, .y = y});
  const Values got = values_of(y);
  EXPECT_EQ(got[0], 0);
  EXPECT_EQ(got[1], 2000);
  EXPECT_NEAR(got[2], 0, 1e-30);
  EXPECT_EQ(got[3], 240);
  swiglu_backward(ex_, {.gate_up = in, .dy = put({1, 4}, {1, 1, 1, 1}), .dgate_up = out});
  const Values gradient = values_of(out);
  for (const double value : gradient) EXPECT_TRUE(std::isfinite(value));
  EXPECT_EQ(gradient[2], 2);
  EXPECT_EQ(gradient[3], 1000);
}

/// Bits of a unit follow from its own numbers, so that a shard of units has those of the whole.
TEST_P(SwigluTest, AUnitHasTheSameBitsAtAnyPlace) {
  const Values one = random_values(2, 5, 3), d = random_values(1, 6);
  Values row, dys;
  for (int i = 0; i < 45; ++i) {
    row.insert(row.end(), one.begin(), one.end());
    dys.push_back(d[0]);
  }
  const Tensor in = put({1, 90}, row), y = empty({1, 45}), back = empty({1, 90});
  swiglu(ex_, {.gate_up = in, .y = y});
  swiglu_backward(ex_, {.gate_up = in, .dy = put({1, 45}, dys), .dgate_up = back});
  const Values got = values_of(y), gradient = values_of(back);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i], got[0]);
    EXPECT_EQ(gradient[2 * i], gradient[0]);
    EXPECT_EQ(gradient[2 * i + 1], gradient[1]);
  }
}

TEST_P(SwigluTest, SameBitsForAnyTeam) {
  const Index rows = 300, units = 71;
  expect_same_bits_for_any_team([&] {
    const Tensor in = put({rows, 2 * units}, random_values(rows * units * 2, 1, 4)), y = empty({rows, units});
    swiglu(ex_, {.gate_up = in, .y = y});
    swiglu_backward(ex_, {.gate_up = in, .dy = y, .dgate_up = in});
    Values all = values_of(y);
    const Values more = values_of(in);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

TEST_P(SwigluTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor wide = empty({3, 8}), narrow = empty({3, 4});
  EXPECT_EQ(error_text([&] { swiglu(ex_, {.gate_up = narrow, .y = narrow}); }),
            "[swiglu.gate_up] shape = [3, 4]: must be [3, 8]");
  EXPECT_EQ(error_text([&] { swiglu_backward(ex_, {.gate_up = wide, .dy = narrow, .dgate_up = narrow}); }),
            "[swiglu_backward.dgate_up] shape = [3, 4]: must be [3, 8]");
  const Tensor ids = ex_.tensor({3, 8}, DType::i32);
  EXPECT_EQ(error_text([&] { swiglu(ex_, {.gate_up = ids, .y = narrow}); }),
            "[swiglu] dtype = i32: needs f64, f32, bf16 or f16 on the CPU");
}

}  // namespace
}  // namespace megalith::ops
