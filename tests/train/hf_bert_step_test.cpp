#include <gtest/gtest.h>

#include "tests/convert/hf_cases.h"
#include "tests/convert/hf_values.h"
#include "tests/train/small_run.h"
#include "tests/train/stored_steps.h"

// The first step of a training that begins with an imported BERT: both losses and the norm of their gradient are those
// of transformers, on any grid (tests/reference/make_hf_bert.py).
namespace megalith {
namespace {

/// The stored samples of a folder, padded, as one global batch.
class StoredBertBatch final : public model::BatchSource {
 public:
  explicit StoredBertBatch(const nlohmann::json& samples) : samples_(samples) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    const auto number = static_cast<std::size_t>(count);
    const std::size_t length = batch.tokens.size() / number, masked = batch.targets.size() / number;
    std::vector<std::int32_t> places(batch.targets.size(), -1);
    std::ranges::fill(batch.targets, model::kNoTarget);
    for (std::size_t i = 0; i < number; ++i) {
      const nlohmann::json& sample = samples_.at((static_cast<std::size_t>(first_sample) + i) % samples_.size());
      const std::vector<std::int32_t> ids = sample.at("ids"), types = sample.at("types"), rows = sample.at("rows"),
                                      targets = sample.at("targets");
      std::ranges::fill(batch.tokens.subspan(i * length, length), 0);
      std::ranges::copy(ids, batch.tokens.subspan(i * length).begin());
      if (!batch.types.empty()) {
        std::ranges::fill(batch.types.subspan(i * length, length), 0);
        std::ranges::copy(types, batch.types.subspan(i * length).begin());
      }
      if (!batch.lengths.empty()) batch.lengths[i] = static_cast<std::int32_t>(ids.size());
      if (!batch.labels.empty()) batch.labels[i] = sample.at("label");
      std::ranges::copy(rows, places.begin() + static_cast<std::ptrdiff_t>(i * masked));
      if (!batch.targets.empty()) std::ranges::copy(targets, batch.targets.subspan(i * masked).begin());
    }
    if (!batch.rows.empty()) model::fill_rows(places, batch);
  }

 private:
  const nlohmann::json& samples_;
};

config::RunPlan bert_step_plan(const model::ModelConfig& model, const support::Grid& grid,
                               const std::string& precision) {
  config::RunPlan described;
  described.model = model;
  config::RunConfig c;
  c.source = "hf_bert_step";
  c.model = described.as_config().model;
  c.model.padded_vocab_size.reset();
  c.model.dropout = c.model.attention_dropout = c.model.embedding_dropout = 0;
  c.bert.mask_fraction = 0.25;  // 3 places a sample
  c.parallel.tp = grid.tp;
  c.parallel.pp = grid.pp;
  c.train.steps = 1;
  c.train.global_batch = 3;
  c.train.micro_batch = 1;
  c.train.precision = precision;
  c.optimizer.lr = 1e-3;
  c.data.tokenizer = "byte";
  c.data.train = std::vector<std::string>{"none"};
  return config::resolve(c);
}

class HfBertStep : public ::testing::TestWithParam<const char*> {};

TEST_P(HfBertStep, LossesAndGradientNormAreThoseOfTransformers) {
  const support::HfCase one(GetParam());
  const auto fs = io::posix_fs();
  const convert::HfModel hf = convert::read_hf_config(*fs, one.folder);
  const nlohmann::json& numbers = one.expected.at("numbers");
  const std::tuple<support::Grid, const char*, double> cases[] = {
      {{}, "fp64", 1e-9}, {{}, "fp32", 1e-4}, {{.tp = 2, .pp = 2}, "fp64", 1e-9}};
  for (const auto& [grid, precision, tolerance] : cases) {
    SCOPED_TRACE(grid.name() + precision);
    const config::RunPlan plan = bert_step_plan(hf.config, grid, precision);
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate(train::InitialValues::written_later);
      convert::import_hf(*fs, one.folder, hf, engine.stage().params());
      const train::StepReport step =
          engine.step(StoredBertBatch(one.expected.at("samples")), train::Progress{}, train::Stop::no);
      EXPECT_EQ(step.losses[0].count, 9);
      EXPECT_NEAR(step.losses[0].mean, numbers.at("mlm_loss").get<double>(), tolerance);
      EXPECT_NEAR(step.losses[1].mean, numbers.at("order_loss").get<double>(), tolerance);
      EXPECT_NEAR(step.grad_norm, numbers.at("grad_norm").get<double>(), 10 * tolerance);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, HfBertStep, ::testing::Values("bert", "bert_tanh", "megatron_bert", "megatron_bert_tanh"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace megalith
