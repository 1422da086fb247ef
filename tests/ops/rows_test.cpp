#include "megalith/ops/rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

using Ids = std::vector<std::int32_t>;

/// Experts of all tokens, some pairs dropped; of a token no expert twice.
Ids some_experts(Index tokens, Index top_k, Index experts, bool drops) {
  Ids ids;
  for (Index t = 0; t < tokens; ++t) {
    for (Index k = 0; k < top_k; ++k) {
      const bool dropped = drops && (t * top_k + k) % 5 == 3;
      ids.push_back(dropped ? -1 : static_cast<std::int32_t>((t * t + k * 3 + k) % experts));
    }
  }
  return ids;
}

struct MapCase {
  Index tokens, top_k, experts, hidden;
  Index rows_per_expert = 0;
  bool drops = false;
  Index alignment = 1;
};
const MapCase kMapCases[] = {{0, 2, 3, 4},
                             {1, 1, 1, 1},
                             {7, 2, 5, 3},
                             {40, 3, 8, 37, 0, true},
                             {9, 2, 4, 8, 3},
                             {30, 2, 4, 5, 9, true},
                             {12, 4, 4, 6, 12},
                             {600, 2, 16, 40},
                             {25, 1, 300, 12, 0},
                             {6, 2, 2, 64, 6},
                             {0, 2, 3, 4, 0, false, 4},
                             {7, 2, 5, 3, 0, false, 4},
                             {40, 3, 8, 37, 0, true, 4},
                             {40, 3, 8, 1, 0, true, 4},
                             {3, 1, 300, 1, 0, false, 4},
                             {9, 2, 4, 8, 3, false, 4},
                             {30, 2, 4, 1, 9, true, 4},
                             {12, 4, 4, 6, 12, false, 4},
                             {40, 3, 8, 37, 0, true, 128},
                             {30, 2, 4, 5, 9, true, 128},
                             {600, 2, 5, 3, 0, false, 128}};

struct Map {
  Ids begin, rows, row_of, pair_of;
};
/// By looking for each expert's pairs in turn.
Map map_of(const MapCase& c, const Ids& experts_of) {
  Map map;
  const Index per_expert = c.rows_per_expert;
  map.row_of.assign(experts_of.size(), kZeroRow);
  for (Index e = 0; e < c.experts; ++e) {
    const std::size_t begin = map.pair_of.size();
    for (std::size_t pair = 0; pair < experts_of.size(); ++pair) {
      const std::size_t next = map.pair_of.size();
      if (experts_of[pair] != e || (per_expert > 0 && next == begin + static_cast<std::size_t>(per_expert))) continue;
      map.pair_of.push_back(static_cast<std::int32_t>(pair));
      map.row_of[pair] = static_cast<std::int32_t>(next);
    }
    const auto taken = static_cast<Index>(map.pair_of.size() - begin);
    map.begin.push_back(static_cast<std::int32_t>(begin));
    map.rows.push_back(static_cast<std::int32_t>(per_expert > 0 ? per_expert : taken));
    while (static_cast<Index>(map.pair_of.size() - begin) < map.rows.back() ||
           static_cast<Index>(map.pair_of.size()) % c.alignment != 0)
      map.pair_of.push_back(kZeroRow);
  }
  const auto all = static_cast<std::size_t>(
      rows_to_build(static_cast<Index>(experts_of.size()), c.experts, per_expert, c.alignment));
  EXPECT_LE(map.pair_of.size(), all);
  map.pair_of.resize(all, kUnusedRow);
  return map;
}

class RowsTest : public OpTest {
 protected:
  struct Tensors {
    Tensor experts;
    GroupRows groups;
    Tensor row_of, pair_of;
  };
  Tensors build(const MapCase& c, const Ids& ids) {
    const Index rows = rows_to_build(c.tokens * c.top_k, c.experts, c.rows_per_expert, c.alignment);
    const Tensors t{.experts = put_ids(ids).reshaped({c.tokens, c.top_k}),
                    .groups = {.begin = ex_.tensor({c.experts}, DType::i32),
                               .rows = ex_.tensor({c.experts}, DType::i32),
                               .alignment = c.alignment},
                    .row_of = ex_.tensor({c.tokens, c.top_k}, DType::i32),
                    .pair_of = ex_.tensor({rows}, DType::i32)};
    build_rows(ex_, {.experts = t.experts,
                     .groups = t.groups,
                     .row_of = t.row_of,
                     .pair_of = t.pair_of,
                     .rows_per_expert = c.rows_per_expert});
    return t;
  }
  static Ids list_of(const Tensor& tensor) {
    const auto span = tensor.span<std::int32_t>();
    return {span.begin(), span.end()};
  }
  /// NaN in the rows that no pair has: nothing may read them.
  static Values with_holes(Values rows, const Ids& pair_of, Index hidden) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (pair_of[i / static_cast<std::size_t>(hidden)] < 0) rows[i] = std::nan("");
    }
    return rows;
  }
};
MEGALITH_OPS_PRECISIONS(RowsTest);

Values summed(const Values& rows, const Values& weights, const Ids& row_of, Index top_k, Index hidden) {
  Values y(row_of.size() / static_cast<std::size_t>(top_k) * static_cast<std::size_t>(hidden), 0.0);
  for (std::size_t pair = 0; pair < row_of.size(); ++pair) {
    if (row_of[pair] < 0) continue;
    for (Index h = 0; h < hidden; ++h) {
      y[pair / static_cast<std::size_t>(top_k) * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(h)] +=
          weights[pair] * rows[static_cast<std::size_t>(row_of[pair] * hidden + h)];
    }
  }
  return y;
}

TEST_P(RowsTest, MapsOfPairsAndRows) {
  for (const MapCase& c : kMapCases) {
    SCOPED_TRACE(::testing::Message() << c.tokens << " x " << c.top_k << " of " << c.experts << ", "
                                      << c.rows_per_expert << " each, alignment " << c.alignment);
    const Ids ids = some_experts(c.tokens, c.top_k, c.experts, c.drops);
    const Map want = map_of(c, ids);
    const Tensors got = build(c, ids);
    EXPECT_EQ(list_of(got.groups.begin), want.begin);
    EXPECT_EQ(list_of(got.groups.rows), want.rows);
    EXPECT_EQ(list_of(got.row_of), want.row_of);
    EXPECT_EQ(list_of(got.pair_of), want.pair_of);
  }
}

/// One map in full: groups of 1, 0, 5 and 2 rows, one pair dropped.
TEST_P(RowsTest, GroupsBeginAtMultiples) {
  const Ids ids = {2, 0, 2, 3, -1, 2, 2, 3, 2};
  const Tensors of_all = build({9, 1, 4, 1, 0, true, 4}, ids);
  EXPECT_EQ(list_of(of_all.groups.begin), (Ids{0, 4, 4, 12}));
  EXPECT_EQ(list_of(of_all.groups.rows), (Ids{1, 0, 5, 2}));
  EXPECT_EQ(list_of(of_all.row_of), (Ids{4, 0, 5, 12, -1, 6, 7, 13, 8}));
  EXPECT_EQ(list_of(of_all.pair_of), (Ids{1, -1, -1, -1, 0, 2, 5, 6, 8, -1, -1, -1, 3, 7, -1, -1, -2, -2, -2, -2}));
  const Tensors of_three = build({9, 1, 4, 1, 3, true, 4}, ids);
  EXPECT_EQ(list_of(of_three.groups.begin), (Ids{0, 4, 8, 12}));
  EXPECT_EQ(list_of(of_three.groups.rows), (Ids{3, 3, 3, 3}));
  EXPECT_EQ(list_of(of_three.row_of), (Ids{8, 0, 9, 12, -1, 10, -1, 13, -1}));
  EXPECT_EQ(list_of(of_three.pair_of), (Ids{1, -1, -1, -1, -1, -1, -1, -1, 0, 2, 5, -1, 3, 7, -1, -1}));
}

TEST(Rows, CapacityHoldsAnyGroupsAndNoMore) {
  EXPECT_EQ(capacity_of_groups(10, 4, 1), 10);
  EXPECT_EQ(capacity_of_groups(10, 4, 4), 20) << "1, 1, 1 and 7 rows";
  EXPECT_EQ(capacity_of_groups(11, 4, 4), 20) << "1, 1, 1 and 8 rows";
  EXPECT_EQ(capacity_of_groups(2, 8, 128), 256) << "in two groups, the others are empty";
  EXPECT_EQ(capacity_of_groups(0, 8, 128), 0);
  EXPECT_EQ(rows_to_build(10, 4, 0, 4), 20);
  EXPECT_EQ(rows_to_build(10, 4, 5, 4), 32) << "each expert's rows are rounded up";
  EXPECT_EQ(rows_to_build(10, 4, 5, 1), 20);
}

/// Zeros where a group is filled up; rows after the last group keep their NaN.
TEST_P(RowsTest, PermutesAndFillsUpGroups) {
  Index zeros = 0, unused = 0;
  for (const MapCase& c : kMapCases) {
    const Tensors map = build(c, some_experts(c.tokens, c.top_k, c.experts, c.drops));
    const Ids pair_of = list_of(map.pair_of);
    const Values x = random_values(c.tokens * c.hidden, 1);
    for (const DType type : {dtype(), DType::bf16}) {
      const Tensor in = put({c.tokens, c.hidden}, x, type), rows = ex_.tensor({map.pair_of.numel(), c.hidden}, type);
      permute_rows(ex_, {.x = in, .pair_of = map.pair_of, .rows = rows, .top_k = c.top_k});
      const Values got = values_of(rows), of_tokens = values_of(in);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const Index row = static_cast<Index>(i) / c.hidden, h = static_cast<Index>(i) % c.hidden;
        const std::int32_t pair = pair_of[static_cast<std::size_t>(row)];
        if (pair == kUnusedRow) {
          ASSERT_TRUE(std::isnan(got[i])) << "row " << row << " was written";
          ++unused;
        } else if (pair == kZeroRow) {
          ASSERT_TRUE(got[i] == 0 && !std::signbit(got[i])) << "row " << row << " has " << got[i];
          ++zeros;
        } else {
          ASSERT_EQ(got[i], of_tokens[static_cast<std::size_t>(pair / c.top_k * c.hidden + h)]) << "row " << row;
        }
      }
    }
  }
  EXPECT_GT(zeros, 0);
  EXPECT_GT(unused, 0);
}

TEST_P(RowsTest, SumsInTheOrderOfTheChoices) {
  for (const MapCase& c : kMapCases) {
    const Tensors map = build(c, some_experts(c.tokens, c.top_k, c.experts, c.drops));
    const Ids row_of = list_of(map.row_of), pair_of = list_of(map.pair_of);
    const Index count = map.pair_of.numel();
    const Values rows = with_holes(random_values(count * c.hidden, 2), pair_of, c.hidden),
                 weights = random_values(c.tokens * c.top_k, 3);
    for (const bool weighted : {true, false}) {
      const Tensor y = empty({c.tokens, c.hidden});
      sum_rows(ex_, {.rows = put({count, c.hidden}, rows),
                     .row_of = map.row_of,
                     .weights = weighted ? put({c.tokens, c.top_k}, weights) : Tensor(),
                     .y = y});
      expect_near(y, summed(rows, weighted ? weights : Values(weights.size(), 1.0), row_of, c.top_k, c.hidden), "y");
    }
  }
  if (dtype() != DType::f32) return;
  // (1e8 + -1e8) + 1 is 1 in f32, in any other order 0.
  const Tensor y = empty({1, 1}), row_of = put_ids({2, 0, 1}).reshaped({1, 3});
  sum_rows(ex_, {.rows = put({3, 1}, {-1e8, 1, 1e8}), .row_of = row_of, .weights = {}, .y = y});
  EXPECT_EQ(values_of(y)[0], 1);
}

/// A token without a row sums up to 0, whichever mark its pairs have.
TEST_P(RowsTest, NoRowsSumUpToZero) {
  const Tensor y = empty({3, 2}), row_of = put_ids({kZeroRow, kUnusedRow, 0, kUnusedRow, kZeroRow, 0}).reshaped({3, 2});
  sum_rows(ex_, {.rows = put({1, 2}, {3, 4}), .row_of = row_of, .weights = {}, .y = y});
  EXPECT_EQ(values_of(y), (Values{0, 0, 3, 4, 3, 4}));
}

/// The backward pass of a weighted sum, of the two ops alone: with dy and the weights permuted, a row's gradient is
/// their product, and that of its weight the dot product of the row and dy.
TEST_P(RowsTest, BackwardEqualsDifferences) {
  for (const MapCase& c : kMapCases) {
    if (c.tokens > 100 || c.alignment > 100) continue;
    const Tensors map = build(c, some_experts(c.tokens, c.top_k, c.experts, c.drops));
    const Ids row_of = list_of(map.row_of), pair_of = list_of(map.pair_of);
    const Index count = map.pair_of.numel(), pairs = c.tokens * c.top_k;
    const auto hidden = static_cast<std::size_t>(c.hidden);
    const Values rows = random_values(count * c.hidden, 2), weights = random_values(pairs, 3),
                 dy = random_values(c.tokens * c.hidden, 4);
    const auto loss = [&](const Values& of_rows, const Values& of_weights) {
      const Values y = summed(of_rows, of_weights, row_of, c.top_k, c.hidden);
      return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
    };
    const Values want_rows = numeric_gradient(rows, [&](const Values& at) { return loss(at, weights); });
    const Values want_weights = numeric_gradient(weights, [&](const Values& at) { return loss(rows, at); });
    const Tensor dy_of = empty({count, c.hidden}), p = empty({count, 1}), d_weights = empty({pairs, 1});
    permute_rows(ex_, {.x = put({c.tokens, c.hidden}, dy), .pair_of = map.pair_of, .rows = dy_of, .top_k = c.top_k});
    permute_rows(ex_, {.x = put({pairs, 1}, weights), .pair_of = map.pair_of, .rows = p, .top_k = 1});
    Values d_rows = values_of(dy_of), dots(static_cast<std::size_t>(count), std::nan(""));
    const Values factors = values_of(p);
    for (std::size_t i = 0; i < d_rows.size(); ++i) {
      const std::size_t row = i / hidden;
      if (pair_of[row] >= 0) dots[row] = (i % hidden == 0 ? 0 : dots[row]) + rows[i] * d_rows[i];
      d_rows[i] = pair_of[row] == kUnusedRow ? 0 : d_rows[i] * factors[row];
    }
    sum_rows(ex_,
             {.rows = put({count, 1}, dots), .row_of = map.row_of.reshaped({pairs, 1}), .weights = {}, .y = d_weights});
    const double tolerance = dtype() == DType::f32 ? 1e-6 : 1e-8;
    EXPECT_LT(relative_error(d_rows, want_rows), tolerance);
    EXPECT_LT(relative_error(values_of(d_weights), want_weights), tolerance);
  }
}

/// Bits do not depend on how rows are spread over threads, nor on where an expert's rows begin.
TEST_P(RowsTest, SameBitsForAnyTeamAndAlignment) {
  Values before;
  for (const Index alignment : {1, 4, 128}) {
    const MapCase c{1000, 3, 24, 50, 0, true, alignment};
    const Ids ids = some_experts(c.tokens, c.top_k, c.experts, c.drops);
    const auto run = [&] {
      const Tensors map = build(c, ids);
      const Tensor rows = empty({map.pair_of.numel(), c.hidden}), y = empty({c.tokens, c.hidden}),
                   w = put({c.tokens, c.top_k}, random_values(c.tokens * c.top_k, 3));
      permute_rows(ex_, {.x = put({c.tokens, c.hidden}, random_values(c.tokens * c.hidden, 1)),
                         .pair_of = map.pair_of,
                         .rows = rows,
                         .top_k = c.top_k});
      sum_rows(ex_, {.rows = rows, .row_of = map.row_of, .weights = w, .y = y});
      return values_of(y);
    };
    expect_same_bits_for_any_team(run);
    const Values now = run();
    if (alignment == 1) before = now;
    EXPECT_EQ(now, before) << "alignment " << alignment;
  }
}

TEST_P(RowsTest, NamesWhatDoesNotFit) {
  EXPECT_EQ(error_text([&] {
              build({3, 2, 4, 1}, {0, 1, 2, 4, 0, 1});
            }),
            "[build_rows] experts[1, 1] = 4: must be in -1 .. 3");
  EXPECT_EQ(error_text([&] { build({1, 2, 4, 1}, {0, -2}); }), "[build_rows] experts[0, 1] = -2: must be in -1 .. 3");
  const Tensor ids = put_ids({0, 1, 2, 3, 0, 1}).reshaped({3, 2}), four = ex_.tensor({4}, DType::i32),
               wide = ex_.tensor({4}, DType::i64), row_of = ex_.tensor({3, 2}, DType::i32),
               pair_of = ex_.tensor({6}, DType::i32);
  const auto build_error = [&](const Tensor& of_rows, Index rows_per_expert, const GroupRows& groups) {
    return error_text([&] {
      build_rows(
          ex_,
          {.experts = ids, .groups = groups, .row_of = row_of, .pair_of = of_rows, .rows_per_expert = rows_per_expert});
    });
  };
  const GroupRows of_one{.begin = four, .rows = four}, of_eight{.begin = four, .rows = four, .alignment = 8};
  EXPECT_EQ(build_error(pair_of, 2, of_one), "[build_rows.pair_of] shape = [6]: must be [8]");
  EXPECT_EQ(build_error(four, 0, of_one), "[build_rows.pair_of] shape = [4]: must be [6]");
  EXPECT_EQ(build_error(pair_of, 0, of_eight), "[build_rows.pair_of] shape = [6]: must be [32]");
  EXPECT_EQ(build_error(pair_of, 9, of_eight), "[build_rows.pair_of] shape = [6]: must be [64]");
  EXPECT_EQ(build_error(pair_of, -1, of_one), "[build_rows] rows_per_expert = -1: must be at least 0");
  const Tensor many = ex_.tensor({2000}, DType::i32);
  EXPECT_EQ(build_error(pair_of, 0, {.begin = many, .rows = many}),
            "[build_rows.groups] experts = 2000: must be in 1 .. 1024");
  EXPECT_EQ(build_error(pair_of, 0, {.begin = four, .rows = four, .alignment = 0}),
            "[build_rows.groups] alignment = 0: must be at least 1");
  EXPECT_EQ(build_error(pair_of, 0, {.begin = four, .rows = pair_of}),
            "[build_rows.groups.rows] shape = [6]: must be [4]");
  EXPECT_EQ(build_error(pair_of, 0, {.begin = wide, .rows = four}),
            "[build_rows.groups.begin] dtype = i64: must be i32");
  const Tensor x = empty({3, 8}), rows = empty({6, 8});
  EXPECT_EQ(error_text([&] { permute_rows(ex_, {.x = x, .pair_of = pair_of, .rows = x, .top_k = 2}); }),
            "[permute_rows.rows] shape = [3, 8]: must be [6, 8]");
  EXPECT_EQ(error_text([&] { permute_rows(ex_, {.x = x, .pair_of = pair_of, .rows = rows, .top_k = 0}); }),
            "[permute_rows] top_k = 0: must be in 1 .. 1024");
  EXPECT_EQ(
      error_text([&] { permute_rows(ex_, {.x = x, .pair_of = pair_of, .row_of = pair_of, .rows = rows, .top_k = 2}); }),
      "[permute_rows.row_of] shape = [6]: must be [3, 2]");
  EXPECT_EQ(error_text([&] { sum_rows(ex_, {.rows = rows, .row_of = row_of, .weights = x, .y = x}); }),
            "[sum_rows.weights] shape = [3, 8]: must be [3, 2]");
  EXPECT_EQ(error_text([&] { sum_rows(ex_, {.rows = rows, .row_of = row_of, .weights = {}, .y = rows}); }),
            "[sum_rows.y] shape = [6, 8]: must be [3, 8]");
}

}  // namespace
}  // namespace megalith::ops
