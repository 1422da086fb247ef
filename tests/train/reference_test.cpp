#include "tests/support/reference.h"

#include <gtest/gtest.h>

#include "tests/train/small_run.h"

// A whole small model against PyTorch in f64: loss, every gradient, five AdamW steps
// (tests/reference/make_reference.py).
namespace megalith {
namespace {

config::RunPlan reference_plan(const testing::Reference& reference) {
  const nlohmann::json& adam = reference.json().at("adam");
  config::RunConfig c;
  c.source = "reference";
  c.model.num_layers = reference.size("num_layers");
  c.model.hidden_size = reference.size("hidden_size");
  c.model.num_heads = reference.size("num_heads");
  c.model.ffn_hidden_size = reference.size("ffn_hidden_size");
  c.model.seq_len = reference.size("seq_len");
  c.model.vocab_size = reference.size("vocab_size");
  c.model.dropout = 0;
  c.train.steps = 5;
  c.train.global_batch = reference.size("batch");
  c.train.precision = "fp64";
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
  explicit StoredBatches(const testing::Reference& reference) : reference_(reference) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    const auto& [tokens, targets] = batch;
    const Index samples = reference_.size("batch"), length = reference_.size("seq_len");
    const nlohmann::json& step = reference_.json().at("steps").at(static_cast<std::size_t>(first_sample / samples));
    const std::vector<std::int32_t> all = step.at("tokens"), next = step.at("targets");
    const auto begin = static_cast<std::ptrdiff_t>(first_sample % samples * length),
               size = static_cast<std::ptrdiff_t>(count * length);
    std::copy(all.begin() + begin, all.begin() + begin + size, tokens.begin());
    std::copy(next.begin() + begin, next.begin() + begin + size, targets.begin());
  }

 private:
  const testing::Reference& reference_;
};

TEST(Reference, ModelGradientsAndFiveAdamWStepsEqualPyTorch) {
  const testing::Reference reference;
  const config::RunPlan plan = reference_plan(reference);
  const nlohmann::json& steps = reference.json().at("steps");
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    reference.load_weights(engine.stage().params().dense());
    train::Progress progress;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const train::StepReport result = engine.step(StoredBatches(reference), progress, train::Stop::no);
      EXPECT_NEAR(result.loss, steps[i].at("loss").get<double>(), 1e-12) << "step " << i;
      EXPECT_NEAR(result.grad_norm, steps[i].at("grad_norm").get<double>(), 1e-11) << "step " << i;
      if (i == 0) {
        testing::Gathered gradients;
        testing::put_params(gradients, engine.stage(), true);
        for (const auto& [name, want] : steps[0].at("gradients").items()) {
          EXPECT_LT(testing::relative_error(gradients.at(name), want), 1e-12) << name;
        }
      }
      progress = {static_cast<Index>(i) + 1, progress.samples + plan.train.global_batch};
    }
    testing::Gathered parameters;
    testing::put_params(parameters, engine.stage(), false);
    for (const auto& [name, want] : reference.json().at("final").items()) {
      // The K bias has no true gradient: AdamW turns its rounding noise into steps, so it is not compared.
      std::vector<double> got = parameters.at(name), expected = want;
      if (name.ends_with("qkv.bias")) {
        const auto d = static_cast<std::size_t>(plan.model.hidden_size / plan.model.num_heads);
        for (std::size_t j = 0; j < got.size(); ++j) {
          if (j / d % 3 == 1) got[j] = expected[j] = 0;
        }
      }
      EXPECT_LT(testing::relative_error(got, expected), 1e-10) << name;
    }
  });
}

}  // namespace
}  // namespace megalith
