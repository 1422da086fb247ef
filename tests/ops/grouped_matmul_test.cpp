#include "megalith/ops/grouped_matmul.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "megalith/runtime/memory_plan.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

using GroupSizes = std::vector<Index>;

/// Uniform, Zipf, zeros first, middle and last, all in one, none, single rows.
const GroupSizes kGroupSizes[] = {{5, 5, 5, 5}, {40, 20, 13, 10, 8},
                                  {0, 0, 7, 3}, {6, 0, 0, 9, 2},
                                  {4, 3, 0},    {0, 0, 300, 0},
                                  {0, 0, 0},    {1, 0, 1, 1, 2, 0, 1},
                                  {17},         {0}};
struct Widths {
  Index n, k;
};
constexpr Widths kWidths[] = {{3, 5}, {1, 1}, {48, 33}, {1, 20}, {7, 0}, {0, 4}};

Index sum_of(const GroupSizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), Index{0}); }

/// y [M, N], NaN in rows after the last group's.
Values forward(const Values& x, const Values& w, const GroupSizes& sizes, const Widths& width) {
  Values y;
  Index row = 0;
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    for (Index i = 0; i < sizes[g]; ++i, ++row) {
      for (Index n = 0; n < width.n; ++n) {
        double sum = 0;
        for (Index k = 0; k < width.k; ++k)
          sum += x[static_cast<std::size_t>(row * width.k + k)] *
                 w[(g * static_cast<std::size_t>(width.n) + static_cast<std::size_t>(n)) *
                       static_cast<std::size_t>(width.k) +
                   static_cast<std::size_t>(k)];
        y.push_back(sum);
      }
    }
  }
  return y;
}

class GroupedMatmulTest : public OpTest {
 protected:
  static constexpr Index kUnused = 3;  // rows after the last group's, full of NaN

  Tensor put_rows(const Values& values, Index rows, Index columns) {
    Values all = values;
    all.resize(static_cast<std::size_t>((rows + kUnused) * columns), std::nan(""));
    return put({rows + kUnused, columns}, all);
  }
  /// The rows of the groups; the others must still be NaN.
  static Values used(const Tensor& tensor, Index rows) {
    const Values all = values_of(tensor);
    const auto end = static_cast<std::size_t>(rows * tensor.dim(1));
    for (std::size_t i = end; i < all.size(); ++i) EXPECT_TRUE(std::isnan(all[i])) << "an unused row was written";
    return {all.begin(), all.begin() + static_cast<Index>(end)};
  }
  void expect_close(const Values& got, const Values& want, const char* what) const {
    ASSERT_EQ(got.size(), want.size());
    EXPECT_LE(relative_error(got, want), GetParam().tolerance) << what;
  }
};
MEGALITH_OPS_PRECISIONS(GroupedMatmulTest);

TEST_P(GroupedMatmulTest, ForwardEqualsLoops) {
  for (const GroupSizes& sizes : kGroupSizes) {
    for (const Widths& width : kWidths) {
      const Index rows = sum_of(sizes), groups = static_cast<Index>(sizes.size());
      const Values x = random_values(rows * width.k, 1), w = random_values(groups * width.n * width.k, 2);
      const Tensor y = empty({rows + kUnused, width.n});
      grouped_matmul(
          ex_, {.x = put_rows(x, rows, width.k), .w = put({groups, width.n, width.k}, w), .y = y, .sizes = {sizes}});
      expect_close(used(y, rows), forward(x, w, sizes, width), "y");
    }
  }
}

/// As the gradients of the loops' sum of y dy.
TEST_P(GroupedMatmulTest, BackwardEqualsDifferences) {
  for (const GroupSizes& sizes : kGroupSizes) {
    for (const Widths& width : kWidths) {
      const Index rows = sum_of(sizes), groups = static_cast<Index>(sizes.size());
      if (rows > 100 || width.n * width.k > 100) continue;  // as slow as groups x rows x weights^2
      const Shape weight_shape{groups, width.n, width.k};
      const Values x = random_values(rows * width.k, 1), w = random_values(weight_shape.numel(), 2),
                   dy = random_values(rows * width.n, 3), before = random_values(weight_shape.numel(), 4);
      const auto loss = [&](const Values& of_x, const Values& of_w) {
        const Values y = forward(of_x, of_w, sizes, width);
        return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
      };
      const double tolerance = dtype() == DType::f32 ? 2e-6 : 1e-8;
      const Tensor d = put_rows(dy, rows, width.n), in = put_rows(x, rows, width.k), dx = empty(in.shape());
      grouped_matmul_input_grad(ex_, {.dy = d, .w = put(weight_shape, w), .dx = dx, .sizes = {sizes}});
      EXPECT_LE(relative_error(used(dx, rows), numeric_gradient(x, [&](const Values& at) { return loss(at, w); })),
                tolerance);
      Values want = numeric_gradient(w, [&](const Values& at) { return loss(x, at); });
      const Tensor dw = empty(weight_shape), sum = put(weight_shape, before);
      grouped_matmul_weight_grad(ex_, {.dy = d, .x = in, .dw = dw, .sizes = {sizes}, .write = Write::overwrite});
      EXPECT_LE(relative_error(values_of(dw), want), tolerance);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += before[i];
      grouped_matmul_weight_grad(ex_, {.dy = d, .x = in, .dw = sum, .sizes = {sizes}});
      EXPECT_LE(relative_error(values_of(sum), want), tolerance);
    }
  }
}

/// Bits of any kind stay: NaN, -0 and all.
TEST_P(GroupedMatmulTest, AnEmptyGroupsGradientStaysOrIsCleared) {
  const GroupSizes sizes{0, 2, 0};
  for (const DType type : {dtype(), DType::bf16}) {
    const Tensor of_dy = put({2, 3}, random_values(6, 1), type), of_x = put({2, 4}, random_values(8, 2), type);
    for (const DType of_dw : {type, statistics_dtype(type)}) {
      Values before(36, -0.0);
      before[5] = std::nan("");
      const Tensor dw = put({3, 3, 4}, before, of_dw), old = put({3, 3, 4}, before, of_dw);
      grouped_matmul_weight_grad(ex_, {.dy = of_dy, .x = of_x, .dw = dw, .sizes = {sizes}});
      for (const Index group : {0, 2}) {
        const Tensor now = dw.rows(group, 1), then = old.rows(group, 1);
        EXPECT_EQ(std::memcmp(now.raw(), then.raw(), static_cast<std::size_t>(now.bytes())), 0);
      }
      EXPECT_NE(values_of(dw)[12], 0);
      grouped_matmul_weight_grad(ex_, {.dy = of_dy, .x = of_x, .dw = dw, .sizes = {sizes}, .write = Write::overwrite});
      const Values cleared = values_of(dw);
      for (std::size_t i = 0; i < cleared.size(); ++i) {
        if (i / 12 != 1) {
          EXPECT_EQ(cleared[i], 0);
          EXPECT_FALSE(std::signbit(cleared[i]));
        }
      }
    }
  }
}

/// A group has the bits of its product alone.
TEST_P(GroupedMatmulTest, GroupsHaveTheBitsOfTheirProducts) {
  const GroupSizes sizes{130, 0, 1, 57};
  const Index rows = sum_of(sizes), n = 70, k = 90;
  for (const DType type : {dtype(), DType::bf16, DType::f16}) {
    const Tensor x = put({rows, k}, random_values(rows * k, 1), type),
                 w = put({4, n, k}, random_values(4 * n * k, 2), type);
    const Tensor dy = put({rows, n}, random_values(rows * n, 3), type);
    for (const DType out : {type, statistics_dtype(type)}) {
      const Tensor y = ex_.tensor({rows, n}, out), y2 = ex_.tensor({rows, n}, out), dx = ex_.tensor({rows, k}, out),
                   dx2 = ex_.tensor({rows, k}, out);
      const Tensor dw = put({4, n, k}, random_values(4 * n * k, 4), out),
                   dw2 = put({4, n, k}, random_values(4 * n * k, 4), out);
      grouped_matmul(ex_, {.x = x, .w = w, .y = y, .sizes = {sizes}});
      grouped_matmul_input_grad(ex_, {.dy = dy, .w = w, .dx = dx, .sizes = {sizes}});
      grouped_matmul_weight_grad(ex_, {.dy = dy, .x = x, .dw = dw, .sizes = {sizes}});
      Index first = 0;
      for (Index g = 0; g < 4; first += sizes[static_cast<std::size_t>(g++)]) {
        const Index count = sizes[static_cast<std::size_t>(g)];
        if (count == 0) continue;
        const Tensor weight = w.rows(g, 1).reshaped({n, k});
        matmul(ex_,
               {.a = x.rows(first, count), .b = weight, .c = y2.rows(first, count), .transpose_b = Transpose::yes});
        matmul(ex_, {.a = dy.rows(first, count), .b = weight, .c = dx2.rows(first, count)});
        matmul(ex_, {.a = dy.rows(first, count),
                     .b = x.rows(first, count),
                     .c = dw2.rows(g, 1).reshaped({n, k}),
                     .transpose_a = Transpose::yes,
                     .write = Write::accumulate});
      }
      EXPECT_EQ(values_of(y), values_of(y2));
      EXPECT_EQ(values_of(dx), values_of(dx2));
      EXPECT_EQ(values_of(dw), values_of(dw2));
    }
  }
}

TEST_P(GroupedMatmulTest, SameBitsForAnyTeam) {
  const GroupSizes sizes{200, 0, 1, 31, 400};
  const Index rows = sum_of(sizes), n = 100, k = 60;
  expect_same_bits_for_any_team([&] {
    const Tensor x = put({rows, k}, random_values(rows * k, 1)), w = put({5, n, k}, random_values(5 * n * k, 2)),
                 y = empty({rows, n}), dx = empty({rows, k}), dw = empty({5, n, k});
    grouped_matmul(ex_, {.x = x, .w = w, .y = y, .sizes = {sizes}});
    grouped_matmul_input_grad(ex_, {.dy = y, .w = w, .dx = dx, .sizes = {sizes}});
    grouped_matmul_weight_grad(ex_, {.dy = y, .x = x, .dw = dw, .sizes = {sizes}, .write = Write::overwrite});
    Values all = values_of(y);
    for (const Values& more : {values_of(dx), values_of(dw)}) all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

/// One op whatever the sizes, which are not looked at while it is recorded.
TEST(GroupedMatmulRecording, SizesAreReadWhenTheOpRuns) {
  Recording recording;
  recording.begin_phase();
  Exec recorder(Device::cpu, recording);
  const Tensor x = recorder.tensor({4, 3}, DType::f32), w = recorder.tensor({2, 5, 3}, DType::f32),
               y = recorder.tensor({4, 5}, DType::f32);
  const GroupSizes nonsense{-7, 900};
  grouped_matmul(recorder, {.x = x, .w = w, .y = y, .sizes = {nonsense}});
  EXPECT_EQ(recording.ops().size(), 1u);
}

TEST_P(GroupedMatmulTest, NamesWhatDoesNotFit) {
  const Tensor x = empty({6, 3}), w = empty({2, 5, 3}), y = empty({6, 5});
  const auto error = [&](const GroupSizes& sizes, const Tensor& to) {
    return error_text([&] { grouped_matmul(ex_, {.x = x, .w = w, .y = to, .sizes = {sizes}}); });
  };
  EXPECT_EQ(error({3, 4}, y), "[grouped_matmul.sizes] sum = 7: must be at most 6, the rows");
  EXPECT_EQ(error({3, -1}, y), "[grouped_matmul.sizes] size = -1: must be at least 0");
  EXPECT_EQ(error({3}, y), "[grouped_matmul.sizes] groups = 1: must be 2");
  EXPECT_EQ(error({3, 3}, x), "[grouped_matmul.y] shape = [6, 3]: must be [6, 5]");
  EXPECT_EQ(error({3, 3}, ex_.tensor({6, 5}, DType::bf16)), dtype() == DType::f32
                                                                ? "[grouped_matmul.y] dtype = bf16: must be f32"
                                                                : "[grouped_matmul.y] dtype = bf16: must be f64");
  const GroupSizes sizes{3, 3};
  EXPECT_EQ(error_text([&] { grouped_matmul_input_grad(ex_, {.dy = x, .w = w, .dx = x, .sizes = {sizes}}); }),
            "[grouped_matmul_input_grad.dy] shape = [6, 3]: must be [6, 5]");
  EXPECT_EQ(error_text([&] { grouped_matmul_weight_grad(ex_, {.dy = y, .x = y, .dw = w, .sizes = {sizes}}); }),
            "[grouped_matmul_weight_grad.x] shape = [6, 5]: must be [6, 3]");
  const Tensor many = ex_.tensor({1025, 5, 3}, dtype());
  const GroupSizes of_many(1025, 0);
  EXPECT_EQ(error_text([&] { grouped_matmul(ex_, {.x = x, .w = many, .y = y, .sizes = {of_many}}); }),
            "[grouped_matmul.w] groups = 1025: must be in 1 .. 1024");
}

}  // namespace
}  // namespace megalith::ops
