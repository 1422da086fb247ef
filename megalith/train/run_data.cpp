#include "megalith/train/run_data.h"

#include "megalith/train/run_batches.h"

namespace megalith::train {
namespace {

class TextData final : public RunData {
 public:
  TextData(data::DataSets sets, std::uint64_t seed) : sets_(std::move(sets)), seed_(seed) {}
  Facts train() const override {
    const data::TrainingSet& set = sets_.train;
    return {set.name(), set.num_tokens(), set.count(), set.fingerprint()};
  }
  Facts valid() const override {
    if (!sets_.valid) return {};
    const data::TokenSource& source = sets_.valid->source();
    return {source.name(), source.num_tokens(), sets_.valid->count(), source.fingerprint()};
  }
  std::unique_ptr<model::BatchSource> train_batches() const override {
    return std::make_unique<TrainBatches>(sets_.train, seed_);
  }
  std::unique_ptr<model::BatchSource> valid_batches() const override {
    return sets_.valid ? std::make_unique<HeldOutBatches>(*sets_.valid) : nullptr;
  }
  const data::DataNotes& notes() const override { return sets_.notes; }

 private:
  data::DataSets sets_;
  std::uint64_t seed_;
};

class BertData final : public RunData {
 public:
  explicit BertData(data::BertDataSets sets) : sets_(std::move(sets)) {}
  Facts train() const override {
    const data::BertTrainingSet& set = sets_.train;
    return {set.name(), set.num_tokens(), set.count(), set.fingerprint()};
  }
  Facts valid() const override {
    if (!sets_.valid) return {};
    const data::SentenceSource& source = sets_.valid->source();
    return {source.name(), source.num_tokens(), sets_.valid->count(), source.fingerprint()};
  }
  std::unique_ptr<model::BatchSource> train_batches() const override {
    return std::make_unique<BertTrainBatches>(sets_.train);
  }
  std::unique_ptr<model::BatchSource> valid_batches() const override {
    return sets_.valid ? std::make_unique<BertHeldOutBatches>(*sets_.valid) : nullptr;
  }
  const data::DataNotes& notes() const override { return sets_.notes; }

 private:
  data::BertDataSets sets_;
};

}  // namespace

std::unique_ptr<const RunData> open_run_data(io::Fs& fs, const config::RunPlan& plan,
                                             const tokenizer::Tokenizer& tokenizer, int threads) {
  if (plan.model.is_bert()) {
    return std::make_unique<BertData>(
        data::open_bert_data(fs, plan.data, tokenizer, {plan.model.bert, plan.train.seed}, threads));
  }
  return std::make_unique<TextData>(data::open_data(fs, plan.data, tokenizer, plan.model.seq_len, threads),
                                    plan.train.seed);
}

}  // namespace megalith::train
