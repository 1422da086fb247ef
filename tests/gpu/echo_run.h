#pragma once
#include <vector>

#include "tests/comm/gpu_ranks.h"
#include "tests/gpu/moe_plan.h"

// Runs whose experts have clones, on GPUs.

namespace megalith::support {

/// A router that prefers the first experts, so that ranks differ in load.
inline constexpr double kEchoSkew = 0.04;

struct EchoRun : RunRecord {
  Index moved = 0, reruns = 0;      ///< of all layers and steps
  std::vector<double> evaluations;  ///< after every second step
};

/// `delays`: eager ops of steps and evaluations go through it.
inline void train_with_clones(comm::World& world, const config::RunPlan& plan, EchoRun& run,
                              OpWatcher* delays = nullptr) {
  const HashedBatches source(plan.model.vocab_size);
  train::Engine engine(world, plan);
  engine.allocate();
  const auto watched = [&](const auto& run_ops) {
    if (delays == nullptr) return run_ops();
    engine.exec().watched(*delays, run_ops);
  };
  const auto evaluate = [&] {
    double loss = 0;
    watched([&] { loss = engine.evaluate(source, plan.train.global_batch); });
    return loss;
  };
  train::Progress progress;
  for (Index step = 0; step < plan.train.steps; ++step) {
    train::StepReport report;
    watched([&] { report = engine.step(source, progress, train::Stop::no); });
    progress = {step + 1, progress.samples + plan.train.global_batch};
    if (step == 0) put_params(run.gradients, engine.stage(), true);
    const double evaluated = step % 2 == 1 ? evaluate() : 0;
    if (world.rank() != 0) continue;
    run.evaluations.push_back(evaluated);
    run.losses.push_back(report.loss);
    run.norms.push_back(report.grad_norm);
    run.reruns += report.rerun ? 1 : 0;
    run.clones += clones_of(report);
    for (const train::ExpertLoad& layer : report.moe.layers) run.moved += layer.echo ? layer.echo->moved : 0;
  }
  const double evaluated = evaluate();
  if (world.rank() == 0) run.evaluated = evaluated;
  put_params(run.parameters, engine.stage(), false);
}

/// Ranks that have a GPU each.
inline std::unique_ptr<EchoRun> run_on_gpus(const config::RunPlan& plan) {
  auto run = std::make_unique<EchoRun>();
  comm::run_gpu_ranks(plan.grid.world_size, [&](comm::World& world) { train_with_clones(world, plan, *run); });
  return run;
}

/// Experts of whole vectors: in 16 bits the kernel for all of them takes these, in f32 a loop of GEMMs.
inline config::RunPlan plan_with_clones(const MoeGrid& grid, const std::string& precision, const nn::EchoConfig& echo) {
  constexpr MoeModel kModel{"Skewed", [](config::RunConfig& c) {
                              fit_grouped_kernel(c);
                              c.moe.router_skew = kEchoSkew;
                              c.moe.shared_ffn_hidden_size = 8;
                            }};
  config::RunPlan plan = plan_on(Device::cuda, grid, kModel, precision);
  plan.train.steps = 6;
  plan.model.moe.dispatcher = nn::ExpertDispatcher::peer;
  plan.model.moe.echo = echo;
  return plan;
}

inline constexpr nn::EchoConfig kClones{.slots = 3, .min_pairs = 0, .check_plan = 2};

inline void expect_same_run(const EchoRun& got, const EchoRun& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.evaluations, want.evaluations);
  EXPECT_EQ(got.evaluated, want.evaluated);
  EXPECT_EQ(got.gradients.tensors(), want.gradients.tensors());
  EXPECT_EQ(got.parameters.tensors(), want.parameters.tensors());
}

}  // namespace megalith::support
