#include "megalith/train/optimizer_record.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/train/run_identity.h"

namespace megalith::train {
namespace {

constexpr const char *kCleanSteps = "clean_steps", *kLossScale = "loss_scale";
constexpr const char* kSkippedSteps = "skipped_steps";
constexpr const char *kMeanSteps = "spike_mean_steps", *kMeanLoss = "spike_mean_loss", *kMeanNorm = "spike_mean_norm";

}  // namespace

Index count_of(const checkpoint::RunState& saved, const std::string& name) {
  const auto found = saved.integers.find(name);
  if (found == saved.integers.end()) throw InputError(str("[resume] MANIFEST: integers.", name, " is missing"));
  if (found->second < 0) {
    throw InputError(str("[resume] MANIFEST: integers.", name, " = ", found->second, ": must not be negative"));
  }
  return found->second;
}

double real_of(const checkpoint::RunState& saved, const std::string& name) {
  const auto found = saved.reals.find(name);
  if (found == saved.reals.end()) throw InputError(str("[resume] MANIFEST: reals.", name, " is missing"));
  return found->second;
}

void add_optimizer_state(checkpoint::RunState& state, const ops::OptimizerState& optimizer,
                         const ops::LossScaling& scaling) {
  state.integers[kUpdates] = optimizer.updates;
  if (scaling.is_on()) {
    state.integers[kCleanSteps] = optimizer.clean_steps;
    state.reals[kLossScale] = optimizer.loss_scale;
  }
  if (optimizer.skipped_steps > 0) state.integers[kSkippedSteps] = optimizer.skipped_steps;
  if (optimizer.means.steps == 0) return;
  state.integers[kMeanSteps] = optimizer.means.steps;
  state.reals[kMeanLoss] = optimizer.means.loss;
  state.reals[kMeanNorm] = optimizer.means.norm;
}

void take_optimizer_state(const checkpoint::RunState& saved, const ops::LossScaling& scaling,
                          ops::OptimizerState& optimizer) {
  optimizer.updates = count_of(saved, kUpdates);
  if (scaling.is_on()) {
    optimizer.clean_steps = count_of(saved, kCleanSteps);
    optimizer.loss_scale = real_of(saved, kLossScale);
  }
  optimizer.skipped_steps = saved.integers.contains(kSkippedSteps) ? count_of(saved, kSkippedSteps) : 0;
  optimizer.means = {};
  if (!saved.integers.contains(kMeanSteps)) return;
  optimizer.means = {
      .steps = count_of(saved, kMeanSteps), .loss = real_of(saved, kMeanLoss), .norm = real_of(saved, kMeanNorm)};
}

}  // namespace megalith::train
