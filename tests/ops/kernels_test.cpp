#include "megalith/ops/cpu/kernels.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/philox.h"

#include "tests/ops/op_test.h"

namespace megalith::ops::cpu {
namespace {

/// Every instruction set that this build has and this CPU runs, so that the slower paths are tested as well.
class KernelsTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!is_available(GetParam())) GTEST_SKIP() << "this CPU does not have these instructions";
  }
};
INSTANTIATE_TEST_SUITE_P(
    Isas, KernelsTest, testing::Values(Isa::baseline, Isa::avx2, Isa::avx512), [](const auto& row) {
      return std::string(row.param == Isa::baseline ? "baseline" : row.param == Isa::avx2 ? "avx2" : "avx512");
    });

double ulp(double value) { return std::ldexp(1.0, std::max(std::ilogb(value), -126) - 23); }

TEST_P(KernelsTest, ExpIsWithinOneAndAHalfUlp) {
  std::vector<float> x, y;
  for (float at = -87.33f; at < 88.72f; at += 1e-4f) x.push_back(at);
  for (float at = -1; at < 1; at += 1e-5f) x.push_back(at);
  y.resize(x.size());
  kernels<float>(GetParam()).softmax.exp(x.data(), y.data(), static_cast<Index>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - want) / ulp(want));
  }
  EXPECT_LT(worst, 1.5);
}

TEST_P(KernelsTest, ExpAtTheEdges) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto exp = [&](std::vector<float> x) {
    kernels<float>(GetParam()).softmax.exp(x.data(), x.data(), static_cast<Index>(x.size()));
    return x;
  };
  EXPECT_EQ(exp({0, -infinity, infinity, -1000, 1000, -87.4f, 88.73f}),
            (std::vector<float>{1, 0, infinity, 0, infinity, 0, infinity}));
  EXPECT_TRUE(std::isnan(exp({std::nanf("")})[0]));
  // Every number around the largest x with a finite e^x, 88.7228317.
  std::vector<float> x(1, 88.7f);
  while (x.back() < 88.74f) x.push_back(std::nextafter(x.back(), infinity));
  const std::vector<float> y = exp(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    if (want > static_cast<double>(std::numeric_limits<float>::max()))
      ASSERT_EQ(y[i], infinity) << x[i];
    else
      ASSERT_NEAR(static_cast<double>(y[i]), want, 1.5 * ulp(want)) << x[i];
  }
}

TEST_P(KernelsTest, DropoutReadsThePhiloxWordsOfItsElements) {
  const RandomSite site{.seed = 0xfedcba9876543210ULL, .step = 7, .site = 0x80000001u};
  const DropoutStream stream{
      .seed = site.seed, .step = site.step, .site = site.site, .threshold = 0x40000000u, .kept_scale = 2};
  // Starts in the middle of a block; counters that pass 2^32; more than one piece.
  for (const std::uint64_t first :
       {std::uint64_t{0}, std::uint64_t{3}, (std::uint64_t{1} << 34) - 9, std::uint64_t{1} << 50}) {
    for (const Index n : {Index{1}, Index{5}, Index{64}, Index{1100}}) {
      const std::vector<float> ones(static_cast<std::size_t>(n), 1.0f);
      std::vector<float> out(ones.size(), std::nanf(""));
      kernels<float>(GetParam()).elementwise.dropout(ones.data(), out.data(), n, stream, first);
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(out[i], site.word(first + i) >= stream.threshold ? 2.0f : 0.0f) << "element " << first << " + " << i;
      }
    }
  }
}

/// Every count of rows is put together from tiles of 4, 2 and 1; columns beyond the last strip come one by one.
template <class T>
void expect_few_rows_equal_loops(Isa isa, double tolerance) {
  for (const auto [rows, columns, k] :
       {std::array<Index, 3>{1, 1, 1}, {1, 19, 70}, {2, 9, 33}, {7, 13, 100}, {4, 8, 16}, {32, 21, 5}}) {
    const Values x = random_values(rows * k, 1), w = random_values(columns * k, 2);
    const Values c = random_values(rows * (columns + 3), 3);
    const std::vector<T> tx(x.begin(), x.end()), tw(w.begin(), w.end());
    for (const T beta : {T{0}, T{1}}) {
      std::vector<T> got(c.begin(), c.end());
      kernels<T>(isa).gemm.few_rows({.rows = rows,
                                     .columns = columns,
                                     .k = k,
                                     .x = tx.data(),
                                     .w = tw.data(),
                                     .c = got.data(),
                                     .c_row = columns + 3,
                                     .beta = beta});
      Values want = c;
      for (Index i = 0; i < rows; ++i) {
        for (Index j = 0; j < columns; ++j) {
          double& sum = want[static_cast<std::size_t>(i * (columns + 3) + j)];
          sum *= static_cast<double>(beta);
          for (Index l = 0; l < k; ++l)
            sum += x[static_cast<std::size_t>(i * k + l)] * w[static_cast<std::size_t>(j * k + l)];
        }
      }
      EXPECT_LT(relative_error(Values(got.begin(), got.end()), want), tolerance)
          << rows << ", " << columns << ", " << k;
    }
  }
}

TEST_P(KernelsTest, FewRowsEqualLoops) {
  expect_few_rows_equal_loops<double>(GetParam(), 1e-14);
  expect_few_rows_equal_loops<float>(GetParam(), 2e-6);
}

template <class T>
void expect_product_equals_loops(Isa isa, double tolerance) {
  for (const auto [m, n, k] :
       {std::array<Index, 3>{1, 1, 1}, {6, 16, 3}, {7, 33, 200}, {125, 131, 193}, {13, 300, 5}}) {
    const Values a = random_values(m * k, 1), b = random_values(k * n, 2), c = random_values(m * n, 3);
    const std::vector<T> ta(a.begin(), a.end()), tb(b.begin(), b.end());
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        const Index a_row = a_transposed ? 1 : k, a_column = a_transposed ? m : 1;
        const Index b_row = b_transposed ? 1 : n, b_column = b_transposed ? k : 1;
        std::vector<T> got(c.begin(), c.end());
        kernels<T>(isa).gemm.product({.m = m,
                                      .n = n,
                                      .k = k,
                                      .a = ta.data(),
                                      .a_row = a_row,
                                      .a_column = a_column,
                                      .b = tb.data(),
                                      .b_row = b_row,
                                      .b_column = b_column,
                                      .c = got.data(),
                                      .c_row = n,
                                      .beta = 1});
        Values want = c;
        for (Index i = 0; i < m; ++i) {
          for (Index j = 0; j < n; ++j) {
            for (Index l = 0; l < k; ++l) {
              want[static_cast<std::size_t>(i * n + j)] += a[static_cast<std::size_t>(i * a_row + l * a_column)] *
                                                           b[static_cast<std::size_t>(l * b_row + j * b_column)];
            }
          }
        }
        EXPECT_LT(relative_error(Values(got.begin(), got.end()), want), tolerance) << m << ", " << n << ", " << k;
      }
    }
  }
}

TEST_P(KernelsTest, ProductEqualsLoops) {
  expect_product_equals_loops<double>(GetParam(), 1e-13);
  expect_product_equals_loops<float>(GetParam(), 2e-6);
}

/// The best and the plainest instruction set may differ by rounding only.
TEST_P(KernelsTest, RowKernelsAgreeWithTheBaseline) {
  const auto& plain = kernels<float>(Isa::baseline);
  const auto& fast = kernels<float>(GetParam());
  for (const Index n : {Index{1}, Index{15}, Index{64}, Index{203}}) {
    const Values x = random_values(n, 1, 5), b = random_values(n, 2), g = random_values(n, 3);
    const std::vector<float> xs(x.begin(), x.end()), bs(b.begin(), b.end()), gs(g.begin(), g.end());
    std::vector<std::vector<float>> results;
    for (const auto* k : {&plain, &fast}) {
      std::vector<float> z = xs, y(xs.size()), dz(xs.size()), norm(xs.size()), dx(xs.size()), e = xs;
      float mean = 0, rstd = 0;
      k->elementwise.bias_gelu(z.data(), bs.data(), y.data(), n);
      k->elementwise.gelu_backward(z.data(), gs.data(), dz.data(), n);
      k->norm.forward(xs.data(), gs.data(), bs.data(), norm.data(), n, 1e-5, &mean, &rstd);
      k->norm.backward(gs.data(), xs.data(), bs.data(), nullptr, dx.data(), n, mean, rstd);
      const float sum = k->softmax.exp_sum(e.data(), n, k->softmax.row_max(xs.data(), n));
      std::vector<float> all{mean, rstd, sum};
      for (const auto* part : {&z, &y, &dz, &norm, &dx, &e}) all.insert(all.end(), part->begin(), part->end());
      results.push_back(all);
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      ASSERT_NEAR(results[1][i], results[0][i], 1e-4 * std::abs(results[0][i]) + 1e-5) << "n " << n << ", value " << i;
    }
  }
}

/// The same of the kernels of gated MLPs, rotary embeddings, RMS norms and sums of rows, at every length up to a few
/// vectors, and nothing past the end is touched.
TEST_P(KernelsTest, BlockKernelsAgreeWithTheBaseline) {
  for (Index n = 1; n < 70; ++n) {
    const auto size = static_cast<std::size_t>(n);
    const auto floats = [](const Values& values) { return std::vector<float>(values.begin(), values.end()); };
    const std::vector<float> x = floats(random_values(2 * n, 1, 3)), g = floats(random_values(n, 2)),
                             d = floats(random_values(n, 3)), angles = floats(random_values(2 * n, 4));
    std::vector<std::vector<float>> results;
    for (const auto* k : {&kernels<float>(Isa::baseline), &kernels<float>(GetParam())}) {
      std::vector<float> all;
      const auto keep = [&](std::vector<float> part, std::size_t used) {
        EXPECT_EQ(part.size(), used + 1);
        EXPECT_EQ(part.back(), 7) << "n " << n;
        all.insert(all.end(), part.begin(), part.end() - 1);
      };
      const auto room = [](std::size_t count) { return std::vector<float>(count + 1, 7.0f); };
      std::vector<float> y = room(size), back = room(2 * size), turned = x, sum = room(size), scaled = room(size),
                         norm = room(size), dx = room(size), gamma = room(size), applied = room(size),
                         gradient = room(size), sum_of_row = room(1);
      turned.push_back(7);
      k->elementwise.swiglu(x.data(), y.data(), n);
      k->elementwise.swiglu_backward(x.data(), d.data(), back.data(), n);
      k->elementwise.rotate(turned.data(), angles.data(), angles.data() + n, n, -1);
      const float* const rows[] = {x.data(), g.data(), x.data() + n};
      const float weights[] = {0.5f, -2, 3};
      k->elementwise.weighted_sum(rows, weights, 3, sum.data(), n);
      k->elementwise.scaled(x.data(), 0.3f, scaled.data(), n);
      float rstd = 0;
      k->norm.rms_forward(x.data(), g.data(), norm.data(), n, 1e-5, &rstd);
      k->norm.rms_backward(d.data(), x.data(), g.data(), d.data(), dx.data(), n, rstd);
      std::fill_n(gamma.begin(), n, 0.0f);
      const float two[] = {rstd, 2 * rstd};
      k->norm.rms_weight_backward(x.data(), x.data(), two, 2, n, gamma.data());
      k->norm.rms_apply(x.data(), g.data(), applied.data(), n, 0.7f);
      sum_of_row[0] = k->norm.rms_g_xhat_sum(d.data(), x.data(), g.data(), n, 0.7f);
      k->norm.rms_gradient(d.data(), x.data(), g.data(), nullptr, gradient.data(), n, 0.7f, 0.3f);
      keep(y, size);
      keep(back, 2 * size);
      keep(turned, 2 * size);
      keep(sum, size);
      keep(scaled, size);
      keep(norm, size);
      keep(dx, size);
      keep(gamma, size);
      keep(applied, size);
      keep(gradient, size);
      keep(sum_of_row, 1);
      results.push_back(all);
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      ASSERT_NEAR(results[1][i], results[0][i], 1e-5 * std::abs(results[0][i]) + 1e-5) << "n " << n << ", value " << i;
    }
  }
}

}  // namespace
}  // namespace megalith::ops::cpu
