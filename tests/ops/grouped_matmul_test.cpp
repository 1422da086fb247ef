#include "megalith/ops/grouped_matmul.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "megalith/runtime/memory_plan.h"

#include "tests/ops/grouped_op_test.h"

namespace megalith::ops {
namespace {

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
constexpr Index kAlignments[] = {1, 4};

/// y [M, N] of the rows of the groups.
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

class GroupedMatmulTest : public GroupedOpTest {};
MEGALITH_OPS_PRECISIONS(GroupedMatmulTest);

TEST_P(GroupedMatmulTest, ForwardEqualsLoops) {
  for (const GroupSizes& sizes : kGroupSizes) {
    for (const Index alignment : kAlignments) {
      const GroupLayout layout(sizes, alignment);
      const GroupRows groups = put_groups(layout);
      for (const Widths& width : kWidths) {
        const Values x = random_values(sum_of(sizes) * width.k, 1),
                     w = random_values(layout.count() * width.n * width.k, 2);
        const Tensor y = empty_rows(layout, width.n);
        grouped_matmul(ex_, {.x = put_rows(x, layout, width.k),
                             .w = put({layout.count(), width.n, width.k}, w),
                             .y = y,
                             .groups = groups});
        expect_close(used(y, layout), forward(x, w, sizes, width), "y");
      }
    }
  }
}

/// As the gradients of the loops' sum of y dy.
TEST_P(GroupedMatmulTest, BackwardEqualsDifferences) {
  for (const GroupSizes& sizes : kGroupSizes) {
    for (const Widths& width : kWidths) {
      const Index rows = sum_of(sizes);
      if (rows > 100 || width.n * width.k > 100) continue;  // as slow as groups x rows x weights^2
      const Shape weight_shape{static_cast<Index>(sizes.size()), width.n, width.k};
      const Values x = random_values(rows * width.k, 1), w = random_values(weight_shape.numel(), 2),
                   dy = random_values(rows * width.n, 3), before = random_values(weight_shape.numel(), 4);
      const auto loss = [&](const Values& of_x, const Values& of_w) {
        const Values y = forward(of_x, of_w, sizes, width);
        return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
      };
      const double tolerance = dtype() == DType::f32 ? 2e-6 : 1e-8;
      const Values want_dx = numeric_gradient(x, [&](const Values&at) { return loss(at, w); }),
                   want = numeric_gradient(w, [&](const Values&at) { return loss(x, at); });
      Values want_sum = want;
      for (std::size_t i = 0; i < want.size(); ++i) want_sum[i] += before[i];
      for (const Index alignment : kAlignments) {
        const GroupLayout layout(sizes, alignment);
        const GroupRows groups = put_groups(layout);
        const Tensor d = put_rows(dy, layout, width.n), in = put_rows(x, layout, width.k), dx = empty(in.shape());
        grouped_matmul_input_grad(ex_, {.dy = d, .w = put(weight_shape, w), .dx = dx, .groups = groups});
        EXPECT_LE(relative_error(used(dx, layout), want_dx), tolerance);
        const Tensor dw = empty(weight_shape), sum = put(weight_shape, before);
        grouped_matmul_weight_grad(ex_, {.dy = d, .x = in, .dw = dw, .groups = groups, .write = Write::overwrite});
        EXPECT_LE(relative_error(values_of(dw), want), tolerance);
        grouped_matmul_weight_grad(ex_, {.dy = d, .x = in, .dw = sum, .groups = groups});
        EXPECT_LE(relative_error(values_of(sum), want_sum), tolerance);
        for (const Write write : {Write::overwrite, Write::accumulate}) {
          Values squares(static_cast<std::size_t>(weight_grad_squares(weight_shape)), std::nan(""));
          const Tensor of_dw(squares.data(), {weight_grad_squares(weight_shape)}, DType::f64);
          grouped_matmul_weight_grad(ex_,
                                     {.dy = d, .x = in, .dw = dw, .groups = groups, .write = write, .squares = of_dw});
          const Values now = values_of(dw);
          const double sum_of_squares = std::inner_product(now.begin(), now.end(), now.begin(), 0.0);
          EXPECT_NEAR(std::accumulate(squares.begin(), squares.end(), 0.0), sum_of_squares, 1e-13 * sum_of_squares);
        }
      }
    }
  }
}

/// A part of begin and rows with its weights: rows of other groups are neither read nor written.
TEST_P(GroupedMatmulTest, APartOfTheGroups) {
  const GroupSizes sizes{5, 0, 3, 7, 2};
  const GroupLayout layout(sizes, 4);
  const GroupRows all = put_groups(layout);
  const Index n = 3, k = 5, first = 1, count = 3;
  const Tensor x = put_rows(random_values(sum_of(sizes) * k, 1), layout, k),
               w = put({5, n, k}, random_values(5 * n * k, 2)), y = empty_rows(layout, n), part = empty(y.shape()),
               dw = empty(w.shape()), dw_part = empty(w.shape());
  const GroupRows groups = part_of(all, first, count);
  grouped_matmul(ex_, {.x = x, .w = w, .y = y, .groups = all});
  grouped_matmul(ex_, {.x = x, .w = w.rows(first, count), .y = part, .groups = groups});
  grouped_matmul_weight_grad(ex_, {.dy = y, .x = x, .dw = dw, .groups = all, .write = Write::overwrite});
  grouped_matmul_weight_grad(
      ex_, {.dy = y, .x = x, .dw = dw_part.rows(first, count), .groups = groups, .write = Write::overwrite});
  const Values whole = values_of(y), got = values_of(part);
  for (Index row = 0; row < y.dim(0); ++row) {
    const bool is_in = layout.has(row) && row >= layout.begin(1) && row < layout.begin(4);
    for (auto i = static_cast<std::size_t>(row * n); i < static_cast<std::size_t>((row + 1) * n); ++i) {
      if (is_in) {
        EXPECT_EQ(got[i], whole[i]);
      } else {
        EXPECT_TRUE(std::isnan(got[i])) << "row " << row;
      }
    }
  }
  EXPECT_EQ(values_of(dw_part.rows(first, count)), values_of(dw.rows(first, count)));
  for (const Index g : {0, 4}) {
    for (const double value : values_of(dw_part.rows(g, 1))) EXPECT_TRUE(std::isnan(value));
  }
}

/// Finite numbers in all rows would be seen in rows of no group.
TEST_P(GroupedMatmulTest, WritesRowsOfGroupsAlone) {
  const GroupLayout layout({5, 0, 3, 7, 2}, 4);
  const GroupRows groups = put_groups(layout);
  const Index rows = layout.end + kUnused, n = 3, k = 5;
  const Tensor x = put({rows, k}, random_values(rows * k, 1)), w = put({5, n, k}, random_values(5 * n * k, 2)),
               dy = put({rows, n}, random_values(rows * n, 3)), y = empty({rows, n}), dx = empty({rows, k});
  grouped_matmul(ex_, {.x = x, .w = w, .y = y, .groups = groups});
  grouped_matmul_input_grad(ex_, {.dy = dy, .w = w, .dx = dx, .groups = groups});
  for (const Tensor& result : {y, dx}) {
    for (const double value : used(result, layout)) EXPECT_TRUE(std::isfinite(value));
  }
}

/// Bits of any kind stay: NaN, -0 and all.
TEST_P(GroupedMatmulTest, AnEmptyGroupsGradientStaysOrIsCleared) {
  const GroupRows groups = put_groups(GroupLayout({0, 2, 0}));
  for (const DType type : {dtype(), DType::bf16}) {
    const Tensor of_dy = put({2, 3}, random_values(6, 1), type), of_x = put({2, 4}, random_values(8, 2), type);
    for (const DType of_dw : {type, statistics_dtype(type)}) {
      Values before(36, -0.0);
      before[5] = std::nan("");
      const Tensor dw = put({3, 3, 4}, before, of_dw), old = put({3, 3, 4}, before, of_dw);
      grouped_matmul_weight_grad(ex_, {.dy = of_dy, .x = of_x, .dw = dw, .groups = groups});
      for (const Index group : {0, 2}) {
        const Tensor now = dw.rows(group, 1), then = old.rows(group, 1);
        EXPECT_EQ(std::memcmp(now.raw(), then.raw(), static_cast<std::size_t>(now.bytes())), 0);
      }
      EXPECT_NE(values_of(dw)[12], 0);
      grouped_matmul_weight_grad(ex_, {.dy = of_dy, .x = of_x, .dw = dw, .groups = groups, .write = Write::overwrite});
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
  const GroupLayout layout({130, 0, 1, 57}, 8);
  const GroupRows groups = put_groups(layout);
  const Index rows = layout.end, n = 70, k = 90;
  for (const DType type : {dtype(), DType::bf16, DType::f16}) {
    const Tensor x = put({rows, k}, random_values(rows * k, 1), type),
                 w = put({4, n, k}, random_values(4 * n * k, 2), type);
    const Tensor dy = put({rows, n}, random_values(rows * n, 3), type);
    for (const DType out : {type, statistics_dtype(type)}) {
      const Tensor y = ex_.tensor({rows, n}, out), y2 = ex_.tensor({rows, n}, out), dx = ex_.tensor({rows, k}, out),
                   dx2 = ex_.tensor({rows, k}, out);
      const Tensor dw = put({4, n, k}, random_values(4 * n * k, 4), out),
                   dw2 = put({4, n, k}, random_values(4 * n * k, 4), out);
      grouped_matmul(ex_, {.x = x, .w = w, .y = y, .groups = groups});
      grouped_matmul_input_grad(ex_, {.dy = dy, .w = w, .dx = dx, .groups = groups});
      grouped_matmul_weight_grad(ex_, {.dy = dy, .x = x, .dw = dw, .groups = groups});
      for (Index g = 0; g < 4; ++g) {
        const Index first = layout.begin(g), count = layout.rows(g);
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
      EXPECT_EQ(used(y, layout), used(y2, layout));
      EXPECT_EQ(used(dx, layout), used(dx2, layout));
      EXPECT_EQ(values_of(dw), values_of(dw2));
    }
  }
}

TEST_P(GroupedMatmulTest, SameBitsForAnyTeam) {
  const GroupLayout layout({200, 0, 1, 31, 400});
  const GroupRows groups = put_groups(layout);
  const Index rows = layout.end, n = 100, k = 60;
  expect_same_bits_for_any_team([&] {
    const Tensor x = put({rows, k}, random_values(rows * k, 1)), w = put({5, n, k}, random_values(5 * n * k, 2)),
                 y = empty({rows, n}), dx = empty({rows, k}), dw = empty({5, n, k});
    grouped_matmul(ex_, {.x = x, .w = w, .y = y, .groups = groups});
    grouped_matmul_input_grad(ex_, {.dy = y, .w = w, .dx = dx, .groups = groups});
    grouped_matmul_weight_grad(ex_, {.dy = y, .x = x, .dw = dw, .groups = groups, .write = Write::overwrite});
    Values all = values_of(y);
    for (const Values& more : {values_of(dx), values_of(dw)}) all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

/// One op whatever the groups, which are not looked at while it is recorded.
TEST(GroupedMatmulRecording, GroupsAreReadWhenTheOpRuns) {
  Recording recording;
  recording.begin_phase();
  Exec recorder(Device::cpu, recording);
  const Tensor x = recorder.tensor({4, 3}, DType::f32), w = recorder.tensor({2, 5, 3}, DType::f32),
               y = recorder.tensor({4, 5}, DType::f32), table = recorder.tensor({2, 2}, DType::i32);
  grouped_matmul(recorder, {.x = x, .w = w, .y = y, .groups = GroupLayout({7, 900}).in(table)});
  EXPECT_EQ(recording.ops().size(), 1u);
}

TEST_P(GroupedMatmulTest, NamesGroupsThatDoNotLieInTheRows) {
  const Tensor x = empty({6, 3}), w = empty({2, 5, 3}), y = empty({6, 5});
  const auto error = [&](const std::vector<std::int32_t>& begin, const std::vector<std::int32_t>& rows,
                         Index alignment) {
    const GroupRows groups{.begin = put_ids(begin), .rows = put_ids(rows), .alignment = alignment};
    return error_text([&] { grouped_matmul(ex_, {.x = x, .w = w, .y = y, .groups = groups}); });
  };
  EXPECT_EQ(error({0, 3}, {3, 3}, 1), "");
  EXPECT_EQ(error({1, 5}, {3, 1}, 1), "") << "rows before, between and after need not be of a group";
  EXPECT_EQ(error({0, 6}, {3, 0}, 1), "") << "no row from the end on";
  EXPECT_EQ(error({0, 3}, {3, 4}, 1), "[grouped_matmul.groups] end = 7: must be at most 6, the rows");
  EXPECT_EQ(error({0, 7}, {3, 0}, 1), "[grouped_matmul.groups] end = 7: must be at most 6, the rows");
  EXPECT_EQ(error({0, 3}, {3, -1}, 1), "[grouped_matmul.groups] rows = -1: must be at least 0");
  EXPECT_EQ(error({0, 2}, {3, 1}, 1),
            "[grouped_matmul.groups] begin = 2: must be a multiple of 1 and at least 3, the end of the group before");
  EXPECT_EQ(error({-1, 3}, {1, 1}, 1),
            "[grouped_matmul.groups] begin = -1: must be a multiple of 1 and at least 0, the end of the group before");
  EXPECT_EQ(error({0, 3}, {3, 3}, 2),
            "[grouped_matmul.groups] begin = 3: must be a multiple of 2 and at least 3, the end of the group before");
  const GroupRows apart{.begin = put_ids({0, 3}), .rows = put_ids({3, 4})};
  EXPECT_EQ(error_text([&] { grouped_matmul_input_grad(ex_, {.dy = y, .w = w, .dx = x, .groups = apart}); }),
            "[grouped_matmul_input_grad.groups] end = 7: must be at most 6, the rows");
  EXPECT_EQ(error_text([&] { grouped_matmul_weight_grad(ex_, {.dy = y, .x = x, .dw = w, .groups = apart}); }),
            "[grouped_matmul_weight_grad.groups] end = 7: must be at most 6, the rows");
}

TEST_P(GroupedMatmulTest, NamesWhatDoesNotFit) {
  const Tensor x = empty({6, 3}), w = empty({2, 5, 3}), y = empty({6, 5});
  const GroupRows groups = put_groups(GroupLayout({3, 3}));
  const auto error = [&](const Tensor& to, const GroupRows& of) {
    return error_text([&] { grouped_matmul(ex_, {.x = x, .w = w, .y = to, .groups = of}); });
  };
  EXPECT_EQ(error(x, groups), "[grouped_matmul.y] shape = [6, 3]: must be [6, 5]");
  EXPECT_EQ(error(ex_.tensor({6, 5}, DType::bf16), groups), dtype() == DType::f32
                                                                ? "[grouped_matmul.y] dtype = bf16: must be f32"
                                                                : "[grouped_matmul.y] dtype = bf16: must be f64");
  EXPECT_EQ(error(y, put_groups(GroupLayout({3}))), "[grouped_matmul.groups.begin] shape = [1]: must be [2]");
  EXPECT_EQ(error(y, {.begin = groups.begin, .rows = put_ids({3})}),
            "[grouped_matmul.groups.rows] shape = [1]: must be [2]");
  EXPECT_EQ(error(y, {.begin = ex_.tensor({2}, DType::i64), .rows = groups.rows}),
            "[grouped_matmul.groups.begin] dtype = i64: must be i32");
  EXPECT_EQ(error(y, {.begin = groups.begin, .rows = groups.rows, .alignment = 0}),
            "[grouped_matmul.groups] alignment = 0: must be at least 1");
  EXPECT_EQ(error_text([&] { grouped_matmul_input_grad(ex_, {.dy = x, .w = w, .dx = x, .groups = groups}); }),
            "[grouped_matmul_input_grad.dy] shape = [6, 3]: must be [6, 5]");
  EXPECT_EQ(error_text([&] { grouped_matmul_weight_grad(ex_, {.dy = y, .x = y, .dw = w, .groups = groups}); }),
            "[grouped_matmul_weight_grad.x] shape = [6, 5]: must be [6, 3]");
  EXPECT_EQ(
      error_text([&] { grouped_matmul_weight_grad(ex_, {.dy = y, .x = x, .dw = w, .groups = groups, .squares = x}); }),
      "[grouped_matmul_weight_grad.squares] shape = [6, 3]: must be [16]");
  const Tensor many = ex_.tensor({1025, 5, 3}, dtype());
  EXPECT_EQ(error_text([&] { grouped_matmul(ex_, {.x = x, .w = many, .y = y, .groups = groups}); }),
            "[grouped_matmul.w] groups = 1025: must be in 1 .. 1024");
}

}  // namespace
}  // namespace megalith::ops
