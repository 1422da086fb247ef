#include "megalith/ops/expert_choices.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "megalith/ops/expert_load.h"
#include "megalith/ops/gated_sum.h"
#include "megalith/ops/step_end.h"

#include "tests/ops/op_test.h"

// The small ops of mixtures of experts: places of rows, counters, gates.
namespace megalith::ops {
namespace {

using Ids = std::vector<std::int32_t>;

template <class T>
std::vector<T> copy_of(const Tensor& tensor) {
  const std::span<T> all = tensor.span<T>();
  return {all.begin(), all.end()};
}

template <class T>
Tensor put_numbers(Exec& ex, const Shape& shape, DType dtype, const std::vector<T>& values) {
  const Tensor tensor = ex.tensor(shape, dtype);
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}

TEST(ExpertChoices, DestinationsAreSlicesOnRanks) {
  Exec ex;
  // 6 experts on 3 ranks of ep, 2 slices; ranks of a slice are neighbours.
  const Tensor experts = put_numbers<std::int32_t>(ex, {2, 2}, DType::i32, {5, 0, -1, 3});
  const Tensor places = ex.tensor({2, 4}, DType::i32);
  place_choices(ex, {.experts = experts,
                     .destinations = places,
                     .ranks = {.local_experts = 2, .slices = 2, .expert_stride = 2, .slice_stride = 1}});
  EXPECT_EQ(copy_of<std::int32_t>(places), (Ids{9, 11, 0, 2, -1, -1, 5, 7}));
  // The same where ranks of ep are neighbours.
  place_choices(ex, {.experts = experts,
                     .destinations = places,
                     .ranks = {.local_experts = 2, .slices = 2, .expert_stride = 1, .slice_stride = 3}});
  EXPECT_EQ(copy_of<std::int32_t>(places), (Ids{5, 11, 0, 6, -1, -1, 3, 9}));
}

TEST(ExpertChoices, WeightsOfSlicesAreRepeatedAndSummed) {
  Exec ex;
  const Tensor weights = put_numbers<double>(ex, {1, 2}, DType::f64, {0.5, 2});
  const Tensor slices = ex.tensor({1, 6}, DType::f64), back = ex.tensor({1, 2}, DType::f64);
  repeat_choices(ex, weights, slices);
  EXPECT_EQ(copy_of<double>(slices), (std::vector<double>{0.5, 0.5, 0.5, 2, 2, 2}));
  sum_slices(ex, slices, back);
  EXPECT_EQ(copy_of<double>(back), (std::vector<double>{1.5, 6}));
}

TEST(ExpertChoices, EvenChoicesGiveEveryExpertAsMany) {
  Exec ex;
  const Tensor whole = ex.tensor({6, 2}, DType::i32), part = ex.tensor({3, 2}, DType::i32);
  even_choices(ex, {.experts = whole, .num_experts = 4});
  EXPECT_EQ(copy_of<std::int32_t>(whole), (Ids{0, 3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1}));
  even_choices(ex, {.experts = part, .num_experts = 4, .first_row = 3});
  EXPECT_EQ(copy_of<std::int32_t>(part), (Ids{2, 1, 0, 3, 2, 1})) << "a share of the rows has its part of them";
}

TEST(ExpertChoices, EvenChoicesSpreadATokensExperts) {
  Exec ex;
  for (const auto& [experts, top_k, of_rank] :
       {std::array<Index, 3>{64, 8, 16}, {8, 2, 4}, {128, 8, 16}, {60, 4, 15}, {6, 6, 1}, {7, 1, 1}}) {
    SCOPED_TRACE(::testing::Message() << top_k << " of " << experts);
    const Tensor choices = ex.tensor({experts, top_k}, DType::i32);
    even_choices(ex, {.experts = choices, .num_experts = experts});
    std::vector<Index> counts(static_cast<std::size_t>(experts), 0);
    for (Index token = 0; token < experts; ++token) {
      std::set<Index> of_token, ranks;
      for (Index k = 0; k < top_k; ++k) {
        const Index expert = choices.data<std::int32_t>()[token * top_k + k];
        ++counts.at(static_cast<std::size_t>(expert));
        of_token.insert(expert);
        ranks.insert(expert / of_rank);
      }
      EXPECT_EQ(static_cast<Index>(of_token.size()), top_k) << "no expert twice";
      EXPECT_GE(static_cast<Index>(ranks.size()), std::min(top_k, experts / of_rank) - 1) << "token " << token;
    }
    EXPECT_EQ(counts, std::vector<Index>(static_cast<std::size_t>(experts), top_k));
  }
}

struct Regrouped {
  Ids begin, rows, row_of, arrived_at;
};
/// Of `sources` x `local` segments, in rows for `arrived`. Results are NaN's bits before.
Regrouped regrouped(const Tensor& counts, Index sources, Index first, Index local, Index arrived, Index alignment,
                    Index each = 0) {
  Exec ex;
  ex.poison_new_tensors();
  const RegroupRows args{.counts = counts,
                         .groups = {.begin = ex.tensor({local}, DType::i32),
                                    .rows = ex.tensor({local}, DType::i32),
                                    .alignment = alignment},
                         .row_of = ex.tensor({arrived, 1}, DType::i32),
                         .arrived_at = ex.tensor({capacity_of_groups(arrived, local, alignment)}, DType::i32),
                         .sources = sources,
                         .first = first,
                         .local_experts = local,
                         .each = each};
  regroup_rows(ex, args);
  return {copy_of<std::int32_t>(args.groups.begin), copy_of<std::int32_t>(args.groups.rows),
          copy_of<std::int32_t>(args.row_of), copy_of<std::int32_t>(args.arrived_at)};
}

// Every segment by itself, as they arrive and as experts read them; empty ones among them.
TEST(ExpertChoices, RegroupedRowsLieByExpertThenSource) {
  Exec ex;
  const Ids counts = {9, 2, 0, 1,  //
                      9, 0, 3, 1,  //
                      9, 1, 0, 0};
  const Tensor all = put_numbers<std::int32_t>(ex, {3, 4}, DType::i32, counts);
  // Arrival: s0 e0 e0 e2 | s1 e1 e1 e1 e2 | s2 e0.
  const Regrouped dense = regrouped(all, 3, 1, 3, 10, 1);
  EXPECT_EQ(dense.begin, (Ids{0, 3, 6}));
  EXPECT_EQ(dense.rows, (Ids{3, 3, 2}));
  EXPECT_EQ(dense.row_of, (Ids{0, 1, 6, 3, 4, 5, 7, 2, -2, -2}));
  EXPECT_EQ(dense.arrived_at, (Ids{0, 1, 7, 3, 4, 5, 2, 6, -2, -2}));
  const Regrouped by_four = regrouped(all, 3, 1, 3, 10, 4);
  EXPECT_EQ(by_four.begin, (Ids{0, 4, 8}));
  EXPECT_EQ(by_four.rows, (Ids{3, 3, 2}));
  EXPECT_EQ(by_four.row_of, (Ids{0, 1, 8, 4, 5, 6, 9, 2, -2, -2}));
  EXPECT_EQ(by_four.arrived_at, (Ids{0, 1, 7, -1, 3, 4, 5, -1, 2, 6, -1, -1, -2, -2, -2, -2}));
  EXPECT_THROW(regrouped(all, 3, 1, 3, 7, 1), InputError) << "more rows than there is room for";
}

/// Of any counts and alignments: the maps are each other's inverse and in the order of expert, source and arrival.
TEST(ExpertChoices, RegroupedRowsOfAnyAlignment) {
  Exec ex;
  const Index sources = 4, first = 2, local = 6, columns = 9;
  Ids counts;
  for (Index i = 0; i < sources * columns; ++i)
    counts.push_back(i % columns == first + 1 || i % 3 == 1 ? 0 : static_cast<std::int32_t>(i * 7 % 11));
  const Tensor all = put_numbers<std::int32_t>(ex, {sources, columns}, DType::i32, counts);
  const auto count = [&](Index s, Index l) { return counts[static_cast<std::size_t>(s * columns + first + l)]; };
  Index total = 0;
  for (Index i = 0; i < sources * local; ++i) total += count(i / local, i % local);
  for (const Index alignment : {1, 4, 128}) {
    for (const Index arrived : {total, total + 5}) {
      SCOPED_TRACE(::testing::Message() << "alignment " << alignment << ", " << arrived << " rows");
      Regrouped want;
      for (Index l = 0; l < local; ++l) {
        const std::size_t begin = want.arrived_at.size();
        want.begin.push_back(static_cast<std::int32_t>(begin));
        std::int32_t next = 0;  // of the rows as they arrive
        for (Index s = 0; s < sources; ++s) {
          for (Index of = 0; of < local; next += count(s, of++)) {
            for (std::int32_t i = 0; of == l && i < count(s, of); ++i) want.arrived_at.push_back(next + i);
          }
        }
        want.rows.push_back(static_cast<std::int32_t>(want.arrived_at.size() - begin));
        while (want.arrived_at.size() % static_cast<std::size_t>(alignment) != 0) want.arrived_at.push_back(kZeroRow);
      }
      want.row_of.assign(static_cast<std::size_t>(arrived), kUnusedRow);
      for (std::size_t row = 0; row < want.arrived_at.size(); ++row) {
        if (want.arrived_at[row] >= 0)
          want.row_of[static_cast<std::size_t>(want.arrived_at[row])] = static_cast<std::int32_t>(row);
      }
      want.arrived_at.resize(static_cast<std::size_t>(capacity_of_groups(arrived, local, alignment)), kUnusedRow);
      const Regrouped got = regrouped(all, sources, first, local, arrived, alignment);
      EXPECT_EQ(got.begin, want.begin);
      EXPECT_EQ(got.rows, want.rows);
      EXPECT_EQ(got.row_of, want.row_of);
      EXPECT_EQ(got.arrived_at, want.arrived_at);
    }
  }
}

TEST(ExpertChoices, RegroupedPaddedRowsNeedNoCounts) {
  const Regrouped dense = regrouped({}, 2, 0, 2, 8, 1, 2);
  EXPECT_EQ(dense.begin, (Ids{0, 4}));
  EXPECT_EQ(dense.rows, (Ids{4, 4}));
  EXPECT_EQ(dense.row_of, (Ids{0, 1, 4, 5, 2, 3, 6, 7}));
  EXPECT_EQ(dense.arrived_at, (Ids{0, 1, 4, 5, 2, 3, 6, 7}));
  const Regrouped by_three = regrouped({}, 2, 0, 2, 8, 3, 2);
  EXPECT_EQ(by_three.begin, (Ids{0, 6}));
  EXPECT_EQ(by_three.rows, (Ids{4, 4}));
  EXPECT_EQ(by_three.row_of, (Ids{0, 1, 6, 7, 2, 3, 8, 9}));
  EXPECT_EQ(by_three.arrived_at, (Ids{0, 1, 4, 5, -1, -1, 2, 3, 6, 7, -1, -1}));
}

TEST(ExpertChoices, RegroupedRowsNameWhatDoesNotFit) {
  Exec ex;
  const auto with = [&](const Ids& counts) { return put_numbers<std::int32_t>(ex, {1, 3}, DType::i32, counts); };
  EXPECT_EQ(error_text([&] {
              regrouped(with({0, 3, 2}), 1, 0, 3, 4, 1);
            }),
            "[regroup_rows] counts[0, 2] = 2: must be at least 0, and there are 4 rows in all");
  EXPECT_EQ(error_text([&] {
              regrouped(with({0, 3, -1}), 1, 0, 3, 4, 1);
            }),
            "[regroup_rows] counts[0, 2] = -1: must be at least 0, and there are 4 rows in all");
  EXPECT_EQ(error_text([&] { regrouped(with({0, 3, -1}), 1, 0, 2, 4, 1); }), "") << "another rank's count";
  EXPECT_EQ(error_text([&] {
              regrouped(with({0, 3, 1}), 2, 0, 3, 4, 1);
            }),
            "[regroup_rows.counts] shape [1, 3]: must have 2 rows, and columns 0 .. 2");
  EXPECT_EQ(error_text([&] {
              regrouped(with({0, 3, 1}), 1, 2, 3, 4, 1);
            }),
            "[regroup_rows.counts] shape [1, 3]: must have 1 rows, and columns 2 .. 4");
  const Tensor wide = ex.tensor({1, 3}, DType::i64), three = ex.tensor({3}, DType::i32),
               row_of = ex.tensor({4, 1}, DType::i32), sixteen = ex.tensor({16}, DType::i32);
  EXPECT_EQ(error_text([&] { regrouped(wide, 1, 0, 3, 4, 1); }), "[regroup_rows.counts] dtype = i64: must be i32");
  const auto error = [&](const GroupRows& groups, const Tensor& arrived_at) {
    return error_text([&] {
      regroup_rows(ex, {.counts = with({0, 3, 1}),
                        .groups = groups,
                        .row_of = row_of,
                        .arrived_at = arrived_at,
                        .local_experts = 3});
    });
  };
  EXPECT_EQ(error({.begin = three, .rows = three, .alignment = 4}, three),
            "[regroup_rows.arrived_at] shape = [3]: must be [12]");
  EXPECT_EQ(error({.begin = three, .rows = three, .alignment = 5}, sixteen),
            "[regroup_rows.arrived_at] shape = [16]: must be [15]");
  EXPECT_EQ(error({.begin = three, .rows = three, .alignment = 0}, row_of),
            "[regroup_rows.groups] alignment = 0: must be at least 1");
  EXPECT_EQ(error({.begin = sixteen, .rows = three, .alignment = 5}, ex.tensor({15}, DType::i32)),
            "[regroup_rows.groups.begin] shape = [16]: must be [3]");
  EXPECT_EQ(error({.begin = three, .rows = sixteen, .alignment = 5}, ex.tensor({15}, DType::i32)),
            "[regroup_rows.groups.rows] shape = [16]: must be [3]");
}

TEST(ExpertLoad, CountsAreAddedOverRuns) {
  Exec ex;
  const Tensor from = put_numbers<std::int64_t>(ex, {2, 3}, DType::i64, {1, 2, 3, 10, 20, 30});
  const Tensor to = put_numbers<std::int64_t>(ex, {3}, DType::i64, {100, 0, -1});
  add_counts(ex, from, to);
  EXPECT_EQ(copy_of<std::int64_t>(to), (std::vector<std::int64_t>{111, 22, 32}));
  const Tensor kept = put_numbers<std::int32_t>(ex, {2, 2}, DType::i32, {0, -1, -1, 3});
  count_dropped(ex, kept, to.rows(0, 1));
  EXPECT_EQ(to.data<std::int64_t>()[0], 113);
}

TEST(ExpertLoad, TheBiasMovesTowardsTheMeanAfterAppliedStepsOnly) {
  Exec ex;
  StepVerdict verdict;
  const Tensor of_verdict(&verdict, {Index{sizeof verdict}}, DType::u8);
  const Tensor counts = put_numbers<std::int64_t>(ex, {4}, DType::i64, {0, 3, 9, 0});
  const Tensor bias = put_numbers<double>(ex, {4}, DType::f64, {0, 0, 0.5, 1});
  const Tensor shares = put_numbers<double>(ex, {4}, DType::f64, {7, 7, 7, 7});
  const UpdateExperts update{.counts = counts, .verdict = of_verdict, .bias = bias, .shares = shares, .rate = 0.25};
  verdict.apply = 0;
  update_experts(ex, update);
  EXPECT_EQ(copy_of<double>(bias), (std::vector<double>{0, 0, 0.5, 1}));
  EXPECT_EQ(copy_of<double>(shares), (std::vector<double>{7, 7, 7, 7}));
  verdict.apply = 1;
  update_experts(ex, update);
  EXPECT_EQ(copy_of<double>(bias), (std::vector<double>{0.25, 0, 0.25, 1.25})) << "the mean, 3, stays";
  EXPECT_EQ(copy_of<double>(shares), (std::vector<double>{0, 0.25, 0.75, 0}));
  const Tensor range = ex.tensor({2}, DType::f64), whole = ex.tensor({1, 4}, DType::i64);
  expert_bias_range(ex, bias, range);
  EXPECT_EQ(copy_of<double>(range), (std::vector<double>{0, 1.25}));
  counts_of_shares(ex, shares, whole, 1000);
  EXPECT_EQ(copy_of<std::int64_t>(whole), (std::vector<std::int64_t>{0, 250, 750, 0}));
}

TEST(ExpertLoad, TheMeanNeedNotBeAWholeNumber) {
  Exec ex;
  StepVerdict verdict;
  verdict.apply = 1;
  const auto bias_after = [&](const std::vector<std::int64_t>& counts) {
    const Tensor bias = put_numbers<double>(ex, {4}, DType::f64, {0, 0, 0, 0});
    update_experts(ex, {.counts = put_numbers<std::int64_t>(ex, {4}, DType::i64, counts),
                        .verdict = Tensor(&verdict, {Index{sizeof verdict}}, DType::u8),
                        .bias = bias,
                        .shares = {},
                        .rate = 0.25});
    return copy_of<double>(bias);
  };
  EXPECT_EQ(bias_after({2, 3, 2, 2}), (std::vector<double>{0.25, -0.25, 0.25, 0.25})) << "2.25";
  EXPECT_EQ(bias_after({3, 2, 3, 3}), (std::vector<double>{-0.25, 0.25, -0.25, -0.25})) << "2.75";
  EXPECT_EQ(bias_after({2, 3, 3, 2}), (std::vector<double>{0.25, -0.25, -0.25, 0.25})) << "2.5";
}

class GatedSumTest : public OpTest {};
MEGALITH_OPS_PRECISIONS(GatedSumTest);

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

TEST_P(GatedSumTest, BackwardEqualsDifferences) {
  for (const auto& [rows, hidden] : {std::pair<Index, Index>{0, 3}, {1, 1}, {3, 5}, {7, 33}}) {
    const Values routed = random_values(rows * hidden, 1), shared = random_values(rows * hidden, 2);
    const Values gate = random_values(rows, 3, 2), dy = random_values(rows * hidden, 4);
    const auto y_of = [&, h = hidden](const Values& from, const Values& gates) {
      Values y = routed;
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += sigmoid(gates[i / static_cast<std::size_t>(h)]) * from[i];
      return y;
    };
    const Tensor x = put({rows, hidden}, routed), s = put({rows, hidden}, shared), g = put({rows, 1}, gate);
    const Tensor y = empty({rows, hidden}), d_shared = empty({rows, hidden}), d_gate = empty({rows, 1});
    gated_sum(ex_, {.routed = x, .shared = s, .gate = g, .y = y});
    expect_near(y, y_of(shared, gate), "y");
    const auto dot = [&](const Values& values) {
      return std::inner_product(values.begin(), values.end(), dy.begin(), 0.0);
    };
    gated_sum_backward(ex_,
                       {.dy = put({rows, hidden}, dy), .shared = s, .gate = g, .d_shared = d_shared, .d_gate = d_gate});
    const double limit = dtype() == DType::f32 ? 2e-6 : 1e-8;
    EXPECT_LT(relative_error(values_of(d_shared),
                             numeric_gradient(shared, [&](const Values& at) { return dot(y_of(at, gate)); })),
              limit);
    EXPECT_LT(relative_error(values_of(d_gate),
                             numeric_gradient(gate, [&](const Values& at) { return dot(y_of(shared, at)); })),
              limit);
    gated_sum(ex_, {.routed = x, .shared = s, .gate = {}, .y = x});
    Values sum = routed;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += shared[i];
    expect_near(x, sum, "without a gate, in place");
  }
}

}  // namespace
}  // namespace megalith::ops
