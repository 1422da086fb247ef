#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "megalith/ops/expert_choices.h"
#include "megalith/ops/expert_load.h"
#include "megalith/ops/gated_sum.h"
#include "megalith/ops/step_end.h"

#include "tests/ops/device_cases.h"

// The places and counters of experts, and gated sums, against the oracle.
namespace megalith::ops {
namespace {

using support::Twin;

template <class V>
std::vector<V> on_host(Exec& ex, const Tensor& tensor) {
  std::vector<V> values(static_cast<std::size_t>(tensor.numel()));
  ex.copy(values.data(), tensor.raw(), tensor.bytes());
  ex.synchronize();
  return values;
}

TEST_P(DeviceOps, ExpertPlaces) {
  for (const Index tokens : {Index{0}, Index{1}, Index{37}, Index{4096}}) {
    SCOPED_TRACE(tokens);
    const ExpertRanks ranks{.local_experts = 4, .slices = 2, .expert_stride = 2, .slice_stride = 1};
    std::vector<std::int32_t> chosen;
    for (Index i = 0; i < 3 * tokens; ++i) chosen.push_back(i % 11 == 4 ? -1 : static_cast<std::int32_t>(i * i % 16));
    const Twin experts = t().bytes_of(chosen.data(), {tokens, 3}, DType::i32);
    const std::vector<std::int32_t> nothing(static_cast<std::size_t>(6 * tokens), 77);
    const Twin places = t().bytes_of(nothing.data(), {tokens, 6}, DType::i32);
    const Twin even = t().bytes_of(nothing.data(), {tokens, 3}, DType::i32);
    const Twin weights = t().in_f32({tokens, 3}, 1), slices = t().out_f32({tokens, 6}), sums = t().out_f32({tokens, 3});
    t().run([&](Exec& ex) {
      place_choices(ex, {.experts = experts.on(ex), .destinations = places.on(ex), .ranks = ranks});
      even_choices(ex, {.experts = even.on(ex), .num_experts = 7, .first_row = 5});
      repeat_choices(ex, weights.on(ex), slices.on(ex));
      sum_slices(ex, slices.on(ex), sums.on(ex));
    });
    EXPECT_EQ(on_host<std::int32_t>(t().tested(), places.tested), on_host<std::int32_t>(t().oracle(), places.oracle));
    EXPECT_EQ(on_host<std::int32_t>(t().tested(), even.tested), on_host<std::int32_t>(t().oracle(), even.oracle));
    expect_close(slices, "repeat_choices", 0);
    expect_close(sums, "sum_slices", 1e-6);
    t().release();
  }
}

TEST_P(DeviceOps, RegroupedRows) {
  for (const auto& [sources, local, rows, alignment] : {std::array<Index, 4>{1, 1, 5, 1},
                                                        {2, 3, 40, 1},
                                                        {2, 3, 40, 4},
                                                        {8, 16, 5000, 128},
                                                        {4, 256, 9000, 1},
                                                        {4, 256, 9000, 16}}) {
    SCOPED_TRACE(::testing::Message() << sources << " x " << local << ", alignment " << alignment);
    std::vector<std::int32_t> all;
    for (Index i = 0; i < sources * (local + 2); ++i)
      all.push_back(i % 3 == 1 ? 0 : static_cast<std::int32_t>(i * 7 % 9));
    const Index places = capacity_of_groups(rows, local, alignment);
    const std::vector<std::int32_t> nothing(static_cast<std::size_t>(std::max(2 * local, places)), 77);
    const Twin counts = t().bytes_of(all.data(), {sources, local + 2}, DType::i32);
    const Twin row_of = t().bytes_of(nothing.data(), {rows, 1}, DType::i32),
               arrived_at = t().bytes_of(nothing.data(), {places}, DType::i32),
               begin = t().bytes_of(nothing.data(), {local}, DType::i32),
               of_group = t().bytes_of(nothing.data(), {local}, DType::i32);
    for (const Index each : {Index{0}, rows / (sources * local)}) {
      t().run([&](Exec& ex) {
        regroup_rows(ex, {.counts = each == 0 ? counts.on(ex) : Tensor(),
                          .groups = {.begin = begin.on(ex), .rows = of_group.on(ex), .alignment = alignment},
                          .row_of = row_of.on(ex),
                          .arrived_at = arrived_at.on(ex),
                          .sources = sources,
                          .first = 2,
                          .local_experts = local,
                          .each = each});
      });
      for (const Twin& map : {begin, of_group, row_of, arrived_at})
        EXPECT_EQ(on_host<std::int32_t>(t().tested(), map.tested), on_host<std::int32_t>(t().oracle(), map.oracle));
    }
    t().release();
  }
}

/// Counts that another rank sent wrongly: the CPU rejects them, and a GPU takes rows while there are some.
TEST_P(DeviceOps, WrongCountsLeaveNoRows) {
  const std::int32_t sent[] = {3, -2, 1, 4, 9, 5};
  const std::vector<std::int32_t> nothing(16, 77);
  const Twin counts = t().bytes_of(sent, {2, 3}, DType::i32), row_of = t().bytes_of(nothing.data(), {7, 1}, DType::i32),
             arrived_at = t().bytes_of(nothing.data(), {16}, DType::i32),
             groups = t().bytes_of(nothing.data(), {2, 3}, DType::i32);
  const auto regroup = [&](Exec& ex) {
    const Tensor table = groups.on(ex);
    regroup_rows(
        ex,
        {.counts = counts.on(ex),
         .groups = {.begin = table.rows(0, 1).reshaped({3}), .rows = table.rows(1, 1).reshaped({3}), .alignment = 4},
         .row_of = row_of.on(ex),
         .arrived_at = arrived_at.on(ex),
         .sources = 2,
         .local_experts = 3});
    ex.synchronize();
  };
  EXPECT_THROW(regroup(t().oracle()), InputError);
  if (GetParam().device == Device::cpu) return;
  regroup(t().tested());
  using Ids = std::vector<std::int32_t>;
  // Of the first source 3, 0 and 1 rows, of the second 3 of 4.
  EXPECT_EQ(on_host<std::int32_t>(t().tested(), groups.tested), (Ids{0, 8, 8, 6, 0, 1}));
  EXPECT_EQ(on_host<std::int32_t>(t().tested(), row_of.tested), (Ids{0, 1, 2, 8, 3, 4, 5}));
  EXPECT_EQ(on_host<std::int32_t>(t().tested(), arrived_at.tested),
            (Ids{0, 1, 2, 4, 5, 6, -1, -1, 3, -1, -1, -1, -2, -2, -2, -2}));
}

TEST_P(DeviceOps, ExpertLoads) {
  constexpr Index kExperts = 300;
  std::vector<std::int64_t> chosen;
  for (Index i = 0; i < 3 * kExperts; ++i) chosen.push_back(i * i % 101);
  std::vector<std::int32_t> pairs;
  for (Index i = 0; i < 5000; ++i) pairs.push_back(i % 7 == 0 ? -1 : 3);
  const std::vector<std::int64_t> sums(kExperts + 1, 4);
  const Twin from = t().bytes_of(chosen.data(), {3, kExperts}, DType::i64),
             to = t().bytes_of(sums.data(), {kExperts + 1}, DType::i64),
             kept = t().bytes_of(pairs.data(), {2500, 2}, DType::i32);
  const Twin bias = t().in_f32({kExperts}, 1), shares = t().out_f32({kExperts});
  StepVerdict verdict{};
  verdict.apply = 1;
  const Twin applied = t().structure(verdict);
  const std::vector<double> none(2, 0);
  const Twin range = t().bytes_of(none.data(), {2}, DType::f64),
             whole = t().bytes_of(sums.data(), {1, kExperts}, DType::i64);
  t().run([&](Exec& ex) {
    const Tensor counts = to.on(ex).rows(0, kExperts);
    add_counts(ex, from.on(ex), counts);
    count_dropped(ex, kept.on(ex), to.on(ex).rows(kExperts, 1));
    update_experts(
        ex, {.counts = counts, .verdict = applied.on(ex), .bias = bias.on(ex), .shares = shares.on(ex), .rate = 0.125});
    expert_bias_range(ex, bias.on(ex), range.on(ex));
    counts_of_shares(ex, shares.on(ex), whole.on(ex), 1000);
  });
  EXPECT_EQ(on_host<std::int64_t>(t().tested(), to.tested), on_host<std::int64_t>(t().oracle(), to.oracle));
  EXPECT_EQ(on_host<std::int64_t>(t().tested(), whole.tested), on_host<std::int64_t>(t().oracle(), whole.oracle));
  expect_close(bias, "bias", 1e-6);
  expect_close(shares, "shares", 1e-6);
  const auto got = on_host<double>(t().tested(), range.tested), want = on_host<double>(t().oracle(), range.oracle);
  EXPECT_NEAR(got[0], want[0], 1e-6);
  EXPECT_NEAR(got[1], want[1], 1e-6);
  t().release();
}

TEST_P(DeviceOps, GatedSums) {
  for (const auto& [rows, hidden] : {std::pair<Index, Index>{0, 8}, {1, 1}, {33, 257}, {200, 768}, {9001, 264}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << hidden);
    const Twin routed = t().in({rows, hidden}, 1), shared = t().in({rows, hidden}, 2), dy = t().in({rows, hidden}, 3);
    const Twin gate = t().in_f32({rows, 1}, 4), y = t().out({rows, hidden}), sum = t().out({rows, hidden});
    const Twin d_shared = t().out({rows, hidden}), d_gate = t().out_f32({rows, 1});
    t().run([&](Exec& ex) {
      gated_sum(ex, {.routed = routed.on(ex), .shared = shared.on(ex), .gate = gate.on(ex), .y = y.on(ex)});
      gated_sum(ex, {.routed = routed.on(ex), .shared = shared.on(ex), .gate = {}, .y = sum.on(ex)});
      gated_sum_backward(ex, {.dy = dy.on(ex),
                              .shared = shared.on(ex),
                              .gate = gate.on(ex),
                              .d_shared = d_shared.on(ex),
                              .d_gate = d_gate.on(ex)});
    });
    expect_same(y, "gated");
    expect_same(sum, "without a gate");
    expect_same(d_shared, "d_shared");
    expect_close(d_gate, "d_gate", 5e-6);
    t().release();
  }
}

}  // namespace
}  // namespace megalith::ops
