// Clones of experts (docs/echo.md) where ranks have room for few rows: what a step does that needs more.
#include <algorithm>
#include <limits>
#include <map>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/config/moe_rules.h"
#include "megalith/ops/echo_plan.h"
#include "megalith/ops/row_budget.h"
#include "megalith/train/expert_rows.h"

#include "tests/comm/wrapped_world.h"
#include "tests/io/temp_dir.h"
#include "tests/train/graph_ways.h"
#include "tests/train/moe_run.h"
#include "tests/train/recompute_modes.h"
#include "tests/train/resumed_run.h"

namespace megalith {
namespace {

using support::MoeGrid;

constexpr Index kBudgetSteps = 3, kEchoTopK = 4;

struct BudgetWay {
  const char *factor, *overflow = "rerun", *weights = "keep", *backend = "auto", *balance = "greedy";
  Index slots = 1;
};

/// 16 experts of which routers prefer the first: one slot does not suffice.
config::RunConfig echo_budget_config(const MoeGrid& grid, const BudgetWay& way, const char* precision = "fp32") {
  config::RunConfig c = support::moe_config(grid,
                                            {"",
                                             [](config::RunConfig& recipe) {
                                               recipe.moe.num_experts = 16;
                                               recipe.moe.top_k = kEchoTopK;
                                               recipe.moe.router_skew = 0.3;
                                               recipe.moe.z_loss = 0.01;
                                             }},
                                            precision, kBudgetSteps);
  c.model.num_layers = grid.pp * grid.chunks > 2 ? 4 : 2;
  c.train.global_batch = grid.pp > 1 ? 16 : 8;
  c.moe.dispatcher = "peer";
  if (*way.factor != 0) c.moe.rank_capacity_factor = way.factor;
  c.moe.overflow = way.overflow;
  c.moe.echo.slots = way.slots;
  c.moe.echo.min_pairs = 0;
  c.moe.echo.balance = way.balance;
  c.moe.echo.weights = way.weights;
  c.moe.echo.backend = way.backend;
  return c;
}

struct EchoBudgetRun {
  std::vector<double> losses, norms;
  std::vector<std::string> loads;
  std::vector<bool> reruns;
  std::vector<train::MoeReport> reports;
  std::map<std::string, std::vector<double>> gradients, parameters;  ///< of the last step
  std::string error;
  Index launches = 0;
};

EchoBudgetRun budget_run(const config::RunPlan& plan, nn::RouterDecisions* decisions = nullptr) {
  EchoBudgetRun run;
  support::Gathered gradients, parameters;
  try {
    comm::run_ranks(plan.grid.world_size, [&](comm::World& world) {
      train::Engine engine(world, plan);
      const BytesByOwner planned = engine.planned_bytes();
      engine.allocate();
      EXPECT_EQ(engine.taken_bytes(), planned);
      if (decisions != nullptr) engine.stage().moe().decisions = decisions;
      const support::HashedBatches source(plan.model.vocab_size);
      for (Index step = 0; step < plan.train.steps; ++step) {
        const train::StepReport report = engine.step(source, {step, step * plan.train.global_batch}, train::Stop::no);
        if (world.rank() != world.size() - 1) continue;
        run.losses.push_back(report.loss);
        run.norms.push_back(report.grad_norm);
        // The bytes differ by the way in which weights move, and times in any case.
        run.loads.push_back(std::regex_replace(report.moe.json(), std::regex("\"(bytes|exposed_us)\":[0-9.e+-]+"), ""));
        run.reruns.push_back(report.rerun);
        run.reports.push_back(report.moe);
      }
      put_params(gradients, engine.stage(), true);
      put_params(parameters, engine.stage(), false);
      if (world.rank() == 0) run.launches = engine.train_graph().launches().count();
    });
  } catch (const ConfigError& error) {
    run.error = error.what();
  }
  run.gradients = gradients.tensors();
  run.parameters = parameters.tensors();
  return run;
}

EchoBudgetRun budget_run(const MoeGrid& grid, const BudgetWay& way, const char* precision = "fp32") {
  return budget_run(config::resolve(echo_budget_config(grid, way, precision)));
}

void expect_same_budget_run(const EchoBudgetRun& got, const EchoBudgetRun& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.loads, want.loads);
  EXPECT_EQ(got.gradients, want.gradients);
  EXPECT_EQ(got.parameters, want.parameters);
}

/// Nearly all choices are of the first five experts, four of which are on rank 0. With a slot a rank 1.4 times the even
/// share stays there.
TEST(EchoBudgetOfASkewedRouter, OneSlotAndATenthMoreRoom) {
  const auto run = [](const char* factor) {
    config::RunConfig c = echo_budget_config({4, 1, 1, 4, 1}, {.factor = factor});
    c.moe.router_skew = 1.0;
    c.moe.top_k = 5;
    return budget_run(config::resolve(c));
  };
  const EchoBudgetRun want = run("worst"), got = run("1.1");
  expect_same_budget_run(got, want);
  EXPECT_EQ(got.reruns, std::vector<bool>(kBudgetSteps, true));
}

constexpr MoeGrid kEchoBudgetGrids[] = {
    {2, 1, 1, 2, 1}, {4, 1, 1, 4, 1}, {4, 2, 1, 2, 2}, {4, 2, 1, 2, 1}, {4, 1, 2, 2, 1, 2}};

class EchoBudget : public ::testing::TestWithParam<MoeGrid> {};
INSTANTIATE_TEST_SUITE_P(Grids, EchoBudget, ::testing::ValuesIn(kEchoBudgetGrids),
                         [](const auto& test) { return test.param.name(); });

/// In rounds over the experts and the clones of each rank. A grid takes two of the ways, in one precision.
TEST_P(EchoBudget, StepsThatOverflowAreRunAgainWithTheBitsOfTheWorstCase) {
  constexpr BudgetWay kWays[] = {{.factor = "1.1"},
                                 {.factor = "1.02", .weights = "redispatch", .backend = "collective"},
                                 {.factor = "1", .weights = "redispatch", .backend = "peer"},
                                 {.factor = "1", .backend = "host_sized"}};
  const auto turn = static_cast<std::size_t>(GetParam().ep + GetParam().etp + GetParam().pp);
  const char* precision = turn % 2 == 0 ? "fp64" : "bf16";
  const EchoBudgetRun want = budget_run(GetParam(), {.factor = "worst"}, precision);
  for (const BudgetWay& way : {kWays[turn % 4], kWays[(turn + 2) % 4]}) {
    SCOPED_TRACE(str(precision, ' ', way.factor, ' ', way.weights, ' ', way.backend));
    const EchoBudgetRun got = budget_run(GetParam(), way, precision);
    expect_same_budget_run(got, want);
    EXPECT_EQ(want.reruns, std::vector<bool>(kBudgetSteps, false));
    EXPECT_GT(std::ranges::count(got.reruns, true), 0);
  }
}

/// Ends a rank in the middle of a step that is run again. A step's first run makes as many calls as one of the worst
/// case.
class KilledInRerun final : public comm::ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  comm::Ticket gather_rows(const comm::Call& call, const comm::GatherRows& args, Stream stream) override {
    if (name() == "etp-ep" && world_rank() == 1 && ++calls_ > kills_after) throw IoError("killed");
    return inner().gather_rows(call, args, stream);
  }
  static inline Index kills_after = 0;

 private:
  Index calls_ = 0;
};

// Nothing of a rerun is kept but by a checkpoint after its step.
TEST(EchoBudgets, ARunThatIsKilledInARerunResumes) {
  constexpr Index kSavedAt = 1;
  const MoeGrid grid{2, 1, 1, 2, 1};
  const config::RunPlan plan = config::resolve(echo_budget_config(grid, {.factor = "1"}));
  const EchoBudgetRun whole = budget_run(plan);
  ASSERT_TRUE(whole.reruns[kSavedAt]);
  const TempDir dir;
  const support::Trained saved = support::train_and_save(plan, dir.path(), 0, kSavedAt);
  const auto train_killed = [&](const config::RunPlan& of, Index kills_after) {
    Index calls = 0;
    KilledInRerun::kills_after = kills_after;
    comm::run_ranks(2, [&](comm::World& world) {
      comm::WrappedWorld<KilledInRerun> wrapped(world);
      const std::shared_ptr<io::Fs> fs = io::posix_fs();
      train::Engine engine(wrapped, of);
      engine.allocate();
      train::Saver saver(engine, of, {1, 2}, *fs, dir.path());
      ASSERT_TRUE(saver.resume().has_value());
      const support::HashedBatches source(of.model.vocab_size);
      engine.step(source, {kSavedAt, kSavedAt * of.train.global_batch}, train::Stop::no);
      if (world.rank() == 0) calls = engine.mesh().etp_ep.counters()[comm::Op::gather_rows].calls;
    });
    return calls;
  };
  config::RunPlan worst = plan;
  worst.model.moe.rank_capacity_factor = {};
  const Index of_a_run = train_killed(worst, std::numeric_limits<Index>::max());
  EXPECT_THROW(train_killed(plan, of_a_run + 1), IoError) << "the step is run again, and ends there";
  const support::Trained resumed = support::train_and_save(plan, dir.path(), kSavedAt, kBudgetSteps);
  EXPECT_EQ(resumed.digest.hex(), saved.digest.hex());
  EXPECT_EQ(resumed.losses, std::vector(whole.losses.begin() + kSavedAt, whole.losses.end()));
}

TEST(EchoBudgets, RerunsRecomputeAsOtherStepsDo) {
  using nn::RecomputeModule;
  const MoeGrid grid{2, 1, 1, 2, 1};
  for (const nn::RecomputeConfig& recompute : {support::full(nn::RecomputeMethod::uniform, 2),
                                               support::selective({RecomputeModule::dispatch, RecomputeModule::mlp})}) {
    config::RunPlan worst = config::resolve(echo_budget_config(grid, {.factor = "worst"})),
                    least = config::resolve(echo_budget_config(grid, {.factor = "1", .weights = "redispatch"}));
    worst.recompute = least.recompute = recompute;
    const EchoBudgetRun got = budget_run(least);
    expect_same_budget_run(got, budget_run(worst));
    EXPECT_GT(std::ranges::count(got.reruns, true), 0);
  }
}

// A graph holds a pass with room for the budget. A step that was held runs eagerly, and the next one from the graph.
TEST(EchoBudgets, StepsFromGraphsAreRunAgainWithoutThem) {
  const EchoBudgetRun want = budget_run({4, 1, 2, 2, 1, 2}, {.factor = "worst"});
  config::RunConfig recipe = echo_budget_config({4, 1, 2, 2, 1, 2}, {.factor = "1.1"});
  recipe.graphs.mode = "iteration";  // legal
  const config::RunPlan plan = support::with_graphs(config::resolve(recipe), support::kWholeSteps, 1);
  const EchoBudgetRun got = budget_run(plan);
  expect_same_budget_run(got, want);
  EXPECT_EQ(got.launches, kBudgetSteps - 1);
  EXPECT_GT(std::count(got.reruns.begin() + 1, got.reruns.end(), true), 0);
}

TEST(EchoBudgets, ExactPlansWithSlotsForAllExpertsNeedNoMoreThanTheEvenShare) {
  const BudgetWay way{.factor = "", .balance = "exact", .slots = 8};
  const config::RunConfig recipe = echo_budget_config({2, 1, 1, 2, 1}, way);
  EXPECT_EQ(config::resolve(recipe).model.moe.rank_capacity_factor.text(), "1");
  for (const double skew : {0.3, 3.0}) {
    config::RunConfig skewed = recipe;
    skewed.moe.router_skew = skew;
    const EchoBudgetRun got = budget_run(config::resolve(skewed));
    EXPECT_EQ(got.reruns, std::vector<bool>(kBudgetSteps, false));
    skewed.moe.rank_capacity_factor = "worst";
    expect_same_budget_run(got, budget_run(config::resolve(skewed)));
  }
}

/// Loads after the clones of every layer and microbatch of a step, from the decisions of its routers.
std::vector<std::int32_t> planned_loads(const config::RunPlan& plan, const support::KeptDecisions& decisions,
                                        Index step) {
  const Index ranks = plan.grid.ep, experts = plan.model.moe.num_experts, slots = plan.model.moe.echo.slots;
  const Index tokens = plan.train.global_batch * plan.model.seq_len, of_rank = tokens / ranks;
  const Index of_microbatch = plan.train.micro_batch * plan.model.seq_len, top_k = plan.model.moe.top_k;
  std::vector<std::int32_t> all;
  for (Index layer = 0; layer < plan.model.num_layers; ++layer) {
    for (Index first = 0; first < of_rank; first += of_microbatch) {
      Exec ex;
      const Tensor counts = ex.tensor({ranks, experts}, DType::i32);
      std::ranges::fill(counts.span<std::int32_t>(), 0);
      for (Index rank = 0; rank < ranks; ++rank) {
        const Index token = (step * plan.model.num_layers + layer) * tokens + rank * of_rank + first;
        for (Index pair = token * top_k; pair < (token + of_microbatch) * top_k; ++pair)
          ++counts.data<std::int32_t>()[rank * experts + decisions.all()[static_cast<std::size_t>(pair)]];
      }
      const ops::EchoPlan echo = ops::make_echo_plan(ex, ranks, experts, slots);
      ops::plan_echo(ex, {.counts = counts, .plan = echo});
      const std::span<std::int32_t> loads = echo.load_after.span<std::int32_t>();
      all.insert(all.end(), loads.begin(), loads.end());
    }
  }
  return all;
}

TEST(EchoBudgets, DroppedPairsAndTheLeastFactorAreThoseOfThePlan) {
  const MoeGrid grid{4, 1, 1, 4, 1};
  config::RunConfig recipe = echo_budget_config(grid, {.factor = "1.05", .overflow = "drop"});
  recipe.train.steps = 1;
  const config::RunPlan drop = config::resolve(recipe);
  support::KeptDecisions decisions(drop, nn::RouterDecisions::Use::record);
  const EchoBudgetRun worst = [&] {
    config::RunConfig roomy = recipe;
    roomy.moe.rank_capacity_factor = "worst";
    return budget_run(config::resolve(roomy), &decisions);
  }();
  const std::vector<std::int32_t> loads = planned_loads(drop, decisions, 0);
  const Index even = drop.train.micro_batch * drop.model.seq_len * kEchoTopK, room = ops::rows_of_factor(even, 1050);
  const Index plans = std::ssize(loads) / drop.model.num_layers;
  const EchoBudgetRun dropped = budget_run(drop);
  Index all = 0;
  for (Index layer = 0; layer < drop.model.num_layers; ++layer) {
    Index beyond = 0;
    for (Index i = layer * plans; i < (layer + 1) * plans; ++i)
      beyond += std::max<Index>(0, loads[static_cast<std::size_t>(i)] - room);
    if (layer == 0) {  // later layers see other rows
      EXPECT_EQ(dropped.reports[0].layers[0].dropped, beyond);
    }
    EXPECT_EQ(worst.reports[0].layers[static_cast<std::size_t>(layer)].dropped, 0);
    all += beyond;
  }
  EXPECT_GT(all, 0);
  EXPECT_EQ(dropped.reruns, std::vector<bool>(1, false));

  recipe.moe.overflow = "abort";
  const Index needed = *std::ranges::max_element(loads);
  const std::string least = nn::RankCapacity{ops::factor_for_rows(needed, even)}.text();
  // Later layers of a step that aborts have seen fewer rows.
  EXPECT_THAT(budget_run(config::resolve(recipe)).error,
              ::testing::ContainsRegex("\\[step 1\\] moe.rank_capacity_factor = 1.05: a rank of experts needs [0-9]+ "
                                       "rows, and has room for 135; for this step 1.[0-9]+ suffices"));
  recipe.moe.rank_capacity_factor = least;
  EXPECT_EQ(budget_run(config::resolve(recipe)).error, "");
  recipe.moe.rank_capacity_factor = nn::RankCapacity{ops::factor_for_rows(needed, even) - 1}.text();
  EXPECT_THAT(budget_run(config::resolve(recipe)).error, ::testing::HasSubstr(str("; for this step ", least)));
}

TEST(EchoBudgets, PlansTakeLessForFewerRowsAndNothingForRounds) {
  for (const MoeGrid& grid : kEchoBudgetGrids) {
    for (const char* weights : {"keep", "redispatch"}) {
      SCOPED_TRACE(str(grid.name(), ' ', weights));
      const auto bytes = [&](const char* factor, const char* overflow) {
        return train::planned_bytes(config::resolve(echo_budget_config(
                                        grid, {.factor = factor, .overflow = overflow, .weights = weights}, "bf16")),
                                    0);
      };
      const BytesByOwner worst = bytes("worst", "rerun"), least = bytes("1.25", "rerun"), drop = bytes("1.25", "drop");
      EXPECT_LT(train::expert_rows_in(least), train::expert_rows_in(worst));
      EXPECT_LT(total(least), total(worst));
      EXPECT_EQ(total(least), total(drop)) << "rounds fit in the memory of other passes";
    }
  }
}

}  // namespace
}  // namespace megalith
