#include "megalith/ops/matmul.h"

#include "megalith/ops/cpu/product.h"
#include "megalith/ops/swiglu.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

struct MatmulSizes {
  Index m, n, k;
};
// Odd sizes, one row, one column, nothing, edges of the register tiles and of the blocks.
constexpr MatmulSizes kMatmulSizes[] = {{1, 1, 1},     {1, 7, 5},     {7, 1, 5},      {1, 300, 77},   {300, 1, 77},
                                        {5, 3, 0},     {0, 4, 3},     {4, 0, 3},      {13, 17, 19},   {6, 16, 8},
                                        {65, 97, 200}, {251, 33, 21}, {30, 401, 193}, {130, 140, 390}};

struct Operands {
  Values a, b;  // [M, K], [K, N]
};

Values stored(const Values& matrix, Index rows, Index columns, Transpose transpose) {
  if (transpose == Transpose::no) return matrix;
  Values out(matrix.size());
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c)
      out[static_cast<std::size_t>(c * rows + r)] = matrix[static_cast<std::size_t>(r * columns + c)];
  }
  return out;
}

Shape stored_shape(Index rows, Index columns, Transpose transpose) {
  return transpose == Transpose::no ? Shape{rows, columns} : Shape{columns, rows};
}

Values multiplied(const Operands& x, const MatmulSizes& s, const Values& onto) {
  Values c = onto;
  for (Index i = 0; i < s.m; ++i) {
    for (Index j = 0; j < s.n; ++j) {
      for (Index l = 0; l < s.k; ++l) {
        c[static_cast<std::size_t>(i * s.n + j)] +=
            x.a[static_cast<std::size_t>(i * s.k + l)] * x.b[static_cast<std::size_t>(l * s.n + j)];
      }
    }
  }
  return c;
}

class MatmulTest : public OpTest {};
MEGALITH_OPS_PRECISIONS(MatmulTest);

TEST_P(MatmulTest, EqualsThreeLoops) {
  for (const MatmulSizes& s : kMatmulSizes) {
    const Operands x{random_values(s.m * s.k, 1), random_values(s.k * s.n, 2)};
    const Values before = random_values(s.m * s.n, 3), zeros(before.size(), 0.0);
    for (const Transpose ta : {Transpose::no, Transpose::yes}) {
      for (const Transpose tb : {Transpose::no, Transpose::yes}) {
        SCOPED_TRACE(testing::Message() << s.m << " x " << s.n << " x " << s.k << ", transposed "
                                        << (ta == Transpose::yes) << (tb == Transpose::yes));
        const Tensor a = put(stored_shape(s.m, s.k, ta), stored(x.a, s.m, s.k, ta));
        const Tensor b = put(stored_shape(s.k, s.n, tb), stored(x.b, s.k, s.n, tb));
        const Tensor c = empty({s.m, s.n});
        matmul(ex_, {.a = a, .b = b, .c = c, .transpose_a = ta, .transpose_b = tb});
        expect_near(c, multiplied(x, s, zeros), "overwrite");
        const Tensor sum = put({s.m, s.n}, before);
        matmul(ex_, {.a = a, .b = b, .c = sum, .transpose_a = ta, .transpose_b = tb, .write = Write::accumulate});
        expect_near(sum, multiplied(x, s, before), "accumulate");
        ex_.release();
      }
    }
  }
}

TEST_P(MatmulTest, BiasAndRowSums) {
  for (const MatmulSizes& s : kMatmulSizes) {
    SCOPED_TRACE(testing::Message() << s.m << " x " << s.n << " x " << s.k);
    const Operands x{random_values(s.m * s.k, 1), random_values(s.k * s.n, 2)};
    const Values bias = random_values(s.n, 3), before = random_values(s.m, 4);
    Values onto, sums = before;
    for (Index i = 0; i < s.m; ++i) {
      onto.insert(onto.end(), bias.begin(), bias.end());
      for (Index l = 0; l < s.k; ++l) sums[static_cast<std::size_t>(i)] += x.a[static_cast<std::size_t>(i * s.k + l)];
    }
    const Tensor a = put(stored_shape(s.m, s.k, Transpose::yes), stored(x.a, s.m, s.k, Transpose::yes));
    const Tensor b = put({s.k, s.n}, x.b), c = empty({s.m, s.n}), bias_grad = put({s.m}, before);
    matmul(ex_,
           {.a = a, .b = b, .bias = put({s.n}, bias), .c = c, .bias_grad = bias_grad, .transpose_a = Transpose::yes});
    expect_near(c, multiplied(x, s, onto), "bias");
    expect_near(bias_grad, sums, "bias_grad");
    ex_.release();
  }
}

/// Decoding gives the same text for every batch because of this.
TEST_P(MatmulTest, BitsOfFewRowsDependOnNoOtherRow) {
  for (const auto& [n, k] : {std::pair<Index, Index>{1, 1}, {3, 7}, {130, 100}, {69, 515}}) {
    constexpr Index kMax = 64;  // f64: any number of rows
    const Index most = dtype() == DType::f64 ? kMax : 32;
    const Values rows = random_values(kMax * k, 1);
    const Tensor w = put({n, k}, random_values(n * k, 2)), bias = put({n}, random_values(n, 3));
    const auto product = [&](Index first, Index count) {
      const auto begin = rows.begin() + first * k;
      const Tensor c = empty({count, n});
      matmul(ex_, {.a = put({count, k}, {begin, begin + count * k}),
                   .b = w,
                   .bias = bias,
                   .c = c,
                   .transpose_b = Transpose::yes});
      return values_of(c);
    };
    const Values whole = product(0, most);
    for (const Index count : {1, 2, 3, 4, 7, 8, 9, 31}) {
      const Values some = product(most - count, count);
      EXPECT_EQ(some, Values(whole.end() - static_cast<std::ptrdiff_t>(some.size()), whole.end())) << count;
    }
    ex_.release();
  }
}

/// Clones of experts change no gradient of an input in f64 because of this.
TEST_P(MatmulTest, BitsOfF64RowsOfInputGradientsDependOnNoOtherRow) {
  if (dtype() != DType::f64) GTEST_SKIP() << "in other types the rounding of a row follows from the number of rows";
  for (const auto& [n, k] : {std::pair<Index, Index>{3, 7}, {130, 100}, {69, 515}}) {
    constexpr Index kMax = 64;
    const Values rows = random_values(kMax * k, 1);
    const Tensor w = put({k, n}, random_values(n * k, 2));
    const auto product = [&](Index first, Index count) {
      const auto begin = rows.begin() + first * k;
      const Tensor c = empty({count, n});
      matmul(ex_, {.a = put({count, k}, {begin, begin + count * k}), .b = w, .c = c});
      return values_of(c);
    };
    const Values whole = product(0, kMax);
    for (const Index count : {1, 2, 5, 31, 33}) {
      const Values some = product(kMax - count, count);
      EXPECT_EQ(some, Values(whole.end() - static_cast<std::ptrdiff_t>(some.size()), whole.end())) << count;
    }
    ex_.release();
  }
}

TEST_P(MatmulTest, GeluFormsEqualTheirParts) {
  for (const auto [tokens, features, k] :
       {MatmulSizes{1, 1, 1}, MatmulSizes{13, 17, 19}, MatmulSizes{130, 40, 30}, MatmulSizes{0, 4, 3}}) {
    const Tensor x = put({tokens, k}, random_values(tokens * k, 1)),
                 w = put({features, k}, random_values(features * k, 2));
    const Tensor bias = put({features}, random_values(features, 3));
    const Tensor z = empty({tokens, features}), y = empty({tokens, features});
    matmul_gelu(ex_, {.x = x, .w = w, .bias = bias, .z = z, .y = y});
    const Tensor z2 = empty({tokens, features}), y2 = empty({tokens, features});
    matmul(ex_, {.a = x, .b = w, .c = z2, .transpose_b = Transpose::yes});
    bias_gelu(ex_, {.x = z2, .bias = bias, .y = y2});
    EXPECT_EQ(values_of(z), values_of(z2));
    EXPECT_EQ(values_of(y), values_of(y2));

    const Tensor dy = put({tokens, k}, random_values(tokens * k, 4)),
                 back = put({k, features}, random_values(features * k, 5));
    const Tensor dz = empty({tokens, features}), dz2 = empty({tokens, features});
    const Tensor grad = put({features}, random_values(features, 6)),
                 grad2 = put({features}, random_values(features, 6));
    matmul_gelu_backward(ex_, {.dy = dy, .w = back, .z = z, .dz = dz, .bias_grad = grad});
    matmul(ex_, {.a = dy, .b = back, .c = dz2});
    gelu_backward(ex_, {.z = z, .dy = dz2, .dz = dz2});
    bias_backward(ex_, dz2, grad2);
    EXPECT_EQ(values_of(dz), values_of(dz2));
    EXPECT_EQ(values_of(grad), values_of(grad2));
    ex_.release();
  }
}

TEST_P(MatmulTest, SwigluEqualsItsParts) {
  for (const auto [tokens, units, k] :
       {MatmulSizes{1, 1, 1}, MatmulSizes{13, 17, 19}, MatmulSizes{130, 40, 30}, MatmulSizes{0, 4, 3}}) {
    const Tensor x = put({tokens, k}, random_values(tokens * k, 1)),
                 w = put({2 * units, k}, random_values(2 * units * k, 2));
    const Tensor z = empty({tokens, 2 * units}), y = empty({tokens, units});
    matmul_swiglu(ex_, {.x = x, .w = w, .z = z, .y = y});
    const Tensor z2 = empty(z.shape()), y2 = empty(y.shape());
    matmul(ex_, {.a = x, .b = w, .c = z2, .transpose_b = Transpose::yes});
    swiglu(ex_, {.gate_up = z2, .y = y2});
    EXPECT_EQ(values_of(z), values_of(z2));
    EXPECT_EQ(values_of(y), values_of(y2));

    const Tensor dy = put({tokens, k}, random_values(tokens * k, 4)),
                 back = put({k, units}, random_values(units * k, 5));
    const Tensor dz = empty(z.shape()), dz2 = empty(z.shape()), dz3 = empty(z.shape()), dh = empty(y.shape()),
                 again = empty(y.shape());
    matmul_swiglu_backward(ex_, {.dy = dy, .w = back, .z = z, .dz = dz});
    matmul_swiglu_backward(ex_, {.dy = dy, .w = back, .z = z, .dz = dz3, .y = again});
    EXPECT_EQ(values_of(again), values_of(y));
    EXPECT_EQ(values_of(dz3), values_of(dz));
    matmul(ex_, {.a = dy, .b = back, .c = dh});
    swiglu_backward(ex_, {.gate_up = z, .dy = dh, .dgate_up = dz2});
    EXPECT_EQ(values_of(dz), values_of(dz2));
    ex_.release();
  }
}

TEST_P(MatmulTest, SameBitsForAnyTeam) {
  for (const MatmulSizes& s :
       {MatmulSizes{200, 500, 300}, MatmulSizes{96, 96, 2000}, MatmulSizes{1, 4000, 100}, MatmulSizes{4000, 1, 100}}) {
    for (const Transpose t : {Transpose::no, Transpose::yes}) {
      expect_same_bits_for_any_team([&] {
        const Tensor a = put(stored_shape(s.m, s.k, t), random_values(s.m * s.k, 1));
        const Tensor b = put(stored_shape(s.k, s.n, t), random_values(s.k * s.n, 2));
        const Tensor c = empty({s.m, s.n});
        matmul(ex_, {.a = a, .b = b, .c = c, .transpose_a = t, .transpose_b = t});
        return values_of(c);
      });
    }
  }
}

TEST_P(MatmulTest, NamesTheArgumentThatDoesNotFit) {
  const Tensor a = empty({3, 4}), b = empty({5, 2}), c = empty({3, 2});
  EXPECT_EQ(error_text([&] { matmul(ex_, {.a = a, .b = b, .c = c}); }), "[matmul.b] shape = [5, 2]: must be [4, 2]");
  EXPECT_EQ(error_text([&] { matmul(ex_, {.a = a, .b = b, .c = c, .transpose_a = Transpose::yes}); }),
            "[matmul.a] shape = [3, 4]: must be [3, 3]");
  EXPECT_EQ(error_text([&] { matmul(ex_, {.a = empty({4}), .b = b, .c = c}); }),
            "[matmul.a] shape = [4]: must have 2 dimensions");
  EXPECT_EQ(error_text([&] { matmul_swiglu(ex_, {.x = a, .w = b, .z = c, .y = c}); }),
            "[matmul_swiglu.w] shape = [5, 2]: must be [4, 4]");
  EXPECT_EQ(error_text([&] {
              matmul_swiglu_backward(ex_, {.dy = a, .w = empty({4, 1}), .z = c, .dz = a});
            }),
            "[matmul_swiglu_backward.dz] shape = [3, 4]: must be [3, 2]");
}

TEST(Matmul, RefusesOtherTypes) {
  Exec ex;
  const Tensor a = ex.tensor({2, 2}, DType::i32);
  EXPECT_EQ(error_text([&] { matmul(ex, {.a = a, .b = a, .c = a}); }),
            "[matmul] dtype = i32: needs f64, f32, bf16 or f16 on the CPU");
  const Tensor b = ex.tensor({2, 2}, DType::f32), c = ex.tensor({2, 2}, DType::f64);
  EXPECT_EQ(error_text([&] { matmul(ex, {.a = b, .b = c, .c = b}); }), "[matmul.b] dtype = f64: must be f32");
  EXPECT_EQ(error_text([&] { matmul(ex, {.a = b, .b = b, .c = c}); }), "[matmul.c] dtype = f64: must be f32");
}

TEST(Matmul, BlocksFollowFromTheShape) {
  // Enough blocks for a team of eight, none so small that waking a thread costs more than it saves.
  for (const MatmulSizes& s : {MatmulSizes{4096, 384, 384}, MatmulSizes{384, 384, 4096}, MatmulSizes{384, 1536, 4096},
                               MatmulSizes{512, 50304, 768}}) {
    const cpu::BlockShape block = cpu::block_shape(s.m, s.n, s.k);
    EXPECT_GE(ceil_div(s.m, block.rows) * ceil_div(s.n, block.columns), 8);
  }
  const cpu::BlockShape tiny = cpu::block_shape(8, 8, 8);
  EXPECT_GE(tiny.rows, 8);
  EXPECT_GE(tiny.columns, 8);
}

/// Where the CPU multiplies bf16: sizes around whole units of rows and of depth, in every layout.
TEST(Bf16Product, EqualsThreeLoops) {
  if (!cpu::has_bf16_product()) GTEST_SKIP() << "this CPU, or this build, does not multiply bf16";
  constexpr Index n = 24;
  for (const Index m : {1, 15, 16, 17, 47}) {
    for (const Index k : {1, 63, 64, 65, 130}) {
      const auto rounded = [](Index count, std::uint32_t seed) {
        std::vector<bfloat16> all;
        for (const double value : random_values(count, seed)) all.emplace_back(static_cast<float>(value));
        return all;
      };
      const std::vector<bfloat16> a = rounded(m * k, 1), b = rounded(k * n, 2);
      for (const bool a_by_rows : {true, false}) {
        for (const bool b_by_rows : {true, false}) {
          for (const float beta : {0.0f, 1.0f}) {
            SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << ", a, b by rows " << a_by_rows
                                            << b_by_rows << ", beta " << beta);
            std::vector<float> c(static_cast<std::size_t>(m * n), 0.5f);
            const cpu::Product<bfloat16> product{.m = m,
                                                 .n = n,
                                                 .k = k,
                                                 .a = a.data(),
                                                 .a_row = a_by_rows ? k : 1,
                                                 .a_column = a_by_rows ? 1 : m,
                                                 .b = b.data(),
                                                 .b_row = b_by_rows ? n : 1,
                                                 .b_column = b_by_rows ? 1 : k,
                                                 .c = c.data(),
                                                 .c_row = n,
                                                 .beta = beta};
            cpu::run_product(product);
            for (Index i = 0; i < m; ++i) {
              for (Index j = 0; j < n; ++j) {
                double want = 0.5 * static_cast<double>(beta), magnitude = 1;
                for (Index l = 0; l < k; ++l) {
                  const double term =
                      static_cast<double>(
                          static_cast<float>(a[static_cast<std::size_t>(i * product.a_row + l * product.a_column)])) *
                      static_cast<double>(
                          static_cast<float>(b[static_cast<std::size_t>(l * product.b_row + j * product.b_column)]));
                  want += term;
                  magnitude += std::abs(term);
                }
                ASSERT_NEAR(c[static_cast<std::size_t>(i * n + j)], want, 1e-6 * magnitude) << i << ", " << j;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace megalith::ops
