#include <gtest/gtest.h>

#include "tests/train/graph_ways.h"
#include "tests/train/saved_run.h"

// train.precision = "fp8" beside what else a run may have: chunks, sharded gradients, moments in bf16, Muon. Eager,
// from every kind of graph, and across a checkpoint it has the same bits.
namespace megalith {
namespace {

using support::Grid;

struct Fp8Run {
  const char* name;
  Grid grid;
  void (*set)(config::RunConfig&);
};
void PrintTo(const Fp8Run& run, std::ostream* out) { *out << run.name; }

const Fp8Run kFp8Runs[] = {
    {"chunks", {.pp = 2, .chunks = 2}, [](config::RunConfig& c) { c.model.num_layers = 4; }},
    {"sharded_gradients",
     {.dp = 2, .sharding = Sharding::optimizer, .shard = ShardedState::gradients},
     [](config::RunConfig&) {}},
    {"moments", {.dp = 2, .sharding = Sharding::optimizer}, [](config::RunConfig& c) { c.optimizer.moments = "bf16"; }},
    {"muon", {.tp = 2}, [](config::RunConfig& c) { c.optimizer.type = "muon"; }}};

class Fp8Resume : public ::testing::TestWithParam<Fp8Run> {
 protected:
  static constexpr Index kSteps = 10, kSavedAt = 4;

  static config::RunPlan plan() {
    config::RunConfig c = support::small_config(GetParam().grid, "fp8", kSteps);
    c.model.num_layers = 2;
    c.model.hidden_size = c.model.ffn_hidden_size = 256;
    c.model.seq_len = 32;
    c.train.micro_batch = 4;  // a block of 128 tokens
    c.fp8.weight_grad = true;
    GetParam().set(c);
    return config::resolve(c);
  }
};
INSTANTIATE_TEST_SUITE_P(All, Fp8Resume, ::testing::ValuesIn(kFp8Runs),
                         [](const auto& test) { return test.param.name; });

TEST_P(Fp8Resume, GoesOnWithTheBitsOfEagerStepsInEveryWay) {
  const config::RunPlan eager = plan();
  const support::SavedRun whole = support::trained_in_parts(eager, {kSteps});
  ASSERT_EQ(whole.evaluated.size(), 1u);
  support::expect_same(support::trained_in_parts(eager, {kSavedAt, kSteps}), whole);
  for (const support::GraphWay& way : support::kGraphWays) {
    SCOPED_TRACE(way.name);
    support::expect_same(support::trained_in_parts(support::with_graphs(eager, way, 2), {kSavedAt, kSteps}), whole);
  }
}

}  // namespace
}  // namespace megalith
