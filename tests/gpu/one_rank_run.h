#pragma once
#include <cmath>
#include <map>

#include "megalith/train/engine.h"

#include "tests/support/twin.h"
#include "tests/train/small_run.h"

namespace megalith::support {

/// What a run of one rank computed.
struct OneRankRun {
  std::vector<double> losses, norms, scales;
  std::map<std::string, std::vector<double>> gradients;  ///< of the first step
  double evaluated = 0;
  BytesByOwner planned, taken;
};

/// Trains one rank on the device that the plan names; on a GPU with a step under way while the last one is read.
inline OneRankRun train_one_rank(const config::RunPlan& plan, const model::BatchSource& source) {
  OneRankRun record;
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    record.planned = engine.planned_bytes();
    engine.allocate();
    record.taken = engine.taken_bytes();
    train::Progress progress;
    const auto finish = [&] {
      const train::StepReport result = engine.finish_step();
      record.losses.push_back(result.loss);
      record.norms.push_back(result.grad_norm);
      record.scales.push_back(result.loss_scale);
    };
    for (Index step = 0; step < plan.train.steps; ++step) {
      engine.start_step(source, progress);
      progress = {step + 1, progress.samples + plan.train.global_batch};
      if (step == 0) {
        for (const Param& param : engine.stage().params().dense().params()) {
          std::vector<double>& gradient = record.gradients[param.name()];
          gradient = values_on(engine.exec(), param.grad);
          for (double& value : gradient) value /= plan.train.scaling.is_on() ? plan.train.scaling.initial : 1.0;
        }
      }
      if (engine.steps_started() == train::Engine::kMaxStarted) finish();
    }
    while (engine.steps_started() > 0) finish();
    record.evaluated = engine.evaluate(source, plan.train.global_batch);
  });
  return record;
}
inline OneRankRun train_one_rank(const config::RunPlan& plan) {
  return train_one_rank(plan, HashedBatches(plan.model.vocab_size));
}

/// The largest error of a gradient of the first step, over the largest value of its parameter.
inline double worst_gradient(const OneRankRun& got, const OneRankRun& want) {
  double worst = 0;
  for (const auto& [name, values] : want.gradients) {
    const std::vector<double>& mine = got.gradients.at(name);
    double largest = 0, difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      difference = std::max(difference, std::abs(mine[i] - values[i]));
    }
    // A gradient that is zero but for rounding (the key bias's) proves nothing.
    if (largest > 1e-6) worst = std::max(worst, difference / largest);
  }
  return worst;
}

/// The mean of the errors of all losses, relative.
inline double mean_loss_error(const OneRankRun& got, const OneRankRun& want) {
  double error = 0;
  for (std::size_t i = 0; i < want.losses.size(); ++i) error += std::abs(got.losses.at(i) / want.losses[i] - 1);
  return error / static_cast<double>(want.losses.size());
}

/// All but what runs measure is planned to the byte, and that is not nothing.
inline void expect_planned_memory(const OneRankRun& run, const config::RunPlan& plan) {
  BytesByOwner taken = run.taken;
  for (const std::string& owner : train::measured_owners(plan)) EXPECT_GT(taken.extract(owner).mapped(), 0) << owner;
  EXPECT_EQ(run.planned, taken);
}

}  // namespace megalith::support
