#include "megalith/ops/scaled_matmul.h"

#include "megalith/ops/init.h"

#include "tests/ops/fp8_reference.h"
#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

struct ScaledSizes {
  Index m, n, k;
};
constexpr ScaledSizes kScaledSizes[] = {{1, 1, 1},     {0, 4, 3},     {4, 0, 3},       {5, 3, 0},       {13, 17, 19},
                                        {130, 5, 128}, {2, 140, 300}, {128, 256, 384}, {100, 129, 257}, {257, 33, 390}};

struct ScaledKind {
  ScaleBlocks a, b;
};
constexpr ScaledKind kScaledKinds[] = {{ScaleBlocks::vectors, ScaleBlocks::squares},
                                       {ScaleBlocks::vectors, ScaleBlocks::vectors},
                                       {ScaleBlocks::squares, ScaleBlocks::vectors}};

/// Sizes of rows differ by powers of two, so that a scale of another block is seen.
Operand scaled_operand(Exec& ex, Index rows, Index depth, ScaleBlocks blocks, std::uint32_t seed) {
  Values values = random_values(rows * depth, seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Index r = static_cast<Index>(i) / depth, k = static_cast<Index>(i) % depth;
    values[i] *= std::ldexp(1.0, static_cast<int>((r / 3 + 2 * (k / 128)) % 5));
  }
  const Tensor wide(values.data(), {rows, depth}, DType::f64), x = ex.tensor({rows, depth}, DType::f32);
  cast(ex, wide, x);
  Operand operand = make_operand(ex, rows, depth, blocks);
  quantise(ex, {.x = x, .straight = operand});
  return operand;
}

Values product_of(Exec& ex, const Operand& a, const Operand& b, const Values& onto) {
  const Index m = a.values.dim(0), n = b.values.dim(0), k = a.values.dim(1);
  const Values x = numbers_of(read_operand(ex, a), m, k, a.blocks), y = numbers_of(read_operand(ex, b), n, k, b.blocks);
  Values c = onto;
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      for (Index l = 0; l < k; ++l)
        c[static_cast<std::size_t>(i * n + j)] +=
            x[static_cast<std::size_t>(i * k + l)] * y[static_cast<std::size_t>(j * k + l)];
    }
  }
  return c;
}

TEST(ScaledMatmul, EqualsThreeLoops) {
  Exec ex;
  ex.poison_new_tensors();
  for (const auto [m, n, k] : kScaledSizes) {
    for (const ScaledKind& kind : kScaledKinds) {
      SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << ", squares "
                                      << (kind.a == ScaleBlocks::squares) << (kind.b == ScaleBlocks::squares));
      const Operand a = scaled_operand(ex, m, k, kind.a, 1), b = scaled_operand(ex, n, k, kind.b, 2);
      const Values before = random_values(m * n, 3), zeros(before.size(), 0.0);
      const Values want = product_of(ex, a, b, zeros), want_sum = product_of(ex, a, b, before);
      for (const auto [dtype, tolerance] : {Precision{DType::f32, 2e-6}, Precision{DType::bf16, 0x1p-8 + 2e-6}}) {
        const Tensor c = ex.tensor({m, n}, dtype), sum = ex.tensor({m, n}, dtype);
        scaled_matmul(ex, {.a = a, .b = b, .c = c});
        EXPECT_LE(relative_error(values_of(c), want), tolerance);
        cast(ex, Tensor(const_cast<double*>(before.data()), {m, n}, DType::f64), sum);
        scaled_matmul(ex, {.a = a, .b = b, .c = sum, .write = Write::accumulate});
        EXPECT_LE(relative_error(values_of(sum), want_sum), 2 * tolerance);
        const Values bias = random_values(n, 4);
        const Tensor narrow_bias = ex.tensor({n}, dtype), with_bias = ex.tensor({m, n}, dtype);
        cast(ex, Tensor(const_cast<double*>(bias.data()), {n}, DType::f64), narrow_bias);
        scaled_matmul(ex, {.a = a, .b = b, .bias = narrow_bias, .c = with_bias});
        Values want_with_bias = want;
        const Values rounded = values_of(narrow_bias);
        for (std::size_t i = 0; i < want.size(); ++i) want_with_bias[i] += rounded[i % rounded.size()];
        EXPECT_LE(relative_error(values_of(with_bias), want_with_bias), tolerance);
      }
      ex.release();
    }
  }
}

TEST(ScaledMatmul, NanStaysInItsRow) {
  Exec ex;
  const Index m = 130, n = 40, k = 300;
  std::vector<float> numbers(static_cast<std::size_t>(m * k), 1.0f);
  numbers[static_cast<std::size_t>(3 * k + 200)] = std::numeric_limits<float>::infinity();
  numbers[static_cast<std::size_t>(129 * k)] = NAN;
  const Operand a = make_operand(ex, m, k, ScaleBlocks::vectors), b = scaled_operand(ex, n, k, ScaleBlocks::squares, 2);
  quantise(ex, {.x = Tensor(numbers.data(), {m, k}, DType::f32), .straight = a});
  const Tensor c = ex.tensor({m, n}, DType::f32);
  scaled_matmul(ex, {.a = a, .b = b, .c = c});
  const Values got = values_of(c);
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j)
      ASSERT_EQ(std::isfinite(got[static_cast<std::size_t>(i * n + j)]), i != 3 && i != 129) << i << ", " << j;
  }
}

TEST(ScaledMatmul, AnyNumberOfThreads) {
  expect_same_bits_for_any_team([] {
    Exec ex;
    const Operand a = scaled_operand(ex, 200, 300, ScaleBlocks::vectors, 1),
                  b = scaled_operand(ex, 270, 300, ScaleBlocks::squares, 2);
    const Tensor c = ex.tensor({200, 270}, DType::f32);
    scaled_matmul(ex, {.a = a, .b = b, .c = c});
    return values_of(c);
  });
}

TEST(ScaledMatmul, RefusesWrongTensors) {
  Exec ex;
  const Operand a = make_operand(ex, 8, 256, ScaleBlocks::squares), b = make_operand(ex, 4, 256, ScaleBlocks::squares),
                narrow = make_operand(ex, 4, 128, ScaleBlocks::vectors);
  const Tensor c = ex.tensor({8, 4}, DType::f32);
  EXPECT_EQ(error_text([&] { scaled_matmul(ex, {.a = a, .b = b, .c = c}); }),
            "[scaled_matmul] a.blocks, b.blocks = squares: one of them must be vectors");
  EXPECT_EQ(error_text([&] { scaled_matmul(ex, {.a = a, .b = narrow, .c = c}); }),
            "[scaled_matmul.b.values] shape = [4, 128]: must be [4, 256]");
  EXPECT_EQ(error_text([&] {
              scaled_matmul(ex, {.a = a, .b = b, .c = ex.tensor({8, 4}, DType::f64)});
            }),
            "[scaled_matmul] c: dtype = f64: must be f32, bf16 or f16");
  const Operand x = make_operand(ex, 8, 256, ScaleBlocks::vectors);
  const auto with_bias = [&](const Tensor& bias, Write write) {
    return error_text([&] { scaled_matmul(ex, {.a = x, .b = b, .bias = bias, .c = c, .write = write}); });
  };
  EXPECT_EQ(with_bias(ex.tensor({8}, DType::f32), Write::overwrite), "[scaled_matmul.bias] shape = [8]: must be [4]");
  EXPECT_EQ(with_bias(ex.tensor({4}, DType::bf16), Write::overwrite), "[scaled_matmul.bias] dtype = bf16: must be f32");
  EXPECT_EQ(with_bias(ex.tensor({4}, DType::f32), Write::accumulate), "[scaled_matmul] bias: needs Write::overwrite");
}

}  // namespace
}  // namespace megalith::ops
