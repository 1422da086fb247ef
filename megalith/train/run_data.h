#pragma once
#include <memory>
#include <string>

#include "megalith/config/run_plan.h"
#include "megalith/data/data_config.h"
#include "megalith/model/batch.h"

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

  virtual ~RunData() = default;
  virtual Facts train() const = 0;
  /// Without samples where nothing is held out.
  virtual Facts valid() const = 0;
  /// In the order of the seed, without an end.
  virtual std::unique_ptr<model::BatchSource> train_batches() const = 0;
  /// In their own order; after the last, samples without any loss, so that whole batches cover all. Null where nothing
  /// is held out. This must outlive both.
  virtual std::unique_ptr<model::BatchSource> valid_batches() const = 0;
  virtual const data::DataNotes& notes() const = 0;
};

/// Opens the files of a plan. Throws ConfigError, InputError, IoError.
std::unique_ptr<const RunData> open_run_data(io::Fs& fs, const config::RunPlan& plan,
                                             const tokenizer::Tokenizer& tokenizer, int threads = 1);

}  // namespace megalith::train
