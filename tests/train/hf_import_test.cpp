#include <gtest/gtest.h>

#include "megalith/convert/hf_model.h"

#include "tests/convert/hf_cases.h"
#include "tests/train/small_run.h"

// Steps from an imported model follow those of transformers and PyTorch's AdamW (tests/reference/make_hf_llama.py).
namespace megalith {
namespace {

/// The sizes of a folder's model in a recipe of 20 steps.
config::RunPlan training_plan(const model::ModelConfig& model, const nlohmann::json& training) {
  config::RunPlan described;
  described.model = model;
  const nlohmann::json& adam = training.at("adam");
  config::RunConfig c;
  c.source = "hf_import";
  c.model = described.as_config().model;
  c.model.padded_vocab_size.reset();
  c.train.steps = static_cast<Index>(training.at("steps").size());
  c.train.global_batch = training.at("batch").get<Index>();
  c.train.precision = "fp32";
  c.optimizer.lr = adam.at("lr").get<double>();
  c.optimizer.decay = "constant";
  c.optimizer.weight_decay = adam.at("weight_decay").get<double>();
  c.optimizer.beta1 = adam.at("beta1").get<double>();
  c.optimizer.beta2 = adam.at("beta2").get<double>();
  c.optimizer.eps = adam.at("eps").get<double>();
  c.optimizer.clip = adam.at("clip").get<double>();
  c.data.tokenizer = "byte";
  c.data.train = std::vector<std::string>{"none"};
  return config::resolve(c);
}

/// The stored batches, one a step.
class StoredBatches : public model::BatchSource {
 public:
  StoredBatches(const nlohmann::json& training, Index seq_len) : training_(training), seq_len_(seq_len) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    const auto& [tokens, targets] = batch;
    const auto samples = training_.at("batch").get<Index>();
    const nlohmann::json& step = training_.at("steps").at(static_cast<std::size_t>(first_sample / samples));
    const std::vector<std::int32_t> all = step.at("tokens"), next = step.at("targets");
    const auto begin = static_cast<std::ptrdiff_t>(first_sample % samples * seq_len_),
               size = static_cast<std::ptrdiff_t>(count * seq_len_);
    std::copy(all.begin() + begin, all.begin() + begin + size, tokens.begin());
    std::copy(next.begin() + begin, next.begin() + begin + size, targets.begin());
  }

 private:
  const nlohmann::json& training_;
  Index seq_len_;
};

TEST(HfImport, TwentyStepsInFp32FollowTransformers) {
  const testing::HfCase one("llama_untied");
  const auto fs = io::posix_fs();
  const convert::HfModel hf = convert::read_hf_config(*fs, one.folder);
  const nlohmann::json& training = one.expected.at("training");
  const config::RunPlan plan = training_plan(hf.config, training);
  ASSERT_EQ(plan.train.steps, 20);
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate(train::InitialValues::written_later);
    convert::import_hf(*fs, one.folder, hf, engine.stage().params());
    const StoredBatches batches(training, plan.model.seq_len);
    train::Progress progress;
    for (const nlohmann::json& step : training.at("steps")) {
      const train::StepReport result = engine.step(batches, progress, train::Stop::no);
      EXPECT_NEAR(result.loss, step.at("loss").get<double>(), 1e-4) << "step " << progress.step;
      EXPECT_NEAR(result.grad_norm, step.at("grad_norm").get<double>(), 1e-3) << "step " << progress.step;
      progress = {progress.step + 1, progress.samples + plan.train.global_batch};
    }
  });
}

}  // namespace
}  // namespace megalith
