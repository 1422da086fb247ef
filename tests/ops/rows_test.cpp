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

struct Map {
  std::vector<std::int64_t> counts, offsets;
  Ids row_of, pair_of;
};
/// By looking for each expert's pairs in turn.
Map map_of(const Ids& experts_of, Index experts, Index rows_per_expert) {
  Map map;
  const auto rows = static_cast<std::size_t>(rows_per_expert == 0 ? static_cast<Index>(experts_of.size())
                                                                  : experts * rows_per_expert);
  map.row_of.assign(experts_of.size(), -1);
  map.pair_of.assign(rows, -1);
  std::int64_t next = 0;
  for (Index e = 0; e < experts; ++e) {
    if (rows_per_expert > 0) next = e * rows_per_expert;
    map.offsets.push_back(next);
    for (std::size_t pair = 0; pair < experts_of.size(); ++pair) {
      if (experts_of[pair] != e || (rows_per_expert > 0 && next == (e + 1) * rows_per_expert)) continue;
      map.pair_of[static_cast<std::size_t>(next)] = static_cast<std::int32_t>(pair);
      map.row_of[pair] = static_cast<std::int32_t>(next++);
    }
    map.counts.push_back(next - map.offsets.back());
  }
  return map;
}

struct MapCase {
  Index tokens, top_k, experts, hidden;
  Index rows_per_expert = 0;
  bool drops = false;
};
const MapCase kMapCases[] = {{0, 2, 3, 4},        {1, 1, 1, 1},           {7, 2, 5, 3},      {40, 3, 8, 37, 0, true},
                             {9, 2, 4, 8, 3},     {30, 2, 4, 5, 9, true}, {12, 4, 4, 6, 12}, {600, 2, 16, 40},
                             {25, 1, 300, 12, 0}, {6, 2, 2, 64, 6}};

class RowsTest : public OpTest {
 protected:
  struct Tensors {
    Tensor experts, counts, offsets, row_of, pair_of;
  };
  Tensors build(const MapCase& c, const Ids& ids) {
    const Index rows = c.rows_per_expert == 0 ? c.tokens * c.top_k : c.experts * c.rows_per_expert;
    const Tensors t{put_ids(ids).reshaped({c.tokens, c.top_k}), ex_.tensor({c.experts}, DType::i64),
                    ex_.tensor({c.experts}, DType::i64), ex_.tensor({c.tokens, c.top_k}, DType::i32),
                    ex_.tensor({rows}, DType::i32)};
    build_rows(ex_, {.experts = t.experts,
                     .counts = t.counts,
                     .offsets = t.offsets,
                     .row_of = t.row_of,
                     .pair_of = t.pair_of,
                     .rows_per_expert = c.rows_per_expert});
    return t;
  }
  template <class V>
  static std::vector<V> list_of(const Tensor& tensor) {
    const auto span = tensor.span<V>();
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
    const Ids ids = some_experts(c.tokens, c.top_k, c.experts, c.drops);
    const Map want = map_of(ids, c.experts, c.rows_per_expert);
    const Tensors got = build(c, ids);
    EXPECT_EQ(list_of<std::int64_t>(got.counts), want.counts);
    EXPECT_EQ(list_of<std::int64_t>(got.offsets), want.offsets);
    EXPECT_EQ(list_of<std::int32_t>(got.row_of), want.row_of);
    EXPECT_EQ(list_of<std::int32_t>(got.pair_of), want.pair_of);
  }
}

TEST_P(RowsTest, PermutesAndLeavesOrClearsUnusedRows) {
  for (const MapCase& c : kMapCases) {
    const Tensors map = build(c, some_experts(c.tokens, c.top_k, c.experts, c.drops));
    const Ids pair_of = list_of<std::int32_t>(map.pair_of);
    const Values x = random_values(c.tokens * c.hidden, 1);
    for (const UnusedRows unused : {UnusedRows::leave, UnusedRows::zero}) {
      const Index count = map.pair_of.numel();
      const Tensor rows = put({count, c.hidden}, Values(static_cast<std::size_t>(count * c.hidden), 7.0));
      permute_rows(ex_, {.x = put({c.tokens, c.hidden}, x),
                         .pair_of = map.pair_of,
                         .rows = rows,
                         .top_k = c.top_k,
                         .unused = unused});
      Values want;
      for (const std::int32_t pair : pair_of) {
        for (Index h = 0; h < c.hidden; ++h) {
          const double empty_value = unused == UnusedRows::leave ? 7 : 0;
          want.push_back(pair < 0 ? empty_value : x[static_cast<std::size_t>(pair / c.top_k * c.hidden + h)]);
        }
      }
      EXPECT_EQ(values_of(rows), want);
    }
  }
}

TEST_P(RowsTest, SumsInTheOrderOfTheChoices) {
  for (const MapCase& c : kMapCases) {
    const Tensors map = build(c, some_experts(c.tokens, c.top_k, c.experts, c.drops));
    const Ids row_of = list_of<std::int32_t>(map.row_of), pair_of = list_of<std::int32_t>(map.pair_of);
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

TEST_P(RowsTest, BackwardEqualsDifferences) {
  for (const MapCase& c : kMapCases) {
    if (c.tokens > 100) continue;
    const Tensors map = build(c, some_experts(c.tokens, c.top_k, c.experts, c.drops));
    const Ids row_of = list_of<std::int32_t>(map.row_of), pair_of = list_of<std::int32_t>(map.pair_of);
    const Index count = map.pair_of.numel();
    const Values rows = random_values(count * c.hidden, 2), weights = random_values(c.tokens * c.top_k, 3),
                 dy = random_values(c.tokens * c.hidden, 4);
    const auto loss = [&](const Values& of_rows, const Values& of_weights) {
      const Values y = summed(of_rows, of_weights, row_of, c.top_k, c.hidden);
      return std::inner_product(y.begin(), y.end(), dy.begin(), 0.0);
    };
    const Values want_rows = numeric_gradient(rows, [&](const Values& at) { return loss(at, weights); });
    const Values want_weights = numeric_gradient(weights, [&](const Values& at) { return loss(rows, at); });
    const Tensor in = put({count, c.hidden}, with_holes(rows, pair_of, c.hidden)), d = put({c.tokens, c.hidden}, dy),
                 w = put({c.tokens, c.top_k}, weights), d_rows = empty({count, c.hidden}),
                 d_weights = empty({c.tokens, c.top_k});
    SumRowsBackward args{.dy = d,
                         .rows = in,
                         .row_of = map.row_of,
                         .pair_of = map.pair_of,
                         .weights = w,
                         .d_rows = d_rows,
                         .d_weights = d_weights,
                         .unused = UnusedRows::zero};
    const double tolerance = dtype() == DType::f32 ? 1e-6 : 1e-8;
    sum_rows_backward(ex_, args);
    EXPECT_LT(relative_error(values_of(d_rows), want_rows), tolerance);
    EXPECT_LT(relative_error(values_of(d_weights), want_weights), tolerance);
    // Each alone, and in place.
    args.d_rows = {};
    args.weights = {};
    args.d_weights = empty({c.tokens, c.top_k});
    sum_rows_backward(ex_, args);
    EXPECT_EQ(values_of(args.d_weights), values_of(d_weights));
    args.weights = w;
    args.d_rows = in;
    sum_rows_backward(ex_, args);
    EXPECT_EQ(values_of(in), values_of(d_rows));
    EXPECT_EQ(values_of(args.d_weights), values_of(d_weights));
    args.d_weights = {};
    args.rows = {};
    args.d_rows = put({count, c.hidden}, Values(static_cast<std::size_t>(count * c.hidden), 7.0));
    args.unused = UnusedRows::leave;
    sum_rows_backward(ex_, args);
    const Values left = values_of(args.d_rows), cleared = values_of(d_rows);
    for (std::size_t i = 0; i < left.size(); ++i)
      EXPECT_EQ(left[i], pair_of[i / static_cast<std::size_t>(c.hidden)] < 0 ? 7 : cleared[i]);
  }
}

/// Bits do not depend on how rows are spread over threads, nor on where an expert's rows begin.
TEST_P(RowsTest, SameBitsForAnyTeam) {
  const MapCase c{1000, 3, 24, 50, 0, true};
  expect_same_bits_for_any_team([&] {
    const Tensors map = build(c, some_experts(c.tokens, c.top_k, c.experts, c.drops));
    const Index count = map.pair_of.numel();
    const Tensor rows = empty({count, c.hidden}), y = empty({c.tokens, c.hidden}), dw = empty({c.tokens, c.top_k}),
                 w = put({c.tokens, c.top_k}, random_values(c.tokens * c.top_k, 3));
    permute_rows(ex_, {.x = put({c.tokens, c.hidden}, random_values(c.tokens * c.hidden, 1)),
                       .pair_of = map.pair_of,
                       .rows = rows,
                       .top_k = c.top_k,
                       .unused = UnusedRows::zero});
    sum_rows(ex_, {.rows = rows, .row_of = map.row_of, .weights = w, .y = y});
    sum_rows_backward(ex_, {.dy = y,
                            .rows = rows,
                            .row_of = map.row_of,
                            .pair_of = map.pair_of,
                            .weights = w,
                            .d_rows = rows,
                            .d_weights = dw});
    Values all = values_of(y);
    for (const Values& more : {values_of(rows), values_of(dw)}) all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

TEST_P(RowsTest, NamesWhatDoesNotFit) {
  EXPECT_EQ(error_text([&] {
              build({3, 2, 4, 1}, {0, 1, 2, 4, 0, 1});
            }),
            "[build_rows] experts[1, 1] = 4: must be in -1 .. 3");
  EXPECT_EQ(error_text([&] { build({1, 2, 4, 1}, {0, -2}); }), "[build_rows] experts[0, 1] = -2: must be in -1 .. 3");
  const Tensor ids = put_ids({0, 1, 2, 3, 0, 1}).reshaped({3, 2}), counts = ex_.tensor({4}, DType::i64),
               row_of = ex_.tensor({3, 2}, DType::i32), pair_of = ex_.tensor({6}, DType::i32);
  const auto build_error = [&](const Tensor& of_rows, Index rows_per_expert, const Tensor& of_experts) {
    return error_text([&] {
      build_rows(ex_, {.experts = ids,
                       .counts = of_experts,
                       .offsets = counts,
                       .row_of = row_of,
                       .pair_of = of_rows,
                       .rows_per_expert = rows_per_expert});
    });
  };
  EXPECT_EQ(build_error(pair_of, 2, counts), "[build_rows.pair_of] shape = [6]: must be [8]");
  EXPECT_EQ(build_error(counts, 0, counts), "[build_rows.pair_of] shape = [4]: must be [6]");
  EXPECT_EQ(build_error(pair_of, -1, counts), "[build_rows] rows_per_expert = -1: must be at least 0");
  EXPECT_EQ(build_error(pair_of, 0, ex_.tensor({2000}, DType::i64)),
            "[build_rows.counts] experts = 2000: must be in 1 .. 1024");
  const Tensor x = empty({3, 8}), rows = empty({6, 8}), weights = empty({3, 2});
  EXPECT_EQ(error_text([&] { permute_rows(ex_, {.x = x, .pair_of = pair_of, .rows = x, .top_k = 2}); }),
            "[permute_rows.rows] shape = [3, 8]: must be [6, 8]");
  EXPECT_EQ(error_text([&] { permute_rows(ex_, {.x = x, .pair_of = pair_of, .rows = rows, .top_k = 0}); }),
            "[permute_rows] top_k = 0: must be in 1 .. 1024");
  EXPECT_EQ(error_text([&] { sum_rows(ex_, {.rows = rows, .row_of = row_of, .weights = x, .y = x}); }),
            "[sum_rows.weights] shape = [3, 8]: must be [3, 2]");
  EXPECT_EQ(error_text([&] { sum_rows(ex_, {.rows = rows, .row_of = row_of, .weights = {}, .y = rows}); }),
            "[sum_rows.y] shape = [6, 8]: must be [3, 8]");
  EXPECT_EQ(error_text([&] {
              sum_rows_backward(ex_, {.dy = x,
                                      .rows = x,
                                      .row_of = row_of,
                                      .pair_of = pair_of,
                                      .weights = weights,
                                      .d_rows = rows,
                                      .d_weights = weights});
            }),
            "[sum_rows_backward.rows] shape = [3, 8]: must be [6, 8]");
}

}  // namespace
}  // namespace megalith::ops
