#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megalith/config/run_plan.h"
#include "megalith/data/data_config.h"
#include "megalith/model/batch.h"
#include "megalith/tasks/task_figures.h"

namespace megalith::train {

/// What a run reads: its samples and those held out, by the family of its model. Shared by rank threads; read only.
class RunData {
 public:
  /// A part of the files, for messages and comparisons.
  struct Facts {
    std::string name;
    Index tokens = 0, samples = 0;
    std::uint64_t fingerprint = 0;
  };

  /// A held-out set, in its own order; after the last sample `batches` has samples without any loss, so that whole
  /// batches cover all.
  struct HeldOut {
    std::string name;  ///< in reports
    Index samples = 0;
    std::unique_ptr<model::BatchSource> batches;
    /// Of a task, its figures from the numbers of all samples, in their order (tasks::TaskSet::predict).
    std::function<tasks::Figures(std::span<const float>)> figures = {};
  };

  virtual ~RunData() = default;
  virtual Facts train() const = 0;
  /// Without samples where nothing is held out.
  virtual Facts valid() const = 0;
  /// In the order of the seed, without an end.
  virtual std::unique_ptr<model::BatchSource> train_batches() const = 0;
  /// Empty where nothing is held out. This must outlive them and train_batches().
  virtual std::vector<HeldOut> held_out() const = 0;
  virtual const data::DataNotes& notes() const = 0;
};

/// Opens the files of a plan. Throws ConfigError, InputError, IoError.
std::unique_ptr<const RunData> open_run_data(io::Fs& fs, const config::RunPlan& plan,
                                             const tokenizer::Tokenizer& tokenizer, int threads = 1);

}  // namespace megalith::train
