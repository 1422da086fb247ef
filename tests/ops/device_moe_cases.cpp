#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "megalith/ops/capacity.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/grouped_matmul.h"
#include "megalith/ops/router_losses.h"
#include "megalith/ops/rows.h"

#include "tests/ops/device_cases.h"
#include "tests/ops/groups.h"

// The ops of a mixture of experts, against the oracle.
namespace megalith::ops {
namespace {

using support::Twin;
using support::Twins;

/// Numbers of the same type on both sides, of no defined value.
template <class V>
Twin numbers(Twins& t, const Shape& shape) {
  const std::vector<V> values(static_cast<std::size_t>(shape.numel()), V{77});
  return t.bytes_of(values.data(), shape, dtype_of<V>);
}
template <class V>
std::vector<V> read_numbers(Twins& t, const Tensor& tensor) {
  std::vector<V> values(static_cast<std::size_t>(tensor.numel()));
  t.tested().copy(values.data(), tensor.raw(), tensor.bytes());
  t.tested().synchronize();
  return values;
}
template <class V>
void expect_equal_numbers(Twins& t, const Twin& twin, const char* what) {
  const auto want = twin.oracle.span<V>();
  EXPECT_EQ(read_numbers<V>(t, twin.tested), std::vector<V>(want.begin(), want.end())) << what;
}

/// f32 numbers that both sides get as they are.
void put_tested_f32(Twins& t, const Twin& twin, const std::vector<double>& values) {
  const std::vector<float> narrow(values.begin(), values.end());
  t.tested().copy(twin.tested.raw(), narrow.data(), twin.tested.bytes());
  t.tested().synchronize();
}

void put_f32(Twins& t, const Twin& twin, const std::vector<double>& values) {
  std::copy(values.begin(), values.end(), twin.oracle.data<double>());
  put_tested_f32(t, twin, values);
}

struct RouterCase {
  Index tokens, experts;
  RouterRules rules;
  bool biased = false;
  TokenRuns runs = {};
};
constexpr RouterRules kDeepSeek{.top_k = 8,
                                .score = RouterScore::sigmoid,
                                .normalize = NormalizeTopK::yes,
                                .scale = 2.5,
                                .num_groups = 8,
                                .group_top_k = 4};
constexpr RouterCase kRouterCases[] = {
    {0, 4, {.top_k = 2}},
    {1, 1, {.top_k = 1}},
    {13, 7, {.top_k = 7, .normalize = NormalizeTopK::yes}},
    {300, 8, {.top_k = 2, .order = ScoreOrder::after_top_k}},
    {300, 8, {.top_k = 2, .order = ScoreOrder::after_top_k, .normalize = NormalizeTopK::yes, .scale = 3}, true},
    {257, 64, {.top_k = 8}, false, {.seq_len = 100, .first_row = 30}},
    {257, 64, {.top_k = 6, .scale = 16, .num_groups = 8, .group_top_k = 3}},
    {99, 33, {.top_k = 40 - 7, .score = RouterScore::sigmoid}},
    {129, 256, kDeepSeek, true},
    {65, 128, {.top_k = 3, .score = RouterScore::sigmoid, .num_groups = 64, .group_top_k = 5}},
    {5, 1024, {.top_k = 100}},
};

TEST_P(DeviceOps, SkewOfTheRouter) {
  for (const auto& [tokens, experts] : {std::pair<Index, Index>{0, 4}, {1, 1}, {257, 64}, {33, 1024}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << experts);
    const Twin logits = t().in_f32({tokens, experts}, 1, 3);
    t().run([&](Exec& ex) { skew_logits(ex, logits.on(ex), 1.5); });
    expect_close(logits, "logits", 1e-5);
    t().release();
  }
}

TEST_P(DeviceOps, Router) {
  for (const RouterCase& c : kRouterCases) {
    for (const RouterChoice choice : {RouterChoice::by_score, RouterChoice::given}) {
      SCOPED_TRACE(::testing::Message() << c.tokens << " x " << c.experts << ", top " << c.rules.top_k << ", given "
                                        << (choice == RouterChoice::given));
      const Index runs = c.tokens == 0 ? 1 : c.runs.of(c.tokens - 1) + 2;
      const Twin logits = t().in_f32({c.tokens, c.experts}, 1, 3), bias = t().in_f32({c.experts}, 2, 0.2),
                 dw = t().in_f32({c.tokens, c.rules.top_k}, 3), dp = t().in_f32({c.tokens, c.experts}, 4);
      // Multiples of 1/32: scores are equal or far apart, so that rounding decides no choice.
      std::vector<double> coarse = t().read(logits.tested);
      for (double& value : coarse) value = std::round(32 * value) / 32;
      put_f32(t(), logits, coarse);
      const Twin p = t().out_f32({c.tokens, c.experts}), weights = t().out_f32({c.tokens, c.rules.top_k}),
                 counts = numbers<std::int64_t>(t(), {runs, c.experts});
      std::vector<std::int32_t> given;  // a stride that is prime to most sizes, and no expert twice in a token
      for (Index i = 0; i < c.tokens * c.rules.top_k; ++i)
        given.push_back(static_cast<std::int32_t>((i / c.rules.top_k * 31 + i % c.rules.top_k) % c.experts));
      const Twin experts = t().bytes_of(given.data(), {c.tokens, c.rules.top_k}, DType::i32);
      const Twin from_weights = t().out_f32({c.tokens, c.experts}), from_both = t().out_f32({c.tokens, c.experts});
      t().run([&](Exec& ex) {
        router_forward(ex, {.logits = logits.on(ex),
                            .bias = c.biased ? bias.on(ex) : Tensor(),
                            .probabilities = p.on(ex),
                            .experts = experts.on(ex),
                            .weights = weights.on(ex),
                            .counts = counts.on(ex),
                            .rules = c.rules,
                            .runs = c.runs,
                            .choice = choice});
        RouterBackward backward{.logits = logits.on(ex),
                                .probabilities = p.on(ex),
                                .experts = experts.on(ex),
                                .d_weights = dw.on(ex),
                                .d_probabilities = {},
                                .d_logits = from_weights.on(ex),
                                .rules = c.rules};
        router_backward(ex, backward);
        backward.d_probabilities = dp.on(ex);
        backward.d_logits = from_both.on(ex);
        router_backward(ex, backward);
        backward.d_logits = dp.on(ex);
        router_backward(ex, backward);
      });
      expect_equal_numbers<std::int32_t>(t(), experts, "experts");
      expect_equal_numbers<std::int64_t>(t(), counts, "counts");
      expect_close(p, "probabilities", 1e-5);
      expect_close(weights, "weights", 1e-5);
      expect_close(from_weights, "d_logits of the weights", 1e-5);
      expect_close(from_both, "d_logits of both", 1e-5);
      expect_close(dp, "d_logits in place", 1e-5);
      t().release();
    }
  }
}

/// Ties, infinities and NaN: what is chosen is the same everywhere.
TEST_P(DeviceOps, RouterOfOddLogits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double odd[] = {0, 1, 0, 1, -kInfinity, std::nan(""), kInfinity, 1};
  constexpr Index kTokens = 40, kExperts = 40;
  std::vector<double> values;
  for (Index i = 0; i < kTokens * kExperts; ++i) {
    const Index row = i / kExperts;
    values.push_back(row % 4 == 3 ? odd[i * 7 % 8] : row % 4 == 0 ? 1 : static_cast<double>(i * i % 5));
  }
  const Twin logits = t().in_f32({kTokens, kExperts}, 1);
  put_f32(t(), logits, values);
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    for (const Index groups : {1, 8}) {
      // Softmaxes of rows with a NaN are NaN throughout: only the logits tell experts apart.
      const Twin p = t().out_f32({kTokens, kExperts}), weights = t().out_f32({kTokens, 9}),
                 experts = numbers<std::int32_t>(t(), {kTokens, 9}), counts = numbers<std::int64_t>(t(), {1, kExperts});
      t().run([&](Exec& ex) {
        router_forward(ex,
                       {.logits = logits.on(ex),
                        .bias = {},
                        .probabilities = p.on(ex),
                        .experts = experts.on(ex),
                        .weights = weights.on(ex),
                        .counts = counts.on(ex),
                        .rules = {.top_k = 9, .score = score, .num_groups = groups, .group_top_k = (groups + 1) / 2}});
      });
      expect_equal_numbers<std::int32_t>(t(), experts, "experts");
      expect_equal_numbers<std::int64_t>(t(), counts, "counts");
    }
  }
}

TEST_P(DeviceOps, RouterLosses) {
  struct Sizes {
    Index tokens, experts;
    TokenRuns runs;
    Index num_runs;
  };
  for (const auto& [tokens, experts, runs, num_runs] :
       {Sizes{0, 4, {}, 1}, Sizes{7, 3, {}, 1}, Sizes{900, 40, {.seq_len = 400, .first_row = 600}, 5},
        Sizes{5000, 64, {}, 1}, Sizes{300, 256, {.seq_len = 10}, 30}}) {
    for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
      SCOPED_TRACE(::testing::Message() << tokens << " x " << experts << ", score " << static_cast<int>(score));
      std::vector<std::int64_t> some(static_cast<std::size_t>(num_runs * experts));
      for (std::size_t i = 0; i < some.size(); ++i) some[i] = static_cast<std::int64_t>(i * 7 % 11);
      const Twin p = t().positive_f32({tokens, experts}, 1), logits = t().in_f32({tokens, experts}, 2, 4),
                 counts = t().bytes_of(some.data(), {num_runs, experts}, DType::i64),
                 sums = t().out_f32({num_runs, experts}), d = t().out_f32({tokens, experts}),
                 d_logits = t().in_f32({tokens, experts}, 3), load = t().scalar(2), z = t().scalar(3),
                 state = t().structure(kDeviceState);
      const LoadLossFactors factors{.top_k = 2, .counted_tokens = 20, .tokens = 6, .weight = 0.3};
      t().run([&](Exec& ex) {
        sum_probabilities(ex, {.probabilities = p.on(ex), .sums = sums.on(ex), .score = score, .runs = runs});
        load_loss(ex, {.counts = counts.on(ex), .sums = sums.on(ex), .loss = load.on(ex), .factors = factors});
        load_loss_backward(ex, {.counts = counts.on(ex),
                                .probabilities = p.on(ex),
                                .step_state = state.on(ex),
                                .d_probabilities = d.on(ex),
                                .factors = factors,
                                .score = score,
                                .runs = runs});
        z_loss(ex, {.logits = logits.on(ex), .loss = z.on(ex), .weight = 0.5});
        z_loss_backward(
            ex, {.logits = logits.on(ex), .step_state = state.on(ex), .d_logits = d_logits.on(ex), .weight = 0.5});
      });
      expect_close(sums, "sums", 1e-5);
      expect_close(load, "load loss", 1e-5);
      expect_close(d, "gradient of the load loss", 1e-5);
      expect_close(z, "z-loss", 1e-5);
      expect_close(d_logits, "gradient of the z-loss", 1e-5);
      t().release();
    }
  }
}

struct RowsCase {
  Index tokens, top_k, experts, hidden;
  Index rows_per_expert = 0, alignment = 1;
};

TEST_P(DeviceOps, Rows) {
  for (const RowsCase& c :
       {RowsCase{0, 2, 3, 4}, RowsCase{1, 1, 1, 1}, RowsCase{70, 3, 8, 37}, RowsCase{500, 8, 64, 768},
        RowsCase{90, 2, 4, 1032, 11}, RowsCase{3000, 2, 1000, 16}, RowsCase{40, 4, 4, 4096, 40},
        RowsCase{20000, 2, 2, 8}, RowsCase{0, 2, 3, 4, 0, 4}, RowsCase{70, 3, 8, 37, 0, 4},
        RowsCase{500, 8, 64, 768, 0, 128}, RowsCase{700, 3, 8, 1, 0, 4}, RowsCase{90, 2, 4, 1032, 11, 4},
        RowsCase{3000, 2, 1000, 16, 0, 128}, RowsCase{40, 4, 4, 1, 40, 128}}) {
    SCOPED_TRACE(::testing::Message() << c.tokens << " x " << c.top_k << " of " << c.experts << ", " << c.hidden
                                      << ", alignment " << c.alignment);
    const Index pairs = c.tokens * c.top_k, rows = rows_to_build(pairs, c.experts, c.rows_per_expert, c.alignment);
    std::vector<std::int32_t> chosen;
    for (Index i = 0; i < pairs; ++i)
      chosen.push_back(i % 7 == 3 ? -1 : static_cast<std::int32_t>(i * i % 97 % c.experts));
    const Twin experts = t().bytes_of(chosen.data(), {c.tokens, c.top_k}, DType::i32),
               begin = numbers<std::int32_t>(t(), {c.experts}), of_group = numbers<std::int32_t>(t(), {c.experts}),
               row_of = numbers<std::int32_t>(t(), {c.tokens, c.top_k}), pair_of = numbers<std::int32_t>(t(), {rows});
    const Twin x = t().in({c.tokens, c.hidden}, 1), weights = t().in_f32({c.tokens, c.top_k}, 3),
               values = t().in({rows, c.hidden}, 4), numbers_of_rows = t().in_f32({rows, 1}, 5);
    const Twin permuted = t().out({rows, c.hidden}), spread = t().out({rows, c.hidden}),
               y = t().out({c.tokens, c.hidden}), back = t().out({c.tokens, c.hidden}), p = t().out_f32({rows, 1}),
               of_pairs = t().out_f32({pairs, 1});
    t().run([&](Exec& ex) {
      build_rows(ex, {.experts = experts.on(ex),
                      .groups = {.begin = begin.on(ex), .rows = of_group.on(ex), .alignment = c.alignment},
                      .row_of = row_of.on(ex),
                      .pair_of = pair_of.on(ex),
                      .rows_per_expert = c.rows_per_expert});
      permute_rows(ex, {.x = x.on(ex), .pair_of = pair_of.on(ex), .rows = permuted.on(ex), .top_k = c.top_k});
      permute_rows(
          ex,
          {.x = x.on(ex), .pair_of = pair_of.on(ex), .row_of = row_of.on(ex), .rows = spread.on(ex), .top_k = c.top_k});
      permute_rows(ex, {.x = weights.on(ex).reshaped({pairs, 1}), .pair_of = pair_of.on(ex), .rows = p.on(ex)});
      sum_rows(ex, {.rows = values.on(ex), .row_of = row_of.on(ex), .weights = weights.on(ex), .y = y.on(ex)});
      sum_rows(ex, {.rows = values.on(ex), .row_of = row_of.on(ex), .weights = {}, .y = back.on(ex)});
      sum_rows(ex, {.rows = numbers_of_rows.on(ex),
                    .row_of = row_of.on(ex).reshaped({pairs, 1}),
                    .weights = {},
                    .y = of_pairs.on(ex)});
    });
    expect_equal_numbers<std::int32_t>(t(), begin, "groups.begin");
    expect_equal_numbers<std::int32_t>(t(), of_group, "groups.rows");
    expect_equal_numbers<std::int32_t>(t(), row_of, "row_of");
    expect_equal_numbers<std::int32_t>(t(), pair_of, "pair_of");
    expect_close(permuted, "permuted; unused rows stay", 0);
    expect_close(spread, "permuted by both maps", 0);
    expect_close(p, "weights of rows", 0);
    expect_same(y, "weighted sum");
    expect_same(back, "sum");
    expect_close(of_pairs, "numbers of pairs", 0);
    t().release();
  }
}

// Uniform, Zipf, zeros first, middle and last, all in one, none, odd rows that leave others unaligned.
const std::vector<Index> kDeviceGroups[] = {{64, 64, 64, 64},
                                            {400, 200, 133, 100, 80, 66, 57, 50},
                                            {0, 0, 70, 33},
                                            {60, 0, 0, 9, 2},
                                            {40, 3, 0},
                                            {0, 0, 300, 0},
                                            {0, 0, 0},
                                            {1, 0, 1, 1, 2, 0, 1},
                                            {17}};

/// Groups on both sides.
struct GroupsTwin {
  GroupsTwin(Twins& t, const std::vector<Index>& sizes, Index alignment)
      : layout(sizes, alignment), table(t.bytes_of(layout.host.data(), {2, layout.count()}, DType::i32)) {}
  GroupRows on(const Exec& ex) const { return layout.in(table.on(ex)); }
  Index rows() const { return layout.end + 5; }  // unused ones after the last group

  GroupLayout layout;
  Twin table;
};

TEST_P(DeviceOps, GroupedProducts) {
  struct Widths {
    Index n, k;
  };
  for (const std::vector<Index>& sizes : kDeviceGroups) {
    for (const Index alignment : {1, 8}) {
      for (const auto [n, k] : {Widths{64, 128}, Widths{40, 24}, Widths{13, 7}, Widths{1, 9}, Widths{5, 0}}) {
        const GroupsTwin of(t(), sizes, alignment);
        const Index rows = of.rows(), groups = of.layout.count();
        SCOPED_TRACE(::testing::Message()
                     << groups << " groups of " << rows << " rows, " << n << " x " << k << ", alignment " << alignment);
        const Twin x = t().in({rows, k}, 1), dy = t().in({rows, n}, 2), w = t().in({groups, n, k}, 3, 0.3);
        const Twin y = t().out({rows, n}), dx = t().out({rows, k}), sum = t().in_f32({groups, n, k}, 4),
                   dw = t().out_f32({groups, n, k}), narrow = t().out({groups, n, k});
        t().run([&](Exec& ex) {
          grouped_matmul(ex, {.x = x.on(ex), .w = w.on(ex), .y = y.on(ex), .groups = of.on(ex)});
          grouped_matmul_input_grad(ex, {.dy = dy.on(ex), .w = w.on(ex), .dx = dx.on(ex), .groups = of.on(ex)});
          GroupedWeightGrad grad{.dy = dy.on(ex), .x = x.on(ex), .dw = sum.on(ex), .groups = of.on(ex)};
          grouped_matmul_weight_grad(ex, grad);
          grad.write = Write::overwrite;
          grad.dw = dw.on(ex);
          grouped_matmul_weight_grad(ex, grad);
          grad.dw = narrow.on(ex);
          grouped_matmul_weight_grad(ex, grad);
        });
        expect_same(y, "y; unused rows stay");
        expect_same(dx, "dx; unused rows stay");
        expect_close(sum, "dw, accumulated", 5e-6);
        expect_close(dw, "dw", 5e-6);
        expect_same(narrow, "dw in the dtype of the operands");
        t().release();
      }
    }
  }
}

/// With units that whole vectors hold and that they do not; z [M, 2F] and [M, F].
TEST_P(DeviceOps, GroupedActivations) {
  struct Sizes {
    Index hidden, units, width, alignment;
  };
  for (const std::vector<Index>& sizes : kDeviceGroups) {
    for (const auto [hidden, units, width, alignment] :
         {Sizes{64, 128, 2, 8}, Sizes{64, 128, 1, 8}, Sizes{24, 40, 2, 1}, Sizes{7, 13, 2, 8}, Sizes{7, 13, 1, 1},
          Sizes{9, 1, 2, 8}, Sizes{9, 1, 1, 8}, Sizes{8, 1032, 2, 8}, Sizes{8, 1032, 1, 8}}) {
      const GroupsTwin of(t(), sizes, alignment);
      const Index rows = of.rows(), groups = of.layout.count(), columns = width * units;
      SCOPED_TRACE(::testing::Message() << groups << " groups of " << rows << " rows, " << hidden << " x " << units
                                        << " units of " << width << ", alignment " << alignment);
      const Twin x = t().in({rows, hidden}, 1), up = t().in({groups, columns, hidden}, 2, 0.3),
                 dy = t().in({rows, hidden}, 3), down = t().in({groups, hidden, units}, 4, 0.3),
                 p = t().in_f32({rows, 1}, 5), saved = t().in({rows, columns}, 6, 2);
      const Twin z = t().out({rows, columns}), h = t().out({rows, units}), dz = t().out({rows, columns}),
                 ph = t().out({rows, units}), dp = t().out_f32({rows, 1}), ph2 = t().out({rows, units}),
                 dp2 = t().out_f32({rows, 1});
      t().run([&](Exec& ex) {
        grouped_matmul_activated(ex,
                                 {.x = x.on(ex), .w = up.on(ex), .z = z.on(ex), .h = h.on(ex), .groups = of.on(ex)});
        GroupedActivatedInputGrad grad{.dy = dy.on(ex),
                                       .w = down.on(ex),
                                       .z = saved.on(ex),
                                       .p = p.on(ex),
                                       .dz = dz.on(ex),
                                       .ph = ph.on(ex),
                                       .dp = dp.on(ex),
                                       .groups = of.on(ex)};
        grouped_matmul_activated_input_grad(ex, grad);
        grad.dz = saved.on(ex);
        grad.ph = ph2.on(ex);
        grad.dp = dp2.on(ex);
        grouped_matmul_activated_input_grad(ex, grad);
      });
      expect_same(z, "z; unused rows stay");
      // Of h the gate, the up and h itself are rounded; of dz dh, p dh and dz.
      const double thrice = GetParam().once + GetParam().twice;
      expect_close(h, "h; unused rows stay", thrice);
      expect_close(dz, "dz; unused rows stay", thrice);
      expect_close(saved, "dz in place", thrice);
      expect_twice_rounded(ph, "ph; unused rows stay");
      expect_twice_rounded(dp, "dp; unused rows stay");
      expect_twice_rounded(ph2, "ph, dz in place");
      expect_twice_rounded(dp2, "dp, dz in place");
      t().release();
    }
  }
}

/// A CPU reads the groups themselves, a loop on a GPU the host's copy.
TEST_P(DeviceOps, LoopsOnAGpuNeedTheHostsCopyOfGroups) {
  const GroupsTwin of(t(), {3, 2}, 4);
  const Twin x = t().in({of.rows(), 4}, 1), w = t().in({2, 6, 4}, 2), y = t().out({of.rows(), 6});
  const auto run = [&](Exec& ex) {
    GroupRows groups = of.on(ex);
    groups.host = {};
    grouped_matmul(ex, {.x = x.on(ex), .w = w.on(ex), .y = y.on(ex), .groups = groups});
  };
  EXPECT_NO_THROW(run(t().oracle()));
  if (GetParam().device == Device::cpu) {
    EXPECT_NO_THROW(run(t().tested()));
    expect_same(y, "y");
  } else {
    EXPECT_THROW(run(t().tested()), InternalError);
  }
  t().release();
}

TEST_P(DeviceOps, GroupedProductsKeepTheirPlaceInTheStream) {
  // Large enough that ops without an order overlap. Each operand is written right before and overwritten right after.
  constexpr Index kGroups = 12, kRows = 12 * 512, kWide = 512;
  const GroupsTwin of(t(), std::vector<Index>(kGroups, kRows / kGroups), 1);
  const Twin x = t().in({kRows, kWide}, 1), w = t().in({kGroups, kWide, kWide}, 2, 0.05), y = t().out({kRows, kWide}),
             sum = t().out({kRows, kWide});
  t().run([&](Exec& ex) {
    for (int round = 0; round < 3; ++round) {
      scale(ex, w.on(ex), -1);
      scale(ex, x.on(ex), 0.5);
      fill(ex, y.on(ex), 1000);
      grouped_matmul(ex, {.x = x.on(ex), .w = w.on(ex), .y = y.on(ex), .groups = of.on(ex)});
      scale(ex, x.on(ex), 1.5);
      copy(ex, y.on(ex), sum.on(ex));
    }
  });
  expect_same(y, "y");
  expect_same(sum, "copy of y");
  t().release();
}

TEST_P(DeviceOps, Capacity) {
  struct Sizes {
    Index tokens, top_k, experts, run, capacity;
  };
  for (const auto [tokens, top_k, experts, run, capacity] :
       {Sizes{0, 2, 3, 4, 1}, Sizes{8, 1, 2, 8, 3}, Sizes{3000, 3, 5, 1000, 250}, Sizes{2048, 8, 64, 256, 20},
        Sizes{8192, 2, 2, 8192, 4000}, Sizes{64, 2, 4, 32, 0}}) {
    for (const DropBy by : {DropBy::position, DropBy::probability}) {
      SCOPED_TRACE(::testing::Message() << tokens << " x " << top_k << " of " << experts << ", runs of " << run);
      std::vector<std::int32_t> chosen;
      for (Index i = 0; i < tokens * top_k; ++i) {
        const Index t = i / top_k;
        chosen.push_back(t % 7 == 5 ? -1 : static_cast<std::int32_t>((t * t / 3 + i % top_k) % experts));
      }
      const Twin of = t().bytes_of(chosen.data(), {tokens, top_k}, DType::i32),
                 kept = numbers<std::int32_t>(t(), {tokens, top_k}), weights = t().in_f32({tokens, top_k}, 1);
      std::vector<double> coarse = t().read(weights.tested);  // with ties
      for (double& value : coarse) value = std::round(64 * value) / 64;
      put_f32(t(), weights, coarse);
      for (std::size_t i = 0; i < coarse.size(); ++i)  // rounding that the order must not see: its bits end at 2^-12
        coarse[i] *= 1 + std::ldexp(static_cast<double>(i * i % 7) - 3, -16);
      put_tested_f32(t(), weights, coarse);
      t().run([&](Exec& ex) {
        drop_pairs(ex, {.experts = of.on(ex),
                        .weights = by == DropBy::probability ? weights.on(ex) : Tensor(),
                        .kept = kept.on(ex),
                        .num_experts = experts,
                        .capacity = capacity,
                        .run = run,
                        .by = by});
      });
      expect_equal_numbers<std::int32_t>(t(), kept, "kept");
      t().release();
    }
  }
}

}  // namespace
}  // namespace megalith::ops
