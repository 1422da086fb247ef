#include <array>
#include <cstdint>

#include "megalith/ops/adamw.h"
#include "megalith/ops/muon.h"

#include "tests/ops/device_cases.h"
#include "tests/support/split_masters.h"

namespace megalith::ops {
namespace {

using support::Twin;

TEST_P(DeviceOps, MuonMomentumAndUpdate) {
  const bool has_copy = t().dtype() != DType::f32;
  for (const Index n : {Index{0}, Index{1}, Index{65}, Index{20001}, Index{20004}}) {
    SCOPED_TRACE(n);
    const Twin grad = t().in_f32({n}, 1), m = t().in_f32({n}, 2), value = t().in_f32({n}, 3);
    const MasterValues masters = support::masters_for(t().tested(), t().dtype(), value.tested);
    std::vector<std::uint8_t> flags(static_cast<std::size_t>(ceil_div(n, kDecayGroup)));
    for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = i % 3 != 0;
    const Twin decays = t().bytes_of(flags.data(), {static_cast<Index>(flags.size())}, DType::u8);
    const auto step = [&](std::int32_t apply) {
      const Twin verdict = t().structure(StepVerdict{.apply = apply, .factor = 0.5, .learning_rate = 0.01});
      t().run([&](Exec& ex) {
        muon_momentum(ex, {.grad = grad.on(ex), .m = m.on(ex), .verdict = verdict.on(ex), .momentum = 0.9});
        muon_update(ex, {.masters = &ex == &t().oracle() ? MasterValues{.whole = value.oracle} : masters,
                         .update = grad.on(ex),
                         .decays = decays.on(ex),
                         .verdict = verdict.on(ex),
                         .weight_decay = 0.1});
      });
      if (masters.is_split()) read_masters(t().tested(), masters, value.tested);
    };
    const auto state = [&] { return std::array{t().read(grad.tested), t().read(m.tested), t().read(value.tested)}; };
    const auto before = state();
    step(0);
    EXPECT_EQ(state(), before) << "a refused step must change nothing";
    step(1);
    expect_close(grad, "update", 2e-6);
    expect_close(m, "m", 2e-6);
    expect_close(value, "value", 2e-6);
    if (has_copy) {
      EXPECT_EQ(t().read(masters.copy), t().rounded(t().read(value.tested))) << "the copy is the rounded value";
    }
    t().release();
  }
}

TEST_P(DeviceOps, MuonMatrices) {
  const RowRuns runs{.run = 2, .stride = 6, .first = 3};  // rows 3, 4, 9, 10 of 12
  for (const Index columns : {1, 20, 260, 1001}) {
    SCOPED_TRACE(columns);
    const double sums[] = {1.5, 2, 0, 0.25, 3, 0, 7, 0.5};
    const Twin weight = t().in_f32({12, columns}, 1), put = t().in_f32({12, columns}, 2),
               part = t().out_f32({4, columns}), parts = t().bytes_of(sums, {4, 2}, DType::f64),
               squares = t().bytes_of(sums, {4}, DType::f64);
    const Twin x = t().out({4, columns}), y = t().in({4, columns}, 3), sum = t().out({4, columns});
    t().run([&](Exec& ex) {
      take_runs(ex, weight.on(ex), runs, part.on(ex));
      add_up_rows(ex, parts.on(ex), squares.on(ex));
      divide_by_norms(ex, part.on(ex), squares.on(ex), x.on(ex));
      linear_sum(ex, {.a = 3.4445, .x = x.on(ex), .b = -1.5, .y = y.on(ex), .out = sum.on(ex)});
      put_runs(ex, {.matrix = x.on(ex), .weight = put.on(ex), .runs = runs, .scale = 0.7});
    });
    expect_close(part, "rows", 0);
    expect_same(x, "rows over their norms");
    expect_twice_rounded(sum, "linear sum");
    expect_same(put, "rows put back");
    t().release();
  }
}

}  // namespace
}  // namespace megalith::ops
