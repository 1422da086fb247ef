#pragma once
#include <functional>
#include <string>

#include "megalith/eval/masked_samples.h"
#include "megalith/io/fs.h"

namespace megalith::apps {

/// `score` of a masked language model: JSON lines of objects {"ids": [...], "types": [...], "targets": [...]}, all of
/// one size, up to seq_len; a target is the id whose ln p is printed, or -1. Other members are ignored. The
/// samples are read one group after another, so that only one group is in memory.
class MaskedScorer {
 public:
  /// All must outlive it. `name` is of the file, for errors.
  MaskedScorer(const io::MappedFile& file, const std::string& name, const model::ModelConfig& model)
      : file_(file), name_(name), model_(model) {}

  /// Reads the whole file. Throws InputError with the problems of all lines: file, line, key, rule and fix.
  void check() const;
  eval::PassCounts counts() const;
  std::vector<eval::AskedResult> asked() const;
  /// Prints {"logprobs": [[...], ...], "order": [[ln p, ln p], ...]} on rank 0: a number for every place, null without
  /// a target; for the order 0 is in order and 1 is not, as in Hugging Face's models. A model without an order has
  /// none. Keeps 16 bytes a sample. Collective.
  void print(eval::InferenceModel& model, int rank) const;

 private:
  using Take = std::function<void(eval::MaskedSample)>;
  void read(const Take& take) const;

  const io::MappedFile& file_;
  const std::string& name_;
  const model::ModelConfig& model_;
};

}  // namespace megalith::apps
