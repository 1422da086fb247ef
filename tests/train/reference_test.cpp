#include "tests/support/reference.h"

#include <gtest/gtest.h>

#include "tests/train/small_run.h"
#include "tests/train/stored_steps.h"

// A whole small model against PyTorch in f64: loss, every gradient, five AdamW steps
// (tests/reference/make_reference.py).
namespace megalith {
namespace {

config::RunPlan reference_plan(const support::Reference& reference) {
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
  support::set_stored_training(c, reference.json().at("adam"));
  return config::resolve(c);
}

TEST(Reference, ModelGradientsAndFiveAdamWStepsEqualPyTorch) {
  const support::Reference reference;
  const config::RunPlan plan = reference_plan(reference);
  const nlohmann::json& steps = reference.json().at("steps");
  const support::StoredBatches batches(steps, plan.train.global_batch, plan.model.seq_len);
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    reference.load_weights(engine.stage().params().dense());
    train::Progress progress;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const train::StepReport result = engine.step(batches, progress, train::Stop::no);
      EXPECT_NEAR(result.loss, steps[i].at("loss").get<double>(), 1e-12) << "step " << i;
      EXPECT_NEAR(result.grad_norm, steps[i].at("grad_norm").get<double>(), 1e-11) << "step " << i;
      if (i == 0) {
        support::Gathered gradients;
        support::put_params(gradients, engine.stage(), true);
        for (const auto& [name, want] : steps[0].at("gradients").items()) {
          EXPECT_LT(support::relative_error(gradients.at(name), want), 1e-12) << name;
        }
      }
      progress = {static_cast<Index>(i) + 1, progress.samples + plan.train.global_batch};
    }
    support::Gathered parameters;
    support::put_params(parameters, engine.stage(), false);
    for (const auto& [name, want] : reference.json().at("final").items()) {
      // The K bias has no true gradient: AdamW turns its rounding noise into steps, so it is not compared.
      std::vector<double> got = parameters.at(name), expected = want;
      if (name.ends_with("qkv.bias")) {
        const auto d = static_cast<std::size_t>(plan.model.hidden_size / plan.model.num_heads);
        for (std::size_t j = 0; j < got.size(); ++j) {
          if (j / d % 3 == 1) got[j] = expected[j] = 0;
        }
      }
      EXPECT_LT(support::relative_error(got, expected), 1e-10) << name;
    }
  });
}

}  // namespace
}  // namespace megalith
