#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/train/moe_run.h"
#include "tests/train/recompute_modes.h"

// Models with experts on every grid: the grid promise (docs/numerics.md) for both kinds of layers.
namespace megalith {
namespace {

using support::all_moe_grids;
using support::KeptDecisions;
using support::moe_config;
using support::moe_models;
using support::MoeGrid;
using support::MoeModel;
using support::relative_error;
using support::RunRecord;
using Use = nn::RouterDecisions::Use;

/// A run on one rank, and the decisions of its routers.
struct Reference {
  config::RunPlan plan;
  RunRecord record;
  std::unique_ptr<KeptDecisions> decisions;
};

const Reference& moe_on_one_rank(const MoeModel& model, const std::string& precision = "fp64") {
  static std::map<std::string, Reference> all;
  const auto [place, is_new] = all.try_emplace(model.name + precision);
  Reference& reference = place->second;
  if (is_new) {
    reference.plan = config::resolve(moe_config({}, model, precision));
    reference.decisions = std::make_unique<KeptDecisions>(reference.plan, Use::record);
    support::run_moe(reference.plan, reference.record, reference.decisions.get(), model.text);
  }
  return reference;
}

const MoeModel& model_named(std::string_view name) {
  return *std::ranges::find(moe_models(), name, [](const MoeModel& model) { return std::string_view(model.name); });
}

class MoeGridPromise : public ::testing::TestWithParam<std::tuple<MoeGrid, MoeModel>> {};

TEST_P(MoeGridPromise, Fp64AgreesWithOneRank) {
  const auto& [grid, model] = GetParam();
  const config::RunPlan plan = config::resolve(moe_config(grid, model, "fp64"));
  KeptDecisions decisions(plan, Use::record);
  RunRecord got;
  support::run_moe(plan, got, &decisions, model.text);
  const Reference& want = moe_on_one_rank(model);
  EXPECT_TRUE(decisions.all() == want.decisions->all()) << "not one decision may differ";
  support::expect_fp64_agrees(got, want.record);
  support::expect_gradients_agree({.sharding = grid.sharding}, got, want.record, 1e-12);
}

// Grid by grid: every third test, as scripts/test runs them, has each grid and each model.
INSTANTIATE_TEST_SUITE_P(All, MoeGridPromise,
                         ::testing::Combine(::testing::ValuesIn(all_moe_grids()), ::testing::ValuesIn(moe_models())),
                         [](const auto& test) {
                           return std::string(std::get<1>(test.param).name) + "_" + std::get<0>(test.param).name();
                         });

/// Grids that take each way of bringing rows into dispatch.
const std::vector<MoeGrid>& few_grids() {
  using enum nn::SequenceParallel;
  static const std::vector<MoeGrid> grids = {
      {4, 1, 1, 2, 1}, {4, 2, 1, 2, 2}, {4, 2, 1, 2, 1}, {4, 2, 1, 1, 2, 1, on}, {8, 2, 2, 2, 2, 2, on}};
  return grids;
}

TEST(Moe, Fp32AgreesWithOneRankUnderItsDecisions) {
  for (const char* name : {"Top2", "LossOfSequences", "SigmoidWithBias"}) {
    const MoeModel& model = model_named(name);
    const Reference& want = moe_on_one_rank(model, "fp32");
    for (const MoeGrid& grid : few_grids()) {
      SCOPED_TRACE(std::string(name) + " " + grid.name());
      RunRecord got;
      support::run_replayed(config::resolve(moe_config(grid, model, "fp32")), *want.decisions, got);
      EXPECT_LT(relative_error({got.losses[0]}, {want.record.losses[0]}), 1e-6);
      EXPECT_LT(relative_error({got.norms[0]}, {want.record.norms[0]}), 1e-6);
      EXPECT_LT(relative_error(got.losses, want.record.losses), 1e-5);
      support::expect_gradients_agree({}, got, want.record, 1e-5);
    }
  }
}

// The bands of dense models (mixed_precision_test.cpp).
TEST(Moe, Bf16AgreesWithFp32UnderItsDecisions) {
  for (const char* name : {"Top2", "Drop"}) {
    const MoeModel& model = model_named(name);
    const Reference& want = moe_on_one_rank(model, "fp32");
    for (const MoeGrid& grid : few_grids()) {
      SCOPED_TRACE(std::string(name) + " " + grid.name());
      RunRecord got;
      support::run_replayed(config::resolve(moe_config(grid, model, "bf16")), *want.decisions, got);
      EXPECT_LE(relative_error({got.losses[0]}, {want.record.losses[0]}), 1e-4);
      EXPECT_LE(relative_error(got.losses, want.record.losses), 5e-4);
      EXPECT_LE(relative_error(got.norms, want.record.norms), 5e-3);
      for (const auto& [parameter, values] : want.record.gradients.tensors())
        EXPECT_LE(relative_error(got.gradients.at(parameter), values), 4e-2) << parameter;
    }
  }
}

// Sequences and whole steps are the same however many samples a microbatch has. A microbatch is not.
TEST(Moe, LoadLossesOfSequencesAndOfStepsDoNotDependOnTheMicrobatch) {
  for (const auto& [name, depends] :
       {std::pair{"LossOfSequences", false}, std::pair{"GlobalLoss", false}, std::pair{"LossOfMicrobatches", true}}) {
    SCOPED_TRACE(name);
    const RunRecord& want = moe_on_one_rank(model_named(name)).record;
    for (const Index micro_batch : {1, 4, 8}) {
      config::RunConfig recipe = moe_config({}, model_named(name), "fp64");
      recipe.train.micro_batch = micro_batch;
      RunRecord got;
      support::run_moe(config::resolve(recipe), got);
      EXPECT_EQ(relative_error(got.losses, want.losses) > 1e-12, depends) << micro_batch;
      EXPECT_EQ(relative_error(got.norms, want.norms) > 1e-11, depends) << micro_batch;
    }
  }
}

TEST(Moe, NoMicrobatchChangesWhatIsDroppedOfIndentedText) {
  const MoeModel& model = model_named("DropIndentedText");
  const Reference& want = moe_on_one_rank(model);
  for (const Index micro_batch : {1, 4, 8}) {
    config::RunConfig recipe = moe_config({}, model, "fp64");
    recipe.train.micro_batch = micro_batch;
    const config::RunPlan plan = config::resolve(recipe);
    KeptDecisions decisions(plan, Use::record);
    RunRecord got;
    support::run_moe(plan, got, &decisions, model.text);
    EXPECT_TRUE(decisions.all() == want.decisions->all()) << micro_batch;
    EXPECT_LT(relative_error(got.losses, want.record.losses), 1e-12) << micro_batch;
    EXPECT_LT(relative_error(got.norms, want.record.norms), 1e-12) << micro_batch;
  }
}

/// Whether an expert has kept the first of its pairs in each block of `run` tokens, K = 2.
bool keeps_the_first(const std::vector<std::int32_t>& decisions, std::size_t run) {
  for (std::size_t first = 0; first < decisions.size(); first += 2 * run) {
    std::array<bool, 8> has_dropped{};
    for (std::size_t i = first; i < first + 2 * run; ++i) {
      const std::int32_t decision = decisions[i];
      if (decision < 0)
        has_dropped.at(static_cast<std::size_t>(~decision)) = true;
      else if (has_dropped.at(static_cast<std::size_t>(decision)))
        return false;
    }
  }
  return true;
}

TEST(Moe, DropByNamesWhichPairsStay) {
  EXPECT_TRUE(keeps_the_first(moe_on_one_rank(model_named("Pad")).decisions->all(), 4)) << "by position";
  EXPECT_FALSE(keeps_the_first(moe_on_one_rank(model_named("Drop")).decisions->all(), 2)) << "by probability";
}

TEST(Moe, ReplayedDecisionsGiveTheBitsOfTheRun) {
  const Reference& want = moe_on_one_rank(model_named("LossOfMicrobatches"));
  RunRecord got;
  support::run_replayed(want.plan, *want.decisions, got);
  EXPECT_EQ(got.losses, want.record.losses);
  EXPECT_EQ(got.parameters.tensors(), want.record.parameters.tensors());
}

// Capacity is a rule of training steps: a held-out loss of the same parameters does not know it.
TEST(Moe, HeldOutLossesKnowNoCapacity) {
  struct Losses {
    double held_out, of_a_step;
  };
  const auto losses = [](const MoeGrid& grid, const std::string& capacity) {
    config::RunConfig c = moe_config(grid, model_named("Top2"), "fp64", 0);
    c.moe.capacity = capacity;
    if (capacity != "none") c.moe.capacity_factor = 0.5, c.moe.capacity_run = 4;
    RunRecord no_step, one_step;
    support::run_moe(config::resolve(c), no_step);
    c.train.steps = 1;
    support::run_moe(config::resolve(c), one_step);
    return Losses{no_step.evaluated, one_step.losses.front()};
  };
  for (const MoeGrid& grid : {MoeGrid{}, MoeGrid{.ranks = 2, .ep = 2}}) {
    const Losses want = losses(grid, "none");
    for (const char* const capacity : {"drop", "pad"}) {
      SCOPED_TRACE(grid.name() + ", " + capacity);
      const Losses got = losses(grid, capacity);
      EXPECT_EQ(got.held_out, want.held_out);
      EXPECT_GT(std::abs(got.of_a_step - want.of_a_step), 1e-6) << "pairs are dropped";
    }
  }
}

TEST(Moe, LearnsOnOneRank) {
  for (const MoeModel& model : moe_models()) {
    SCOPED_TRACE(model.name);
    const RunRecord& run = moe_on_one_rank(model).record;
    EXPECT_LT(run.losses.back(), run.losses.front() - 0.1);
    EXPECT_EQ(run.parameters.at("layers.1.moe.experts.down.weight").size(), 8u * 20 * 12);
    EXPECT_EQ(run.parameters.at("layers.1.moe.router.weight").size(), 8u * 20);
  }
}

TEST(Moe, GraphsOfAttentionAndDenseLayersGiveTheBitsOfEagerRuns) {
  for (const MoeGrid& grid : {MoeGrid{}, MoeGrid{8, 2, 2, 2, 2}}) {
    config::RunConfig c = moe_config(grid, model_named("DenseAndExperts"), "fp32", 8);
    RunRecord want, got;
    support::run_moe(config::resolve(c), want);
    c.graphs.mode = "layers";
    c.graphs.scopes = std::vector<std::string>{"attn", "mlp"};
    c.graphs.warmup_steps = 2;
    support::run_moe(config::resolve(c), got);
    EXPECT_EQ(got.losses, want.losses);
    EXPECT_EQ(got.parameters.tensors(), want.parameters.tensors());
  }
}

/// The reports of `steps` steps, the same on every rank.
std::vector<train::StepReport> reports_of(const config::RunPlan& plan, Index steps) {
  std::vector<train::StepReport> reports;
  comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const support::HashedBatches source(plan.model.vocab_size);
    for (Index step = 0; step < steps; ++step) {
      const train::StepReport report = engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
      if (world.rank() == world.size() - 1) reports.push_back(report);
    }
  });
  return reports;
}

/// The members `moe` of metrics.
std::vector<std::string> moe_json(const std::vector<train::StepReport>& reports) {
  std::vector<std::string> lines;
  for (const train::StepReport& report : reports) lines.push_back(report.moe.json());
  return lines;
}

TEST(Moe, RecomputationChangesNoBits) {
  for (const char* name : {"SharedWithGate", "LossOfSequences", "Drop"}) {
    for (const MoeGrid& grid : {MoeGrid{}, MoeGrid{8, 2, 2, 2, 2, 2, nn::SequenceParallel::on}}) {
      SCOPED_TRACE(std::string(name) + " " + grid.name());
      const config::RunPlan plan = config::resolve(moe_config(grid, model_named(name), "fp32", 6));
      RunRecord want;
      KeptDecisions first(plan, Use::record);
      support::run_moe(plan, want, &first);
      const std::vector<std::string> reported = moe_json(reports_of(plan, 2));
      std::vector<nn::RecomputeConfig> ways = {{.mode = nn::RecomputeMode::full}};
      for (const auto module : {nn::RecomputeModule::gelu, nn::RecomputeModule::norms, nn::RecomputeModule::mlp}) {
        ways.push_back({.mode = nn::RecomputeMode::selective});
        ways.back().add(module);
      }
      for (const nn::RecomputeConfig& way : ways) {
        config::RunPlan again = plan;
        again.recompute = way;
        RunRecord got;
        KeptDecisions second(plan, Use::record);
        support::run_moe(again, got, &second);
        EXPECT_EQ(got.losses, want.losses);
        EXPECT_EQ(got.parameters.tensors(), want.parameters.tensors());
        EXPECT_TRUE(second.all() == first.all());
        EXPECT_EQ(moe_json(reports_of(again, 2)), reported) << "what is computed again is not counted again";
      }
    }
  }
}

TEST(Moe, ReportsTheLoadOfEveryLayerOnEveryGrid) {
  for (const char* name : {"LossOfSequences", "Drop", "SigmoidWithBias"}) {
    const auto want = reports_of(config::resolve(moe_config({}, model_named(name), "fp64")), 3);
    for (const MoeGrid& grid : few_grids()) {
      SCOPED_TRACE(std::string(name) + " " + grid.name());
      const config::RunPlan plan = config::resolve(moe_config(grid, model_named(name), "fp64"));
      const auto got = reports_of(plan, 3);
      for (std::size_t step = 0; step < got.size(); ++step) {
        const train::MoeReport &moe = got[step].moe, &of_one = want[step].moe;
        ASSERT_EQ(moe.layers.size(), 4u);
        EXPECT_LT(relative_error({moe.aux_loss, moe.z_loss}, {of_one.aux_loss, of_one.z_loss}), 1e-12);
        for (std::size_t i = 0; i < moe.layers.size(); ++i) {
          EXPECT_EQ(moe.layers[i].choices, 16 * 16 * 2) << "every pair of a token and an expert, once";
          EXPECT_EQ(moe.layers[i].hottest, of_one.layers[i].hottest);
          EXPECT_EQ(moe.layers[i].max_over_mean, of_one.layers[i].max_over_mean);
          EXPECT_EQ(moe.layers[i].dropped, of_one.layers[i].dropped);
          EXPECT_EQ(moe.layers[i].bias_max, of_one.layers[i].bias_max);
        }
      }
      EXPECT_EQ(got[0].moe.layers[0].dropped > 0, std::string_view(name) == "Drop");
      EXPECT_EQ(got[2].moe.layers[0].bias_max > 0.015, std::string_view(name) == "SigmoidWithBias");
    }
  }
}

TEST(Moe, ASkewedRouterIsTheSameOnEveryGrid) {
  const auto skewed = [](double skew, const MoeGrid& grid) {
    config::RunConfig c = moe_config(grid, model_named("LossOfMicrobatches"), "fp64");
    c.moe.router_skew = skew;
    return config::resolve(c);
  };
  const auto load = [](const config::RunPlan& plan) { return reports_of(plan, 1).at(0).moe.layers.at(0); };
  const train::ExpertLoad none = load(skewed(0, {})), some = load(skewed(0.5, {})), all = load(skewed(1000, {}));
  EXPECT_LT(none.max_over_mean, some.max_over_mean);
  EXPECT_EQ(some.hottest.at(0).first, 0);
  EXPECT_EQ(all.max_over_mean, 4) << "experts 0 and 1 of 8 are those of all tokens";
  EXPECT_EQ(all.empty, 6);
  RunRecord want;
  support::run_moe(skewed(0.5, {}), want);
  EXPECT_NE(want.losses, moe_on_one_rank(model_named("LossOfMicrobatches")).record.losses);
  for (const MoeGrid& grid : few_grids()) {
    SCOPED_TRACE(grid.name());
    RunRecord got;
    support::run_moe(skewed(0.5, grid), got);
    support::expect_fp64_agrees(got, want);
    support::expect_gradients_agree({.sharding = grid.sharding}, got, want, 1e-12);
  }
}

TEST(Moe, ForcedBalanceIsEven) {
  config::RunConfig c = moe_config({4, 2, 1, 2, 1}, model_named("Top2"), "fp32");
  c.moe.force_balance = true;
  for (const train::StepReport& report : reports_of(config::resolve(c), 2)) {
    for (const train::ExpertLoad& load : report.moe.layers) {
      EXPECT_EQ(load.max_over_mean, 1);
      EXPECT_EQ(load.empty, 0);
    }
  }
}

// The bias is updated from the counts of the whole global batch.
TEST(Moe, TheExpertBiasMovesByItsRateTowardsTheMean) {
  const config::RunPlan plan = config::resolve(moe_config({4, 1, 1, 2, 1}, model_named("SigmoidWithBias"), "fp64"));
  comm::run_ranks(4, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const support::HashedBatches source(plan.model.vocab_size);
    engine.step(source, {}, train::Stop::no);
    const Param& bias = engine.stage().params().at("layers.0.moe.router.bias");
    const nn::MoeTotals& totals = engine.stage().moe_totals();
    const auto* counts = totals.choices(0).data<std::int64_t>();
    const double mean = static_cast<double>(std::accumulate(counts, counts + 8, std::int64_t{0})) / 8;
    for (int e = 0; e < 8; ++e) {
      const double lack = mean - static_cast<double>(counts[e]);
      EXPECT_EQ(bias.value.data<double>()[e], lack == 0 ? 0.0 : std::copysign(0.01, lack));
    }
  });
}

TEST(Moe, ANanInOneExpertEndsTheStepEverywhereAndNamesTheRank) {
  for (const MoeGrid& grid : {MoeGrid{4, 1, 1, 4, 1}, MoeGrid{4, 2, 1, 2, 2}}) {
    const config::RunPlan plan = config::resolve(moe_config(grid, model_named("Top2"), "fp32"));
    std::mutex guard;
    std::vector<std::string> errors;
    comm::run_ranks(4, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      if (world.rank() == 2)
        engine.stage().params().at("layers.1.moe.experts.up.weight").value.data<float>()[5] = std::nanf("");
      const support::HashedBatches source(plan.model.vocab_size);
      const auto values = [&] {
        const std::span<float> all = engine.stage().params().dense().values().span<float>();
        return std::vector<float>(all.begin(), all.end());
      };
      const std::vector<float> before = values();
      try {
        engine.step(source, {}, train::Stop::no);
      } catch (const NonFiniteError& error) {
        const std::scoped_lock lock(guard);
        errors.emplace_back(error.what());
      }
      EXPECT_EQ(values(), before) << "no rank has moved";
    });
    ASSERT_EQ(errors.size(), 4u);
    EXPECT_THAT(errors, ::testing::Each(::testing::HasSubstr("; on rank 2 layers.1.moe.experts.up.weight = nan; ")));
  }
}

/// Sends every token to the same expert.
class AllToOne final : public nn::RouterDecisions {
  Use use() const override { return Use::replay; }
  void take(const nn::RoutedTokens&, std::span<std::int32_t> experts) override { std::ranges::fill(experts, 3); }
};

/// Pages of this process that are in memory.
Index resident_pages() {
  std::ifstream file("/proc/self/statm");
  Index size = 0, resident = 0;
  file >> size >> resident;
  return resident;
}

TEST(Moe, TwoHundredStepsWithAllTokensAtOneExpertTakeNoMemory) {
  for (const MoeGrid& grid : {MoeGrid{2, 1, 1, 2, 1}, MoeGrid{4, 2, 1, 2, 2}}) {
    SCOPED_TRACE(grid.name());
    config::RunPlan plan = config::resolve(moe_config(grid, model_named("Top1"), "fp32", 201));
    plan.model.moe.replay = "all to one";
    std::array<Index, 201> pages{};
    comm::run_ranks(grid.ranks, [&](comm::World& world) {
      train::Engine engine(world, plan);
      engine.allocate();
      const BytesByOwner taken = engine.taken_bytes();
      AllToOne decisions;
      engine.stage().moe().decisions = &decisions;
      const support::HashedBatches source(plan.model.vocab_size);
      train::Progress progress;
      for (Index i = 0; i < 201; ++i) {
        const train::StepReport report = engine.step(source, progress, train::Stop::no);
        ++progress.step;
        progress.samples += plan.train.global_batch;
        for (const train::ExpertLoad& load : report.moe.layers) EXPECT_EQ(load.max_over_mean, 8);
        if (world.rank() == 0) pages[static_cast<std::size_t>(i)] = resident_pages();
      }
      EXPECT_EQ(engine.taken_bytes(), taken);
    });
    EXPECT_LE(pages[200] - pages[20], 64) << "what 180 steps leave behind, but for what other threads touch";
  }
}

// Outputs of norms that are computed again need no memory of their own until backward: neither attention nor experts
// may keep them.
TEST(Moe, RecomputedNormsAreNotKept) {
  for (const char* name : {"Top2", "SharedWithGate"}) {
    for (const MoeGrid& grid : {MoeGrid{}, MoeGrid{4, 2, 1, 2, 1}, MoeGrid{4, 2, 1, 2, 2}}) {
      SCOPED_TRACE(std::string(name) + " " + grid.name());
      const auto activations = [&](const nn::RecomputeConfig& recompute) {
        config::RunPlan plan = config::resolve(moe_config(grid, model_named(name), "fp32"));
        plan.recompute = recompute;
        Index bytes = 0;
        comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
          train::Engine engine(world, plan);
          const BytesByOwner planned = engine.planned_bytes();
          engine.allocate();
          EXPECT_EQ(engine.taken_bytes().at("activations"), planned.at("activations"));
          if (world.rank() == 0) bytes = planned.at("activations");
        });
        return bytes;
      };
      const Index less = activations({}) - activations(support::selective({nn::RecomputeModule::norms}));
      constexpr Index kOutput = 2 * 16 * 20 * 4, kStatistics = 256;  // of each row an f32, aligned
      EXPECT_EQ(less, 4 * 2 * (kOutput + kStatistics)) << "of 4 layers with 2 norms";
    }
  }
}

// One rank keeps of T K rows the results of the up product. With ep the rows that have arrived are kept, too.
TEST(Moe, PlansTheRowsOfExperts) {
  const auto rows_bytes = [](const MoeGrid& grid, const char* model) {
    const config::RunPlan plan = config::resolve(moe_config(grid, model_named(model), "fp32"));
    Index bytes = 0;
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      train::Engine engine(world, plan);
      const BytesByOwner planned = engine.planned_bytes();
      engine.allocate();
      EXPECT_EQ(engine.taken_bytes(), planned);
      if (world.rank() == 0) bytes = planned.at("expert rows");
    });
    return bytes;
  };
  const Index one = rows_bytes({}, "Top2");
  constexpr Index kLayers = 4, kBytes = 4, kRows = 2 * 16 * 2, kUp = 2 * 12;
  EXPECT_EQ(one, kLayers * kBytes * kRows * kUp);
  // ep 4: as many rows as 4 ranks could send to 2 experts.
  EXPECT_GT(rows_bytes({4, 1, 1, 4, 1}, "Top2"), 3 * one);
}

}  // namespace
}  // namespace megalith
