#include "megalith/optim/param_gatherer.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/model/stage.h"
#include "megalith/ops/init.h"
#include "megalith/ops/step_end.h"
#include "megalith/pipeline/executor.h"

#include "tests/comm/late_gathers.h"

namespace megalith::model {
namespace {

class Counting final : public BatchSource {
 public:
  void fill(Index first_sample, Index, const Batch& batch) const override {
    const std::span<std::int32_t> tokens = batch.tokens, targets = batch.targets;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>((first_sample * 7 + static_cast<Index>(i)) % 50);
      targets[i] = (tokens[i] + 1) % 50;
    }
  }
};

struct Case {
  int pp = 1, chunks = 1;
  std::vector<Index> stage_layers = {};
  Index bucket_layers = 1;
  nn::LayerEdges captured = {};  ///< what of layers graphs hold
};

constexpr Index kHidden = 16, kFfn = 64;

StageConfig stage_config(const Case& c, Sharding sharding) {
  constexpr Index kLayerElements = 4 * kHidden * kHidden + 2 * kHidden * kFfn;
  return {.model = {.num_layers = 8,
                    .hidden_size = kHidden,
                    .num_heads = 4,
                    .ffn_hidden_size = kFfn,
                    .seq_len = 8,
                    .vocab_size = 50,
                    .padded_vocab_size = 128},
          .stage_layers = c.stage_layers,
          .chunks = c.chunks,
          .global_batch = 8,
          .policy = {DType::f64, DType::f64},
          .capture = {{.dense = c.captured}, BoundaryBuffers::messages},
          .sharding = sharding,
          .grad_bucket_bytes = c.bucket_layers * kLayerElements * size_of(DType::f64)};
}

struct Passed {
  double loss = 0;
  std::vector<double> own_grads;
};

void keep_own_shards(ParamBuffer& params) {
  const std::span<double> values = params.values().span<double>();
  const std::vector<double> whole(values.begin(), values.end());
  std::ranges::fill(values, std::numeric_limits<double>::quiet_NaN());
  for (const OwnRange& range : params.own_ranges())
    std::copy_n(whole.begin() + range.in_whole, range.count, values.begin() + range.in_whole);
}

/// Forward, backward and reduction of each of three steps: eager, from graphs once they are captured in the second.
/// With a sharded optimizer this rank holds its own shards only when a step begins, and NaN in place of the others.
std::vector<Passed> steps(const comm::Mesh& given, const Case& c, Sharding sharding) {
  comm::Mesh mesh = given;
  if (sharding == Sharding::optimizer) mesh.dp_cp = comm::Group(std::make_shared<comm::LateGathers>(given.dp_cp));
  Stage stage(stage_config(c, sharding), mesh);
  pipeline::Executor executor(stage.schedule(), mesh.pp, {stage.boundary_shape(), DType::f64});
  MemoryLedger ledger(Device::cpu);
  stage.allocate(ledger);
  executor.allocate(ledger);
  Exec ex;
  ParamBuffer& params = stage.params().dense();
  for (const Param& param : params.params())
    ops::initialise(ex, {param.spec.slice, param.spec.init, param.spec.init_std}, param.value, 3);
  GraphCache graphs;
  graphs.start("training", ledger.memory());
  if (c.captured.any()) stage.run_segments_from(graphs);
  ops::OptimizerState optimizer;
  const Counting source;
  std::vector<Passed> all;
  for (const auto state : {GraphCache::State::eager, GraphCache::State::capturing, GraphCache::State::replaying}) {
    if (sharding == Sharding::optimizer) keep_own_shards(params);
    graphs.set_state(state);
    stage.load(ex, nn::Mode::train, source, 0, {.loss_scale = 1}, Tensor(&optimizer, {sizeof optimizer}, DType::u8));
    stage.begin(ex);
    executor.run(ex, stage);
    stage.await_all_grads(ex);
    if (state == GraphCache::State::capturing) graphs.prepare(ex);
    Passed passed{.loss = *stage.loss_sums().data<double>(), .own_grads = {}};
    for (const Bucket& bucket : params.buckets()) {
      const Tensor own = params.own_shard(params.grads(), bucket);
      passed.own_grads.insert(passed.own_grads.end(), own.data<double>(), own.data<double>() + own.numel());
    }
    all.push_back(std::move(passed));
  }
  EXPECT_EQ(graphs.launches().count() > 0, c.captured.any() && !graphs.order().empty());
  return all;
}

class GatheredStep : public testing::TestWithParam<Case> {};

TEST_P(GatheredStep, WaitsForTheShardsOfOthersBeforeAnythingReadsThem) {
  const Case& c = GetParam();
  comm::run_ranks(2 * c.pp, [&](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, grid::resolve({.world_size = 2 * c.pp, .pp = c.pp}));
    const std::vector<Passed> whole = steps(mesh, c, Sharding::none), sharded = steps(mesh, c, Sharding::optimizer);
    for (std::size_t step = 0; step < whole.size(); ++step) {
      EXPECT_TRUE(std::isfinite(whole[step].loss)) << step;
      EXPECT_EQ(sharded[step].loss, whole[step].loss) << step;
      EXPECT_EQ(sharded[step].own_grads, whole[step].own_grads) << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, GatheredStep,
                         testing::Values(Case{}, Case{.bucket_layers = 3}, Case{.pp = 2},
                                         Case{.pp = 2, .chunks = 2, .bucket_layers = 3},
                                         Case{.pp = 2, .stage_layers = {0, 8}}, Case{.pp = 2, .stage_layers = {8, 0}},
                                         Case{.captured = {{0}, {2}}}, Case{.captured = {{0}, {1}}},
                                         Case{.captured = {{1}, {2}}},
                                         Case{.pp = 2, .chunks = 2, .captured = {{0}, {2}}}));

TEST(ParamGatherer, StartsABucketOnceAndRefusesLayersThatWereNotStarted) {
  constexpr int kRanks = 2;
  comm::run_ranks(kRanks, [](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, grid::resolve({.world_size = kRanks}));
    Stage stage(stage_config({.bucket_layers = 4}, Sharding::optimizer), mesh);
    MemoryLedger ledger(Device::cpu);
    stage.allocate(ledger);
    const auto calls = [&] { return mesh.dp.counters()[comm::Op::all_gather].calls; };
    Exec ex;
    optim::ParamGatherer gatherer(stage.params().dense(), mesh.dp);
    for (int round = 0; round < 2; ++round) {
      const Index before = calls();
      gatherer.begin();
      EXPECT_THROW(gatherer.layer_needed(ex, 5), InternalError);
      gatherer.start(ex, 5);
      EXPECT_EQ(calls(), before + 2);  // the matrices of four layers, the vectors of all
      gatherer.start(ex, 4);
      EXPECT_EQ(calls(), before + 2);
      gatherer.start(ex, 0);
      EXPECT_EQ(calls(), before + 3);
      EXPECT_THROW(gatherer.layer_needed(ex, kOutsideLayers), InternalError);
      gatherer.start(ex, kOutsideLayers);
      for (Index layer = kOutsideLayers; layer < 8; ++layer) EXPECT_NO_THROW(gatherer.layer_needed(ex, layer));
      EXPECT_EQ(calls(), before + static_cast<Index>(stage.params().dense().buckets().size()));
    }
  });
}

}  // namespace
}  // namespace megalith::model
