// Experts whose ranks have room for fewer rows than can come: what a step does that needs more.
#include <cmath>
#include <map>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/config/moe_rules.h"
#include "megalith/ops/library.h"
#include "megalith/ops/row_budget.h"
#include "megalith/train/expert_rows.h"

#include "tests/io/temp_dir.h"
#include "tests/support/count_allocations.h"
#include "tests/train/moe_run.h"
#include "tests/train/recompute_modes.h"
#include "tests/train/saved_run.h"

namespace megalith {
namespace {

using nn::SequenceParallel;
using support::moe_config;
using support::MoeGrid;

/// Where decisions load one rank: all tokens choose its experts. Elsewhere tokens choose all experts alike.
struct HotPlace {
  Index step = 0, layer = 0, sample = 0;
  auto operator<=>(const HotPlace&) const = default;
};

/// Decisions as of routers, for models of 8 experts with two choices. A hot sample's tokens all go to two neighbouring
/// experts.
class MadeDecisions final : public nn::RouterDecisions {
 public:
  using Hot = std::function<std::optional<Index>(const HotPlace&)>;  ///< the first of the two experts
  MadeDecisions(Index seq_len, Hot hot) : seq_len_(seq_len), hot_(std::move(hot)) {}

  std::array<std::int32_t, 2> experts_of(Index step, Index layer, Index token) const {
    if (const auto first = hot_({step, layer, token / seq_len_}))
      return {static_cast<std::int32_t>(*first), static_cast<std::int32_t>(*first + 1)};
    const Index one = (3 * token + step + layer) % 8;
    return {static_cast<std::int32_t>(one), static_cast<std::int32_t>((one + 3) % 8)};
  }

 private:
  Use use() const override { return Use::replay; }
  void take(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) override {
    for (std::size_t i = 0; i < experts.size() / 2; ++i) {
      const auto of = experts_of(tokens.step, tokens.moe_layer, tokens.first + static_cast<Index>(i));
      experts[2 * i] = of[0];
      experts[2 * i + 1] = of[1];
    }
  }

  Index seq_len_;
  Hot hot_;
};

config::RunPlan plan_with(const MoeGrid& grid, const std::string& factor, const std::string& overflow,
                          const std::string& precision, Index steps, Index layers = 4) {
  config::RunConfig c = moe_config(grid, support::moe_models()[1], precision, steps);
  c.model.num_layers = layers;
  c.moe.dispatcher = "peer";
  c.moe.rank_capacity_factor = factor;
  c.moe.overflow = overflow;
  c.moe.z_loss = 0.01;
  return config::resolve(c);
}

struct BudgetRun {
  std::shared_ptr<support::RunRecord> record = std::make_shared<support::RunRecord>();  ///< gradients: the last
  std::vector<bool> reruns;
  std::vector<double> factors;  ///< that the steps needed; 0 without a rerun
  std::vector<train::MoeReport> moe;
  std::string error;
  ops::OptimizerState state;
  long allocations = 0;  ///< of rank 0, from the third step on
  Index launches = 0;    ///< of graphs, of rank 0
};

/// With these decisions, or the routers' own.
BudgetRun run_of(config::RunPlan plan, const MadeDecisions* decisions) {
  BudgetRun run;
  if (decisions != nullptr) plan.model.moe.replay = "made";
  try {
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      train::Engine engine(world, plan);
      const BytesByOwner planned = engine.planned_bytes();
      engine.allocate();
      EXPECT_EQ(engine.taken_bytes(), planned);
      MadeDecisions mine = decisions == nullptr ? MadeDecisions(1, {}) : *decisions;
      if (decisions != nullptr) engine.stage().moe().decisions = &mine;
      const support::HashedBatches source(plan.model.vocab_size);
      train::Progress progress;
      for (Index step = 0; step < plan.train.steps; ++step) {
        const support::CountAllocations counter;
        train::StepReport report;
        try {
          report = engine.step(source, progress, train::Stop::no);
        } catch (const Error&) {  // of this rank, or of another that was first
          put_params(run.record->parameters, engine.stage(), false);
          if (world.rank() == 0) run.state = engine.optimizer_state();
          throw;
        }
        if (world.rank() == 0 && step > 1) run.allocations += counter.count();
        progress = {step + 1, progress.samples + plan.train.global_batch};
        if (world.rank() != world.size() - 1) continue;
        run.record->losses.push_back(report.loss);
        run.record->norms.push_back(report.grad_norm);
        run.reruns.push_back(report.rerun);
        run.factors.push_back(report.rows_factor);
        run.moe.push_back(report.moe);
      }
      engine.stage().gather_all_params(engine.exec());
      if (plan.optimizer.sharding == Sharding::none) put_params(run.record->gradients, engine.stage(), true);
      put_params(run.record->parameters, engine.stage(), false);
      if (world.rank() != 0) return;
      run.state = engine.optimizer_state();
      run.launches = engine.train_graph().launches().count() + engine.layer_graphs().launches().count();
    });
  } catch (const ConfigError& error) {
    run.error = error.what();
  }
  return run;
}

void expect_same_bits(const BudgetRun& got, const BudgetRun& want) {
  EXPECT_EQ(got.record->losses, want.record->losses);
  EXPECT_EQ(got.record->norms, want.record->norms);
  EXPECT_EQ(got.record->gradients.tensors(), want.record->gradients.tensors());
  EXPECT_EQ(got.record->parameters.tensors(), want.record->parameters.tensors());
  ASSERT_EQ(got.moe.size(), want.moe.size());
  for (std::size_t i = 0; i < got.moe.size(); ++i) EXPECT_EQ(got.moe[i].json(), want.moe[i].json()) << "step " << i;
}

/// Rows that the ranks of experts of one exchange would need, and have beyond `room`, in a microbatch: `samples` are
/// those of all its members.
struct Need {
  Index peak = 0, beyond = 0;
};
Need need_of(const MadeDecisions& decisions, const HotPlace& at, const std::vector<Index>& samples, Index ep,
             Index seq_len, Index room) {
  std::map<Index, Index> rows;
  for (const Index sample : samples) {
    for (Index t = 0; t < seq_len; ++t) {
      for (const std::int32_t expert : decisions.experts_of(at.step, at.layer, sample * seq_len + t))
        ++rows[expert / (8 / ep)];
    }
  }
  Need need;
  for (const auto& [rank, count] : rows) {
    need.peak = std::max(need.peak, count);
    need.beyond += std::max<Index>(0, count - room);
  }
  return need;
}

const std::vector<MoeGrid>& budget_grids() {
  static const std::vector<MoeGrid> grids = {{4, 1, 1, 4, 1},
                                             {8, 1, 2, 4, 1},
                                             {4, 1, 1, 2, 2},
                                             {4, 2, 1, 2, 1},
                                             {4, 2, 1, 2, 2},
                                             {8, 2, 1, 4, 1},
                                             {8, 2, 2, 2, 2, 2, SequenceParallel::on, Sharding::optimizer}};
  return grids;
}

/// The least legal factor: ep / K, but where that is less than an even share.
std::string least_factor(const MoeGrid& grid) { return grid.ep == 4 ? "2" : "1"; }

class MoeBudget : public ::testing::TestWithParam<MoeGrid> {};
INSTANTIATE_TEST_SUITE_P(Grids, MoeBudget, ::testing::ValuesIn(budget_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST_P(MoeBudget, AStepThatOverflowsInOnePlaceIsRunAgainWithTheBitsOfTheWorstCase) {
  const MoeGrid& grid = GetParam();
  // The samples of one microbatch of all ranks that exchange rows, in layer 2 of step 1.
  const MadeDecisions decisions(16, [&](const HotPlace& at) -> std::optional<Index> {
    if (at.step != 1 || at.layer != 2 || at.sample % 4 > 1) return {};
    return 6;
  });
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    const BudgetRun want = run_of(plan_with(grid, "worst", "rerun", precision, 4), &decisions);
    const BudgetRun got = run_of(plan_with(grid, least_factor(grid), "rerun", precision, 4), &decisions);
    expect_same_bits(got, want);
    EXPECT_EQ(want.reruns, std::vector<bool>(4, false));
    EXPECT_EQ(got.reruns, (std::vector<bool>{false, true, false, false}));
  }
}

TEST_P(MoeBudget, RerunsRecomputeAsOtherStepsDo) {
  const MadeDecisions decisions(16, [&](const HotPlace& at) -> std::optional<Index> {
    return at.step == 1 ? std::optional<Index>(2 * (at.layer % 4)) : std::nullopt;
  });
  using nn::RecomputeModule;
  for (const nn::RecomputeConfig& way :
       {support::full(nn::RecomputeMethod::uniform, 1), support::full(nn::RecomputeMethod::uniform, 3),
        support::selective({RecomputeModule::norms, RecomputeModule::attention, RecomputeModule::mlp}),
        support::selective({RecomputeModule::dispatch, RecomputeModule::mlp})}) {
    config::RunPlan worst = plan_with(GetParam(), "worst", "rerun", "bf16", 3),
                    least = plan_with(GetParam(), least_factor(GetParam()), "rerun", "bf16", 3);
    worst.recompute = least.recompute = way;
    const BudgetRun got = run_of(least, &decisions);
    expect_same_bits(got, run_of(worst, &decisions));
    EXPECT_EQ(got.reruns, (std::vector<bool>{false, true, false}));
  }
}

/// Every step another rank, or none, is hot, in all layers, in some, or in one microbatch.
MadeDecisions adversary() {
  return MadeDecisions(16, [](const HotPlace& at) -> std::optional<Index> {
    const Index turn = (at.step * 2654435761 >> 4) % 7;
    if (turn == 0 || (turn == 1 && at.layer != at.step % 4) || (turn == 2 && at.sample % 4 > 1)) return {};
    return 2 * ((at.step + (turn > 4 ? at.layer : 0)) % 4);
  });
}

TEST(MoeBudgets, TwoHundredStepsOfAnAdversaryHaveTheBitsOfTheWorstCase) {
  const MoeGrid grid{4, 1, 1, 4, 1};
  const MadeDecisions decisions = adversary();
  const BudgetRun want = run_of(plan_with(grid, "worst", "rerun", "fp32", 200), &decisions);
  const BudgetRun got = run_of(plan_with(grid, "2", "rerun", "fp32", 200), &decisions);
  expect_same_bits(got, want);
  Index wanted = 0, reruns = 0;
  const Index room = 2 * 2 * 16 * 2;
  for (Index step = 0; step < 200; ++step) {
    Need most;
    for (Index layer = 0; layer < 4; ++layer) {
      for (Index microbatch = 0; microbatch < 2; ++microbatch) {
        std::vector<Index> samples;
        for (Index rank = 0; rank < 4; ++rank) {
          for (Index i = 0; i < 2; ++i) samples.push_back(rank * 4 + microbatch * 2 + i);
        }
        const Need need = need_of(decisions, {step, layer, 0}, samples, 4, 16, room);
        most = {std::max(most.peak, need.peak), most.beyond + need.beyond};
      }
    }
    const bool lacks = most.beyond > 0;
    wanted += lacks ? 1 : 0;
    reruns += got.reruns[static_cast<std::size_t>(step)] ? 1 : 0;
    EXPECT_EQ(got.reruns[static_cast<std::size_t>(step)], lacks) << "step " << step;
    const Index factor = std::lround(1000 * got.factors[static_cast<std::size_t>(step)]), even = room / 2;
    if (!lacks) {
      EXPECT_EQ(factor, 0) << "step " << step;
      continue;
    }
    EXPECT_GE(ops::rows_of_factor(even, factor), most.peak) << "step " << step;
    EXPECT_LT(ops::rows_of_factor(even, factor - 1), most.peak) << "step " << step;
  }
  EXPECT_EQ(reruns, wanted);
  EXPECT_GT(reruns, 100);
  EXPECT_LT(reruns, 190);
}

// Then the ops that make the gradients of experts sum their squares, too.
TEST(MoeBudgets, StepsOfOneMicrobatchHaveTheNormsOfTheWorstCase) {
  const MadeDecisions decisions = adversary();
  for (const char* precision : {"fp32", "bf16"}) {
    const auto with = [&](const char* factor) {
      config::RunPlan plan = plan_with({4, 1, 1, 4, 1}, factor, "rerun", precision, 12);
      plan.train.global_batch = 8;
      return run_of(plan, &decisions);
    };
    const BudgetRun got = with("2");
    expect_same_bits(got, with("worst"));
    EXPECT_GT(std::ranges::count(got.reruns, true), 2);
  }
}

// Their own routers, pulled to the first experts.
TEST(MoeBudgets, RoutersThatOverflowHaveTheBitsOfTheWorstCaseAndAllocateNothing) {
  for (const char* precision : {"fp64", "bf16"}) {
    const auto with = [&](const char* factor) {
      config::RunPlan plan = plan_with({4, 1, 1, 4, 1}, factor, "rerun", precision, 12);
      plan.model.moe.router_skew = 2;
      return run_of(plan, nullptr);
    };
    const BudgetRun got = with("2");
    const BudgetRun want = with("worst");
    expect_same_bits(got, want);
    // The library makes a kernel when rows of experts have a new number.
    const bool makes_kernels = std::string_view(precision) == "bf16" && !ops::cpu_bf16_unit().empty();
    if (!makes_kernels) {
      EXPECT_EQ(got.allocations, want.allocations) << "those of reports";
    }
    EXPECT_GT(std::ranges::count(got.reruns, true), 2);
  }
}

// A graph holds a pass with room for the budget. A step that was held runs eagerly, and the next one from the graph.
TEST(MoeBudgets, StepsFromGraphsAreRunAgainWithoutThem) {
  using capture::Scope;
  const auto with = [&](const char* factor, capture::GraphMode mode, const capture::ScopeSet& scopes) {
    config::RunPlan plan = plan_with({4, 1, 1, 4, 1}, factor, "rerun", "fp32", 14);
    plan.model.moe.router_skew = 2;
    plan.graphs.mode = mode;
    plan.graphs.scopes = scopes;
    plan.graphs.warmup_steps = 2;
    EXPECT_EQ(config::why_no_iteration(plan), "");
    return run_of(plan, nullptr);
  };
  const BudgetRun want = with("worst", capture::GraphMode::none, {});
  for (const capture::ScopeSet& scopes : {capture::ScopeSet{Scope::attn, Scope::moe_router},
                                          {Scope::attn, Scope::moe_router, Scope::moe_preprocess},
                                          {}}) {
    for (const capture::GraphMode mode : {capture::GraphMode::layers, capture::GraphMode::iteration}) {
      SCOPED_TRACE(str(name(mode), " ", text(scopes)));
      const BudgetRun got = with("2", mode, scopes);
      expect_same_bits(got, want);
      EXPECT_GT(std::count(got.reruns.begin() + 3, got.reruns.end(), true), 2);
      const Index from_graphs = 14 - 2;  // a graph of layers is launched by turns with eager ops
      EXPECT_EQ(got.launches % (mode == capture::GraphMode::iteration ? from_graphs : from_graphs - 1), 0);
      EXPECT_GE(got.launches, from_graphs - 1);
    }
  }
}

TEST(MoeBudgets, PlansTakeLessForFewerRowsAndNothingForRounds) {
  for (const MoeGrid& grid : budget_grids()) {
    SCOPED_TRACE(grid.name());
    const auto bytes = [&](const char* factor, const char* overflow) {
      return train::planned_bytes(plan_with(grid, factor, overflow, "bf16", 1), 0);
    };
    const BytesByOwner worst = bytes("worst", "rerun"), least = bytes(least_factor(grid).c_str(), "rerun"),
                       drop = bytes(least_factor(grid).c_str(), "drop");
    const Index rows = train::expert_rows_in(worst);
    EXPECT_EQ(train::expert_rows_in(least), rows / 2) << "half of the worst case";
    EXPECT_LT(total(least), total(worst));
    EXPECT_EQ(total(least), total(drop)) << "rounds fit in the memory of other passes";
  }
}

TEST(MoeBudgets, ARunThatAbortsNamesTheLeastFactorThatSuffices) {
  const MoeGrid grid{4, 1, 1, 4, 1};
  // Some samples of each layer: the rows needed differ from layer to layer, and the most are in the third.
  const MadeDecisions decisions(16, [](const HotPlace& at) -> std::optional<Index> {
    if (at.step != 2 || at.sample > 9 + (at.layer == 2 ? 3 : 0)) return {};
    return 2;
  });
  const BudgetRun two = run_of(plan_with(grid, "2", "rerun", "fp32", 2), &decisions);
  const BudgetRun aborted = run_of(plan_with(grid, "2.5", "abort", "fp32", 4), &decisions);
  Need need;
  for (Index layer = 0; layer < 4; ++layer) {
    for (Index microbatch = 0; microbatch < 2; ++microbatch) {
      std::vector<Index> samples;
      for (Index rank = 0; rank < 4; ++rank) {
        for (Index i = 0; i < 2; ++i) samples.push_back(rank * 4 + microbatch * 2 + i);
      }
      need.peak = std::max(need.peak, need_of(decisions, {2, layer, 0}, samples, 4, 16, 0).peak);
    }
  }
  const Index least = ops::factor_for_rows(need.peak, 64);
  const std::string factor = nn::RankCapacity{least}.text(), less = nn::RankCapacity{least - 1}.text();
  EXPECT_THAT(aborted.error,
              ::testing::HasSubstr(str("[step 3] moe.rank_capacity_factor = 2.5: a rank of experts needs ", need.peak,
                                       " rows, and has room for 160; for this step ", factor,
                                       " suffices. Parameters stay those of step 2")));
  EXPECT_EQ(aborted.state.updates, 2);
  EXPECT_EQ(aborted.record->parameters.tensors(), two.record->parameters.tensors());
  EXPECT_EQ(run_of(plan_with(grid, factor, "abort", "fp32", 4), &decisions).error, "");
  EXPECT_THAT(run_of(plan_with(grid, less, "abort", "fp32", 4), &decisions).error,
              ::testing::HasSubstr(str("; for this step ", factor, " suffices")));
}

TEST(MoeBudgets, DroppedPairsAreCountedExactly) {
  const MadeDecisions decisions = adversary();
  const MoeGrid grid{4, 1, 1, 4, 1};
  const BudgetRun got = run_of(plan_with(grid, "2.3", "drop", "fp32", 20), &decisions);
  const Index room = 148;  // ceil(2.3 * 64)
  Index all = 0;
  for (Index step = 0; step < 20; ++step) {
    EXPECT_FALSE(got.reruns[static_cast<std::size_t>(step)]);
    for (Index layer = 0; layer < 4; ++layer) {
      Index beyond = 0;
      for (Index microbatch = 0; microbatch < 2; ++microbatch) {
        std::vector<Index> samples;
        for (Index rank = 0; rank < 4; ++rank) {
          for (Index i = 0; i < 2; ++i) samples.push_back(rank * 4 + microbatch * 2 + i);
        }
        beyond += need_of(decisions, {step, layer, 0}, samples, 4, 16, room).beyond;
      }
      EXPECT_EQ(got.moe[static_cast<std::size_t>(step)].layers[static_cast<std::size_t>(layer)].dropped, beyond)
          << "step " << step << ", layer " << layer;
      all += beyond;
    }
  }
  EXPECT_GT(all, 1000);
  EXPECT_EQ(got.state.updates, 20);
}

/// Throws when a sample of a step is asked for once more than it should be: in the rerun of that step.
class KilledInRerun final : public support::HashedBatches {
 public:
  KilledInRerun(Index vocab, Index sample) : HashedBatches(vocab), sample_(sample) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    if (first_sample == sample_ && ++fills_ == 2) throw IoError("killed in a rerun");
    HashedBatches::fill(first_sample, count, batch);
  }

 private:
  Index sample_;
  mutable Index fills_ = 0;
};

TEST(MoeBudgets, ARunThatIsKilledInARerunGoesOnFromItsCheckpoint) {
  config::RunPlan plan = plan_with({4, 1, 1, 4, 1}, "2", "rerun", "fp32", 8);
  plan.model.moe.replay = "made";
  const MadeDecisions decisions = adversary();
  const auto train = [&](const io::Path& folder, Index end, Index kill_at, std::vector<double>& losses) {
    std::string digest;
    comm::run_ranks(4, [&](comm::World& world) {
      const std::shared_ptr<io::Fs> fs = io::posix_fs();
      train::Engine engine(world, plan);
      engine.allocate();
      MadeDecisions mine = decisions;
      engine.stage().moe().decisions = &mine;
      train::Saver saver(engine, plan, {1, 2}, *fs, folder);
      train::Progress progress;
      if (const std::optional<train::Resumed> resumed = saver.resume()) progress = resumed->progress;
      const support::HashedBatches healthy(plan.model.vocab_size);
      const KilledInRerun killed(plan.model.vocab_size, kill_at * plan.train.global_batch);
      const model::BatchSource& source = kill_at >= 0 ? static_cast<const model::BatchSource&>(killed) : healthy;
      std::string saved;
      while (progress.step < end) {
        const train::StepReport report = engine.step(source, progress, train::Stop::no);
        progress = {progress.step + 1, progress.samples + plan.train.global_batch};
        if (world.rank() == 0) losses.push_back(report.loss);
        if (progress.step % 2 == 0) saved = saver.save(progress).hex();
      }
      if (world.rank() == 0) digest = saved;
    });
    return digest;
  };
  const BudgetRun counted = run_of(plan, &decisions);
  const auto rerun = std::find(counted.reruns.begin() + 3, counted.reruns.end(), true);
  ASSERT_NE(rerun, counted.reruns.end());
  const Index kill_at = rerun - counted.reruns.begin();
  const TempDir whole, broken;
  std::vector<double> want, before, after;
  const std::string digest = train(whole.path(), 8, -1, want);
  EXPECT_THROW(train(broken.path(), 8, kill_at, before), IoError);
  EXPECT_EQ(std::ssize(before), kill_at);
  EXPECT_EQ(train(broken.path(), 8, -1, after), digest);
  const std::vector<double> rest(want.begin() + kill_at / 2 * 2, want.end());
  EXPECT_EQ(after, rest);
}

}  // namespace
}  // namespace megalith
