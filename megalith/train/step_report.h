#pragma once
#include <array>
#include <initializer_list>
#include <string>
#include <string_view>

#include "megalith/eval/figures.h"
#include "megalith/ops/step_end.h"
#include "megalith/tasks/task_figures.h"
#include "megalith/train/moe_report.h"

namespace megalith::train {

/// The mean of a loss over its terms in the global batch; 0 if there are none.
struct LossMean {
  std::string_view name;  ///< nn::LossSpec::name
  double mean = 0;
  Index count = 0;
  std::string_view terms = {};  ///< nn::LossSpec::terms
};

/// Those of a model, in the memory of the object: a step allocates nothing.
class LossMeans {
 public:
  LossMeans() = default;
  LossMeans(std::initializer_list<LossMean> means) {
    for (const LossMean& mean : means) push_back(mean);
  }
  void push_back(const LossMean& mean) { means_.at(size_++) = mean; }
  std::size_t size() const { return size_; }
  /// Whether reports have them beside the loss of the step.
  bool are_parts() const { return size_ > 1 || (size_ == 1 && !means_[0].terms.empty()); }
  const LossMean& operator[](std::size_t loss) const { return means_[loss]; }
  const LossMean* begin() const { return means_.data(); }
  const LossMean* end() const { return means_.data() + size_; }

 private:
  std::array<LossMean, ops::kMaxLosses> means_;
  std::size_t size_ = 0;
};

/// What an evaluation gives.
struct Evaluated {
  double loss = 0;  ///< weighted sum of the means of `losses`, nats
  LossMeans losses = {};
};

/// An evaluation of a held-out set.
struct HeldOutResult {
  std::string name;  ///< of the set
  Index samples = 0;
  Evaluated result = {};
  tasks::Figures figures = {};  ///< of a task; empty: there are none
};

/// The scores of a task of eval.tasks at an evaluation.
struct ChoiceResult {
  std::string name;  ///< of the task
  Index questions = 0;
  eval::Figures figures = {};  ///< of eval::choice_figures(); none without is_finite
  bool is_finite = true;       ///< whether all probabilities are numbers
};

/// The numbers of one step on which the ranks agreed. Code that computes more about a step adds a member with a
/// default.
struct StepReport {
  double loss = 0;  ///< weighted sum of the means of `losses`, nats
  LossMeans losses = {};
  double grad_norm = 0;        ///< global, unscaled, before clipping
  double learning_rate = 0;    ///< 0 if the step was skipped
  double loss_scale = 1;       ///< of this step
  bool skipped = false;        ///< nothing was updated: numbers were not finite, or a spike
  bool finite = true;          ///< loss and gradients, on all ranks
  Index skipped_steps = 0;     ///< ops::OptimizerState::skipped_steps after the step
  std::int64_t spikes = 0;     ///< ops::kLossSpike, ops::kNormSpike
  ops::SpikeMeans means = {};  ///< before the step; of train.spike_*
  std::string where = {};      ///< of a skipped step that was not finite, without loss scaling: ranks and parameter
  bool rerun = false;          ///< experts had too few rows: the step was run again, in rounds
  double rows_factor = 0;      ///< of a rerun: the least moe.rank_capacity_factor with which it had not been needed
  bool stop = false;           ///< some rank was asked to stop
  bool save = false;           ///< some rank requested a save
  MoeReport moe = {};          ///< of models with experts
};

}  // namespace megalith::train
