#include <gtest/gtest.h>

#include "tests/convert/hf_cases.h"
#include "tests/convert/hf_values.h"
#include "tests/train/small_run.h"
#include "tests/train/stored_steps.h"

// Steps from an imported model follow those of transformers and PyTorch's AdamW (tests/reference/make_hf_models.py).
namespace megalith {
namespace {

bool has_load_loss(const nlohmann::json& training) { return training.at("steps")[0].contains("aux_loss"); }

/// The sizes of a folder's model in a recipe of 20 steps.
config::RunPlan training_plan(const model::ModelConfig& model, const nlohmann::json& training) {
  config::RunPlan described;
  described.model = model;
  config::RunConfig c;
  c.source = "hf_import";
  c.model = described.as_config().model;
  c.model.padded_vocab_size.reset();
  c.moe = described.as_config().moe;
  // The library adds its load loss only where router logits are asked for, and does not divide it by top_k.
  if (model.moe.has_experts())
    c.moe.aux_loss = has_load_loss(training) ? model.moe.aux_loss * static_cast<double>(model.moe.top_k) : 0;
  c.train.micro_batch = training.at("batch").get<Index>();  // one load loss a step
  c.train.steps = static_cast<Index>(training.at("steps").size());
  c.train.global_batch = training.at("batch").get<Index>();
  c.train.precision = "fp32";
  support::set_stored_training(c, training.at("adam"));
  return config::resolve(c);
}

class HfImport : public ::testing::TestWithParam<const char*> {};

TEST_P(HfImport, TwentyStepsInFp32FollowTransformers) {
  const support::HfCase one(GetParam());
  const auto fs = io::posix_fs();
  const convert::HfModel hf = convert::read_hf_config(*fs, one.folder);
  const nlohmann::json& training = one.expected.at("training");
  const config::RunPlan plan = training_plan(hf.config, training);
  ASSERT_EQ(plan.train.steps, 20);
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate(train::InitialValues::written_later);
    convert::import_hf(*fs, one.folder, hf, engine.stage().params());
    const support::StoredBatches batches(training.at("steps"), plan.train.global_batch, plan.model.seq_len);
    train::Progress progress;
    for (const nlohmann::json& step : training.at("steps")) {
      const train::StepReport result = engine.step(batches, progress, train::Stop::no);
      EXPECT_NEAR(result.loss, step.at("loss").get<double>(), 1e-4) << "step " << progress.step;
      EXPECT_NEAR(result.grad_norm, step.at("grad_norm").get<double>(), 1e-3) << "step " << progress.step;
      EXPECT_NEAR(result.moe.aux_loss, step.value("aux_loss", 0.0), 1e-4) << "step " << progress.step;
      progress = {progress.step + 1, progress.samples + plan.train.global_batch};
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, HfImport,
                         ::testing::Values("llama_untied", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe",
                                           "qwen3_moe_loss"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace megalith
