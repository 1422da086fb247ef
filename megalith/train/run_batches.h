#pragma once
#include "megalith/data/bert_training_set.h"
#include "megalith/data/chat_samples.h"
#include "megalith/data/training_set.h"
#include "megalith/model/batch.h"
#include "megalith/tasks/task_set.h"

namespace megalith::train {

/// The samples of a run, in the order of its seed. A rank in the middle of the model, which needs documents only, reads
/// whole samples for them.
class TrainBatches final : public model::BatchSource {
 public:
  TrainBatches(const data::TrainingSet& set, std::uint64_t seed) : set_(set), order_(set, seed) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override;

 private:
  const data::TrainingSet& set_;
  data::TrainingOrder order_;
};

/// A set in its own order, and past its end samples without any loss: so that whole batches cover all of it.
class HeldOutBatches final : public model::BatchSource {
 public:
  explicit HeldOutBatches(const data::SampleSet& set) : set_(set), order_(data::SampleOrder::sequential(set.count())) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override;

 private:
  const data::SampleSet& set_;
  data::SampleOrder order_;
};

/// TrainBatches of a masked language model. A rank in the middle of the model, which needs lengths only, makes whole
/// samples for them.
class BertTrainBatches final : public model::BatchSource {
 public:
  explicit BertTrainBatches(const data::BertTrainingSet& set) : set_(set) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override;

 private:
  const data::BertTrainingSet& set_;
};

/// HeldOutBatches of a masked language model: samples as in epoch 0.
class BertHeldOutBatches final : public model::BatchSource {
 public:
  explicit BertHeldOutBatches(const data::BertSamples& set) : set_(set) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override;

 private:
  const data::BertSamples& set_;
};

/// The samples of a fine-tuning run. Each epoch has all of them once, in an order that is a function of (seed, epoch),
/// then samples without a loss up to a whole number of batches. Sample n of the run is in epoch n / samples_per_epoch.
class TaskTrainBatches final : public model::BatchSource {
 public:
  TaskTrainBatches(const tasks::TaskSet& set, std::uint64_t seed, Index global_batch)
      : set_(set),
        order_(data::SampleOrder::shuffled(seed, set.count())),
        samples_per_epoch_(round_up(set.count(), global_batch)) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override;

 private:
  const tasks::TaskSet& set_;
  data::SampleOrder order_;
  Index samples_per_epoch_;
};

/// HeldOutBatches of a task.
class TaskHeldOutBatches final : public model::BatchSource {
 public:
  explicit TaskHeldOutBatches(const tasks::TaskSet& set) : set_(set) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override;

 private:
  const tasks::TaskSet& set_;
};

/// Samples of conversations, in a new order in each epoch, which is a function of (seed, epoch).
class ChatTrainBatches final : public model::BatchSource {
 public:
  ChatTrainBatches(const data::ChatSamples& set, std::uint64_t seed)
      : set_(set), order_(data::SampleOrder::shuffled(seed, set.count())) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override;

 private:
  const data::ChatSamples& set_;
  data::SampleOrder order_;
};

/// HeldOutBatches of conversations.
class ChatHeldOutBatches final : public model::BatchSource {
 public:
  explicit ChatHeldOutBatches(const data::ChatSamples& set) : set_(set) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override;

 private:
  const data::ChatSamples& set_;
};

}  // namespace megalith::train
