#pragma once
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/ops/masters.h"

#include "tests/support/twin.h"
#include "tests/train/graph_ways.h"
#include "tests/train/meddling_batches.h"

// Steps in which one rank meets a number that is not finite: what they must leave as it was, on all ranks, on the CPU
// and on GPUs.
namespace megalith::support {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(Exec& ex, const Tensor& tensor) {
  Bytes bytes(static_cast<std::size_t>(tensor.bytes()));
  ex.copy(bytes.data(), tensor.raw(), tensor.bytes());
  ex.synchronize();
  return bytes;
}
inline Bytes bytes_of(Exec& ex, const MasterValues& masters) {
  Buffer memory;
  return bytes_of(ex, ops::readable(ex, masters, memory));
}

/// All that a skipped step must leave as it was: masters, moments, what rules update, copies. Where the optimizer is
/// sharded, copies of others' parts arrive with the next step.
inline std::vector<Bytes> kept_state(train::Engine& engine) {
  std::vector<Bytes> state;
  for (const ParamBuffer& params : engine.stage().params().buffers()) {
    for (const OwnRange& range : params.own_ranges()) {
      state.push_back(bytes_of(engine.exec(), params.own_masters(range)));
      state.push_back(bytes_of(engine.exec(), range.of_whole(params.values())));
    }
  }
  for (const optim::Optimizer& optimizer : engine.optimizers())
    for (const Tensor& moments : {optimizer.m(), optimizer.v()}) state.push_back(bytes_of(engine.exec(), moments));
  return state;
}

inline bool all_finite(Exec& ex, const Tensor& tensor) {
  return std::ranges::all_of(values_on(ex, tensor), [](double value) { return std::isfinite(value); });
}

/// What layers read, of all buffers.
inline std::vector<Bytes> read_values(train::Engine& engine) {
  std::vector<Bytes> values;
  for (const ParamBuffer& params : engine.stage().params().buffers())
    values.push_back(bytes_of(engine.exec(), params.values()));
  return values;
}
inline void write_values(train::Engine& engine, const std::vector<Bytes>& values) {
  auto next = values.begin();
  for (const ParamBuffer& params : engine.stage().params().buffers()) {
    engine.exec().copy(params.values().raw(), next->data(), params.values().bytes());
    ++next;
  }
  engine.exec().synchronize();
}

/// How a rank's step is made to overflow: by the copies that its layers read, which write_values() mends (in fp16
/// refresh_values(), too), or by its own loss scale.
using Break = void (*)(train::Engine&);

/// Nothing of the forward pass overflows: embeddings are 0, and so is what the first norm multiplies by its gain. On
/// the way back the gain multiplies the gradient, beyond the numbers that f16 has. For a rank of
/// the first of several stages: elsewhere the loss comes back through the same table of zeros.
inline void break_embedding_gradient(train::Engine& engine) {
  ParamBuffer& params = engine.stage().params().dense();
  ops::fill(engine.exec(), params.at("embedding.token.weight").value, 0);
  ops::fill(engine.exec(), params.at("embedding.position.weight").value, 0);
  ops::fill(engine.exec(), params.at("layers.0.norm1.weight").value, 60000);
}

inline void break_forward(train::Engine& engine) {
  const float16 infinity(std::numeric_limits<float>::infinity());
  engine.exec().copy(engine.stage().params().dense().values().raw(), &infinity, sizeof infinity);
  engine.exec().synchronize();
}

/// All gradients are NaN. For a rank of the last stage, which has a loss.
inline void break_gradients(train::Engine& engine) {
  ops::OptimizerState broken = engine.optimizer_state();
  broken.loss_scale = std::nan("");
  engine.set_optimizer_state(broken);
}

/// What a skipped step that is not finite leaves of `state`.
inline ops::OptimizerState after_skip(const config::RunPlan& plan, ops::OptimizerState state) {
  if (!plan.train.scaling.is_on()) return state;
  state.loss_scale /= 2;
  state.clean_steps = 0;
  return state;
}

/// The specification's event list, through a real run of `plan` (fp16, 8 steps): rank `bad_rank` alone overflows at the
/// bad steps. Returns which ranks' gradients were finite in the last of them.
inline std::vector<bool> run_events(RunRanks run_ranks, config::RunPlan plan, int bad_rank, Break overflow) {
  constexpr bool kOk[] = {true, true, false, true, true, false, false, true};
  constexpr double kScaleAfter[] = {65536, 131072, 65536, 65536, 131072, 65536, 32768, 32768};
  plan.train.scaling.growth_interval = 2;
  EXPECT_EQ(plan.train.scaling.initial, 65536);
  std::vector<std::uint8_t> finite(static_cast<std::size_t>(plan.grid.world_size));
  run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const HashedBatches source(plan.model.vocab_size);
    std::int64_t updates = 0;
    for (Index step = 0; step < 8; ++step) {
      SCOPED_TRACE(::testing::Message() << "rank " << world.rank() << ", step " << step);
      const bool ok = kOk[step];
      const double scale = engine.optimizer_state().loss_scale;
      if (!ok && world.rank() == bad_rank) overflow(engine);
      const std::vector<Bytes> before = kept_state(engine);
      const train::StepReport result = engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      const std::vector<Bytes> after = kept_state(engine);
      updates += ok ? 1 : 0;
      EXPECT_EQ(result.skipped, !ok);
      EXPECT_EQ(result.loss_scale, scale) << "the scale of the step itself";
      EXPECT_EQ(engine.optimizer_state().loss_scale, kScaleAfter[step]);
      EXPECT_EQ(engine.optimizer_state().updates, updates);
      for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i] == after[i], !ok) << "state " << i;
      if (ok) continue;
      finite[static_cast<std::size_t>(world.rank())] =
          all_finite(engine.exec(), engine.stage().params().dense().grads());
      engine.refresh_values();
    }
  });
  return {finite.begin(), finite.end()};
}

/// What one rank has after each step of a run.
struct Kept {
  std::vector<double> losses;
  std::vector<std::vector<Bytes>> state;
};

/// The step at which a rank is broken: graphs have been captured by then.
inline constexpr Index kBadStep = 4;
struct Broken {
  int rank;
  std::function<void(train::Engine&)> how;
  bool loses_scale = false;  ///< its own; the others' tell what it must be
};
inline Broken broken_gradients(int rank) { return {rank, break_gradients, true}; }
/// One number of one gradient is NaN: put there before the last microbatch, when earlier ones have left their gradients
/// and what comes is added. For a rank of the first stage, which asks `source` for every microbatch.
inline Broken nan_in_gradient(int rank, const char* name, const config::RunPlan& plan, const MeddlingBatches& source) {
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Index microbatches = plan.train.global_batch / plan.train.micro_batch / plan.grid.dp;
  return {rank, [name, microbatches, &source](train::Engine& engine) {
            source.expect(microbatches, [&engine, name](std::span<std::int32_t>) {
              engine.exec().copy(engine.stage().params().at(name).grad.raw(), &kNan, sizeof kNan);
            });
          }};
}

/// Eight steps of `plan` (fp16, or with train.on_nonfinite = skip), of each rank. At step kBadStep one rank is broken,
/// and mended afterwards; the others go on with what the device has decided. Without such a rank nothing is run at that
/// step: all ranks just go on with the scale that a skipped one leaves.
inline std::vector<Kept> run_past(RunRanks run_ranks, const config::RunPlan& plan, const std::optional<Broken>& broken,
                                  const model::BatchSource& source) {
  std::vector<Kept> kept(static_cast<std::size_t>(plan.grid.world_size));
  run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    Kept& mine = kept[static_cast<std::size_t>(world.rank())];
    for (Index step = 0; step < 8; ++step) {
      SCOPED_TRACE(::testing::Message() << "rank " << world.rank() << ", step " << step);
      const train::Progress progress{step, step * plan.train.global_batch};
      if (step != kBadStep) {
        const train::StepReport result = engine.step(source, progress, train::Stop::no);
        EXPECT_FALSE(result.skipped);
        mine.losses.push_back(result.loss);
        mine.state.push_back(kept_state(engine));
        continue;
      }
      const ops::OptimizerState state = engine.optimizer_state();
      const bool is_bad = broken && world.rank() == broken->rank;
      if (broken) {
        const std::vector<Bytes> values = read_values(engine);
        if (is_bad) broken->how(engine);
        const std::vector<Bytes> before = kept_state(engine);
        const train::StepReport report = engine.step(source, progress, train::Stop::no);
        EXPECT_TRUE(report.skipped);
        EXPECT_FALSE(report.finite);
        EXPECT_EQ(report.learning_rate, 0);
        EXPECT_TRUE(kept_state(engine) == before);
        write_values(engine, values);  // of bf16 masters, too
        const ops::OptimizerState after = engine.optimizer_state();
        EXPECT_EQ(after.updates, state.updates);
        if (!is_bad || !broken->loses_scale) {
          EXPECT_EQ(after.loss_scale, after_skip(plan, state).loss_scale);
          EXPECT_EQ(after.clean_steps, 0);
        }
      }
      engine.refresh_values();
      if (!broken || (is_bad && broken->loses_scale)) engine.set_optimizer_state(after_skip(plan, state));
    }
    EXPECT_EQ(engine.train_graph().captured(), plan.graphs.mode == capture::GraphMode::iteration);
    EXPECT_EQ(engine.layer_graphs().stats().graphs > 0, plan.graphs.mode == capture::GraphMode::layers);
  });
  return kept;
}

inline std::vector<Kept> run_past(RunRanks run_ranks, const config::RunPlan& plan,
                                  const std::optional<Broken>& broken) {
  return run_past(run_ranks, plan, broken, HashedBatches(plan.model.vocab_size));
}

inline void expect_same_steps(const std::vector<Kept>& got, const std::vector<Kept>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t rank = 0; rank < want.size(); ++rank) {
    EXPECT_EQ(got[rank].losses, want[rank].losses) << "rank " << rank;
    EXPECT_TRUE(got[rank].state == want[rank].state) << "rank " << rank;
  }
}

/// The error of each rank of a run of `plan` (bf16) whose step kBadStep meets NaN on rank `bad_rank`.
inline std::vector<std::string> errors_of_nan(RunRanks run_ranks, const config::RunPlan& plan, int bad_rank) {
  std::vector<std::string> errors(static_cast<std::size_t>(plan.grid.world_size));
  run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const HashedBatches source(plan.model.vocab_size);
    for (Index step = 0; step < kBadStep; ++step)
      engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
    const std::int64_t updates = engine.optimizer_state().updates;
    if (world.rank() == bad_rank) break_gradients(engine);
    const std::vector<Bytes> before = kept_state(engine);
    for (Index step = kBadStep; step < kBadStep + 2; ++step) {  // nothing changes any more, whatever is still started
      try {
        engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      } catch (const NonFiniteError& error) {
        if (step == kBadStep) errors[static_cast<std::size_t>(world.rank())] = error.what();
      }
      EXPECT_TRUE(kept_state(engine) == before) << "rank " << world.rank() << ", step " << step;
      EXPECT_EQ(engine.optimizer_state().updates, updates);
      EXPECT_EQ(engine.optimizer_state().halted, 1);
    }
  });
  return errors;
}

/// All ways to take a step from graphs, captured before kBadStep.
inline constexpr Index kWarmupSteps = 2;
inline std::vector<capture::GraphsConfig> graph_ways() {
  std::vector<capture::GraphsConfig> ways;
  for (const GraphWay& way : kGraphWays) ways.push_back(graphs_of(way, kWarmupSteps));
  return ways;
}
inline std::string name_of(const capture::GraphsConfig& graphs) {
  return str(capture::name(graphs.mode), " per ", capture::name(graphs.per),
             graphs.optimizer ? " with the optimizer" : "");
}

}  // namespace megalith::support
