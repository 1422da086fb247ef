#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <thread>

#include "megalith/base/clock.h"
#include "megalith/ops/adamw.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/elapsed.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/embedding.h"
#include "megalith/ops/step_end.h"

#include "tests/ops/device_cases.h"
#include "tests/support/split_masters.h"

// Tables and losses, and what ends a step.
namespace megalith::ops {
namespace {

using support::Twin;

TEST_P(DeviceOps, CrossEntropy) {
  struct Logits {
    Index tokens, columns;
  };
  for (const auto [tokens, columns] : {Logits{0, 8}, Logits{1, 4}, Logits{5, 24}, Logits{33, 257}, Logits{64, 50304},
                                       Logits{7, 50257}, Logits{600, 16384}, Logits{600, 9000}}) {
    SCOPED_TRACE(::testing::Message() << tokens << " x " << columns);
    const Index vocab_size = columns > 4 ? columns - 3 : columns;
    std::vector<std::int32_t> ids;
    for (Index i = 0; i < tokens; ++i)
      ids.push_back(i % 5 == 2 ? -1 : static_cast<std::int32_t>(i * 7919 % vocab_size));
    const Twin logits = t().in({tokens, columns}, 1, 8), parts = t().in({tokens, columns}, 1, 8),
               targets = t().ids(ids), state = t().structure(kDeviceState);
    const Twin evaluated = t().in({tokens, columns}, 1, 8), loss2 = t().out_f32({tokens}), loss_sum2 = t().scalar(0);
    const Twin loss = t().out_f32({tokens}), loss_sum = t().scalar(0.5), row_max = t().out_f32({tokens}),
               sums = t().out_f32({2, tokens});
    const Twin split_loss = t().out_f32({tokens}), split_sum = t().scalar(0.5);
    t().run([&](Exec& ex) {
      cross_entropy(ex, {.logits = logits.on(ex),
                         .targets = targets.on(ex),
                         .step_state = state.on(ex),
                         .loss = loss.on(ex),
                         .loss_sum = loss_sum.on(ex),
                         .vocab_size = vocab_size});
      cross_entropy(ex, {.logits = evaluated.on(ex),
                         .targets = targets.on(ex),
                         .step_state = {},
                         .loss = loss2.on(ex),
                         .loss_sum = loss_sum2.on(ex),
                         .vocab_size = vocab_size});
      logits_max(ex, parts.on(ex), row_max.on(ex), 0, vocab_size);
      logits_sum_exp(ex, {.logits = parts.on(ex),
                          .row_max = row_max.on(ex),
                          .targets = targets.on(ex),
                          .sums = sums.on(ex),
                          .first_id = 0,
                          .vocab_size = vocab_size});
      loss_from_sums(ex, {.sums = sums.on(ex),
                          .targets = targets.on(ex),
                          .loss = split_loss.on(ex),
                          .loss_sum = split_sum.on(ex),
                          .vocab_size = vocab_size});
      logits_backward(ex, {.logits = parts.on(ex),
                           .sums = sums.on(ex),
                           .targets = targets.on(ex),
                           .step_state = state.on(ex),
                           .first_id = 0});
    });
    expect_close(loss, "loss", 1e-5);
    expect_close(loss_sum, "loss_sum", 1e-5);
    expect_close(loss2, "evaluated loss", 1e-5);
    expect_same(logits, "gradient");
    expect_close(row_max, "row_max", 1e-6);
    expect_close(sums, "sums", 1e-5);
    expect_close(split_loss, "split loss", 1e-5);
    expect_close(split_sum, "split loss_sum", 1e-5);
    expect_twice_rounded(parts, "split gradient: exp(z - max) is rounded first");
    t().release();
  }
}

TEST_P(DeviceOps, CrossEntropyOfAShard) {
  const Index tokens = 20, held = 40, first_id = 40, vocab_size = 73;
  std::vector<std::int32_t> ids;
  for (Index i = 0; i < tokens; ++i) ids.push_back(static_cast<std::int32_t>(i * 31 % vocab_size));
  const Twin z = t().in({tokens, held}, 1, 8), targets = t().ids(ids), state = t().structure(kDeviceState);
  const Twin row_max = t().out_f32({tokens}), sums = t().out_f32({2, tokens});
  t().run([&](Exec& ex) {
    logits_max(ex, z.on(ex), row_max.on(ex), first_id, vocab_size);
    logits_sum_exp(ex, {.logits = z.on(ex),
                        .row_max = row_max.on(ex),
                        .targets = targets.on(ex),
                        .sums = sums.on(ex),
                        .first_id = first_id,
                        .vocab_size = vocab_size});
    logits_backward(ex, {.logits = z.on(ex),
                         .sums = sums.on(ex),
                         .targets = targets.on(ex),
                         .step_state = state.on(ex),
                         .first_id = first_id});
  });
  expect_close(row_max, "row_max", 1e-6);
  expect_close(sums, "sums", 1e-5);
  expect_twice_rounded(z, "gradient");
}

TEST_P(DeviceOps, Embedding) {
  struct Table {
    Index batch, seq_len, held, hidden;
  };
  for (const auto [batch, seq_len, held, hidden] :
       {Table{1, 1, 1, 1}, Table{3, 7, 5, 9}, Table{4, 64, 100, 768}, Table{2, 700, 3, 64}, Table{2, 512, 50304, 32},
        Table{5, 3001, 1, 8}, Table{8, 1024, 4, 12}, Table{8, 1024, 6, 12}}) {
    SCOPED_TRACE(::testing::Message() << batch << " x " << seq_len << " of " << held << " x " << hidden);
    const Index tokens = batch * seq_len, first_id = 2, vocab_size = held + 4;
    std::vector<std::int32_t> values;  // of one row: all the same
    for (Index i = 0; i < tokens; ++i)
      values.push_back(static_cast<std::int32_t>(held == 1 && tokens > 1 ? first_id : i * i % 97 % vocab_size));
    const Twin ids = t().ids(values), table = t().in({held, hidden}, 1), y = t().out({tokens, hidden}),
               position = t().in({seq_len, hidden}, 2);
    const Twin with_position = t().out({tokens, hidden}), dy = t().in({tokens, hidden}, 3),
               state = t().structure(kDeviceState);
    const Twin table_grad = t().in_f32({held, hidden}, 4), position_grad = t().in_f32({seq_len, hidden}, 5);
    t().run([&](Exec& ex) {
      embedding_forward(
          ex,
          {.ids = ids.on(ex), .table = table.on(ex), .y = y.on(ex), .first_id = first_id, .vocab_size = vocab_size});
      add_position(ex, {.x = y.on(ex),
                        .position = position.on(ex),
                        .y = with_position.on(ex),
                        .dropout = {.probability = 0.3,
                                    .seed = 9,
                                    .site = 4,
                                    .step_state = state.on(ex),
                                    .seq_len = seq_len,
                                    .first_row = seq_len / 2}});  // a share that begins within a sample
      embedding_backward(ex,
                         {.ids = ids.on(ex), .dy = dy.on(ex), .table_grad = table_grad.on(ex), .first_id = first_id});
      position_backward(ex, dy.on(ex), position_grad.on(ex));
    });
    expect_close(y, "rows", 0);
    expect_same(with_position, "with position");
    expect_close(table_grad, "table_grad", 5e-6);
    expect_close(position_grad, "position_grad", 5e-6);
    const std::vector<double> first = t().read(table_grad.tested);
    const Twin again = t().in_f32({held, hidden}, 4);
    embedding_backward(t().tested(),
                       {.ids = ids.tested, .dy = dy.tested, .table_grad = again.tested, .first_id = first_id});
    EXPECT_EQ(t().read(again.tested), first) << "the same bits every time";
    t().release();
  }
}

// Sizes of flat buffers: nothing, one element, whole vectors of 4, an odd rest, more than a block of the sum of
// squares.
constexpr Index kCounts[] = {0, 1, 64, 65, 20001, 20004, (Index{1} << 20) + 76, (Index{1} << 20) + 77};

TEST_P(DeviceOps, AdamW) {
  const bool has_copy = t().dtype() != DType::f32;
  for (const Index n : kCounts) {
    SCOPED_TRACE(n);
    const Twin w = t().in_f32({n}, 1), m = t().in_f32({n}, 2), v = t().positive_f32({n}, 3), grad = t().in_f32({n}, 4);
    const MasterValues masters = support::masters_for(t().tested(), t().dtype(), w.tested);
    std::vector<std::uint8_t> flags(static_cast<std::size_t>(ceil_div(n, kDecayGroup)));
    for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = i % 3 != 0;
    const Twin decays = t().bytes_of(flags.data(), {static_cast<Index>(flags.size())}, DType::u8);
    const auto step = [&](std::int32_t apply) {
      const Twin verdict =
          t().structure(StepVerdict{.apply = apply, .factor = 0.5, .learning_rate = 0.01, .update = 7});
      t().run([&](Exec& ex) {
        adamw(ex, {.masters = &ex == &t().oracle() ? MasterValues{.whole = w.oracle} : masters,
                   .m = m.on(ex),
                   .v = v.on(ex),
                   .grad = grad.on(ex),
                   .decays = decays.on(ex),
                   .verdict = verdict.on(ex),
                   .beta1 = 0.8,
                   .beta2 = 0.95,
                   .eps = 1e-6,
                   .weight_decay = 0.1});
      });
      if (masters.is_split()) read_masters(t().tested(), masters, w.tested);
    };
    const auto state = [&] { return std::array{t().read(w.tested), t().read(m.tested), t().read(v.tested)}; };
    const auto before = state();
    step(0);
    EXPECT_EQ(state(), before) << "a refused step must change nothing";
    step(1);
    expect_close(w, "w", 2e-6);
    expect_close(m, "m", 2e-6);
    expect_close(v, "v", 2e-6);
    if (has_copy) {
      EXPECT_EQ(t().read(masters.copy), t().rounded(t().read(w.tested))) << "the copy is the rounded value";
    }
    t().release();
  }
}

/// Elements of two bf16 tensors whose bits differ.
Index differing_bits(Exec& tested, const Twin& twin) {
  std::vector<std::uint16_t> got(static_cast<std::size_t>(twin.tested.numel()));
  tested.copy(got.data(), twin.tested.raw(), twin.tested.bytes());
  tested.synchronize();
  const auto* const want = static_cast<const std::uint16_t*>(twin.oracle.raw());
  Index count = 0;
  for (std::size_t i = 0; i < got.size(); ++i) count += got[i] != want[i] ? 1 : 0;
  return count;
}

// Columns of a matrix and a vector, of sizes for vectors of four (and one Philox block for each) and for single
// elements.
TEST_P(DeviceOps, AdamWWithRoundedMoments) {
  struct Columns {
    Index global, first, local;
  };
  for (const auto [global, first, local] : {Columns{64, 16, 32}, Columns{64, 0, 64}, Columns{37, 5, 9}}) {
    for (const Index tail : {Index{0}, Index{1}}) {
      SCOPED_TRACE(::testing::Message() << local << " of " << global << " columns, tail " << tail);
      constexpr Index kMatrixRows = 300, kFirstElement = 512;
      const Index matrix = round_up(kMatrixRows * local, Index{128}), n = matrix + 100 + tail;
      const std::array params{
          RoundedParam::of({"a", {kMatrixRows, global}, {0, first}, {kMatrixRows, local}}, kFirstElement, 9),
          RoundedParam::of(TensorSlice::whole("b", {100 + tail}), kFirstElement + matrix, 9)};
      std::vector<std::int32_t> of_groups(static_cast<std::size_t>(ceil_div(n, kDecayGroup)), 1);
      std::fill_n(of_groups.begin(), matrix / kDecayGroup, 0);
      const std::vector<std::uint8_t> flags(of_groups.size(), 1);
      std::vector<bfloat16> halves(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < halves.size(); ++i)
        halves[i] = bfloat16(0.25f + 0.001f * static_cast<float>(i % 400));
      const Twin w = t().in_f32({n}, 1), grad = t().in_f32({n}, 4), m = t().bytes_of(halves.data(), {n}, DType::bf16),
                 v = t().bytes_of(halves.data(), {n}, DType::bf16), table = t().structure(params),
                 groups = t().bytes_of(of_groups.data(), {std::ssize(of_groups)}, DType::i32),
                 decays = t().bytes_of(flags.data(), {std::ssize(flags)}, DType::u8);
      const MasterValues masters = support::masters_for(t().tested(), t().dtype(), w.tested);
      for (const std::int64_t apply : {0, 1}) {
        const Twin verdict =
            t().structure(StepVerdict{.apply = apply, .factor = 0.5, .learning_rate = 0.01, .update = 7});
        t().run([&](Exec& ex) {
          adamw(ex, {.masters = &ex == &t().oracle() ? MasterValues{.whole = w.oracle} : masters,
                     .m = m.on(ex),
                     .v = v.on(ex),
                     .rounding = {.params = table.on(ex), .param_of = groups.on(ex), .first = kFirstElement},
                     .grad = grad.on(ex),
                     .decays = decays.on(ex),
                     .verdict = verdict.on(ex),
                     .beta1 = 0.8,
                     .beta2 = 0.95,
                     .eps = 1e-6,
                     .weight_decay = 0.1});
        });
        if (apply == 0) {
          EXPECT_EQ(differing_bits(t().tested(), m) + differing_bits(t().tested(), v), 0) << "of a refused step";
        }
      }
      if (masters.is_split()) read_masters(t().tested(), masters, w.tested);
      expect_close(w, "w", 2e-6);
      // Some f32 sums lie on the other side of a border of the rounding than f64 sums. Other words would change half.
      EXPECT_LE(differing_bits(t().tested(), m), 1 + n / 1000);
      EXPECT_LE(differing_bits(t().tested(), v), 1 + n / 1000);
      t().release();
    }
  }
}

TEST_P(DeviceOps, SumOfSquares) {
  for (const Index n : kCounts) {
    SCOPED_TRACE(n);
    const Twin x = t().in_f32({3, n}, 4), sum = t().scalar(2);
    t().run([&](Exec& ex) {
      const Index blocks = square_blocks(ex.device(), n);  // each device cuts in its own way
      const Tensor sums = ex.tensor({3, blocks}, DType::f64);
      sum_of_squares(ex, x.on(ex), sums);
      add_up(ex, sums.reshaped({3 * blocks}), sum.on(ex));
    });
    expect_close(sum, "sum of squares", 1e-12);
    t().release();
  }
}

TEST_P(DeviceOps, InitialisationIsThatOfTheOracle) {
  const TensorSlice slice{"layers.3.mlp.up.weight", {70, 48}, {8, 4}, {33, 40}};  // two padding rows after it
  const Twin w = t().out_f32({35, 40});
  t().run([&](Exec& ex) { initialise(ex, {slice, Init::normal, 0.02}, w.on(ex), 77); });
  expect_close(w, "values", 1e-7);
}

TEST_P(DeviceOps, DecidesStepsAsTheOracleDoes) {
  constexpr Index num_totals = 1 + kMaxLosses, num_counts = summed_counts(kMaxLosses);
  const Twin loss = t().bytes_of(std::array{3.0, 5.0}.data(), {2}, DType::f64);
  const Twin totals = t().bytes_of(std::vector<double>(num_totals, 7).data(), {num_totals}, DType::f64);
  const StepCounts next_terms{.next_terms = 7};
  const Twin counts = t().bytes_of(&next_terms, {num_counts}, DType::u64), outcome = t().structure(StepOutcome{});
  const Twin state = t().structure(OptimizerState{.updates = 41, .loss_scale = 65536, .clean_steps = 1}),
             verdict = t().structure(StepVerdict{});
  const Twin step = t().structure(kDeviceState), of_labels = t().structure(kDeviceState);
  const StepRules rules{
      .learning_rate = {.lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 10, .decay_begin = 10, .decay_end = 100},
      .scaling = {.initial = 65536, .growth_interval = 2},
      .clip = 1};
  const auto same_bytes = [&](const Twin& twin) {
    std::vector<std::byte> got(static_cast<std::size_t>(twin.tested.bytes()));
    t().tested().copy(got.data(), twin.tested.raw(), twin.tested.bytes());
    t().tested().synchronize();
    return std::memcmp(got.data(), twin.oracle.raw(), got.size()) == 0;
  };
  constexpr double kSquares = 16.0 * 65536 * 65536, kInf = std::numeric_limits<double>::infinity();
  // The last one is held, as experts had too few rows.
  for (const std::array squares :
       {std::array{kSquares, 1.0}, std::array{kInf, 1.0}, std::array{kSquares, kInf}, std::array{kSquares, 2.0}}) {
    const Twin this_time = t().bytes_of(squares.data(), {2}, DType::f64);
    const std::array<std::int64_t, 2> without_rows{squares[1] == 2.0 ? 6 : 0, 9};
    const Twin overflow = t().bytes_of(without_rows.data(), {2}, DType::i64);
    t().run([&](Exec& ex) {
      scale_step_state(ex, state.on(ex), step.on(ex));
      scale_step_state(ex, state.on(ex), of_labels.on(ex), ScaledLoss::other);
      step_terms(ex, {.sum_squares = this_time.on(ex),
                      .loss_sums = loss.on(ex),
                      .totals = totals.on(ex),
                      .counts = counts.on(ex),
                      .overflow = overflow.on(ex),
                      .outcome = outcome.on(ex)});
      decide_step(ex, {.totals = totals.on(ex),
                       .counts = counts.on(ex),
                       .state = state.on(ex),
                       .verdict = verdict.on(ex),
                       .outcome = outcome.on(ex),
                       .rules = rules});
    });
    EXPECT_TRUE(same_bytes(step));
    EXPECT_TRUE(same_bytes(of_labels));
    EXPECT_TRUE(same_bytes(state));
    EXPECT_TRUE(same_bytes(totals));
    EXPECT_TRUE(same_bytes(counts));
    StepVerdict got;
    t().tested().copy(&got, verdict.tested.raw(), sizeof got);
    t().tested().synchronize();
    StepVerdict want;
    std::memcpy(&want, verdict.oracle.raw(), sizeof want);
    EXPECT_EQ(got.apply, want.apply);
    EXPECT_EQ(got.update, want.update);
    EXPECT_NEAR(got.learning_rate, want.learning_rate, 1e-15);
    EXPECT_NEAR(got.factor, want.factor, 1e-15 * want.factor);
  }
}

// Of what lies between a start and its end, not of what lies between two of these.
TEST_P(DeviceOps, ElapsedTimesAddUp) {
  constexpr auto kSlept = std::chrono::milliseconds(3);
  Exec& ex = t().tested();
  const Tensor begin = ex.tensor({1}, DType::i64), sum = ex.tensor({1}, DType::f64);
  const auto sleep = [&] {
    ex.synchronize();
    std::this_thread::sleep_for(kSlept);
  };
  const auto measured_us = [&](int times) {
    fill(ex, sum, 0);
    const double from_s = monotonic_s();
    for (int i = 0; i < times; ++i) {
      start_clock(ex, begin);
      sleep();
      add_elapsed(ex, begin, sum);
      sleep();
    }
    double us = 0;
    ex.copy(&us, sum.raw(), sizeof us);
    ex.synchronize();
    EXPECT_LE(us * 1e-6, monotonic_s() - from_s - times * 2.99e-3) << "clocks of host and device differ a little";
    return us;
  };
  for (const int times : {1, 4}) EXPECT_GE(measured_us(times), times * 2990);
}

}  // namespace
}  // namespace megalith::ops
