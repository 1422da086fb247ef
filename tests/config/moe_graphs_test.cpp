#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/str.h"
#include "megalith/config/moe_rules.h"

#include "tests/config/moe_recipe.h"

// Graphs of models with experts: what is refused names a way that is legal.
namespace megalith::config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Settings = std::vector<std::string>;

Settings both(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Settings of_steps(const Settings& more) { return both({"graphs.mode=iteration"}, more); }

/// The graphs of layers that a message advises, as settings.
Settings advised_layers(const std::string& problem) {
  constexpr std::string_view kBegin = "or use graphs.mode = layers, with graphs.scopes = ";
  const std::size_t begin = problem.find(kBegin);
  if (begin == std::string::npos) return {"nothing is advised"};
  const std::string scopes = problem.substr(begin + kBegin.size());
  return {"graphs.mode=layers", "graphs.scopes=" + scopes.substr(0, scopes.find(']') + 1)};
}

const Settings kMany = {"moe.num_experts=32", "parallel.ep=16", "parallel.ranks=16"};
const Settings kSlices = {"moe.num_experts=32", "parallel.ep=8", "parallel.etp=2", "parallel.tp=1",
                          "parallel.ranks=16"};
const Settings kKernels = {"device.type=cuda", "train.precision=bf16", "parallel.transfers=kernels", "parallel.ep=2"};
const Settings kPad = {"moe.capacity=pad", "moe.capacity_factor=1"}, kEager = {"graphs.mode=none"};

struct Refused {
  Settings settings;
  const char* text;
  std::vector<Settings> fixes;  ///< beside graphs of layers
};

TEST(MoeGraphs, EveryFixThatARefusedStepNamesIsAccepted) {
  const std::vector<Refused> all = {
      {kKernels,
       "between ranks of one host moe.dispatcher = peer and parallel.transfers = copy_engines need no such numbers; "
       "moe.capacity = pad",
       {kPad, {"parallel.transfers=copy_engines"}, {"moe.dispatcher=peer", "parallel.transfers=copy_engines"}}},
      {both(kKernels, {"moe.dispatcher=all_to_all"}),
       "moe.dispatcher = peer and parallel.transfers = copy_engines need no such numbers",
       {kPad, {"moe.dispatcher=peer", "parallel.transfers=copy_engines"}}},
      {kMany,
       "; at most 8 ranks may read each other's rows instead, and 16 exchange them; moe.capacity = pad makes",
       {kPad, {"parallel.ep=8"}}},
      {kSlices,
       "; at most 8 ranks may read each other's rows instead, and 16 exchange them; moe.capacity = pad makes",
       {kPad, {"parallel.ep=4", "parallel.etp=2"}}},
      {{"parallel.ep=2", "moe.dispatcher=all_to_all"},
       "moe.dispatcher = peer needs no",
       {kPad, {"moe.dispatcher=peer"}}},
      {{"parallel.ep=2", "moe.echo.slots=2", "moe.dispatcher=all_to_all", "moe.echo.backend=host_sized"},
       "moe.dispatcher = peer and moe.echo.backend = auto need no such numbers; or use graphs.mode = layers",
       {{"moe.dispatcher=peer", "moe.echo.backend=auto"}}},
      {{"moe.replay=FILE"}, "the host reads moe.replay in every pass; or use graphs.mode = layers", {}},
      {{"moe.replay=FILE", "moe.pattern=dm"}, "graphs.scopes = [\"attn\", \"mlp\"], or", {}},
      {{"moe.replay=FILE", "moe.pattern=dm", "recompute.mode=full", "recompute.layers=2", "parallel.ep=2"},
       "graphs.scopes = [\"attn\"], or",
       {}},
      {{"device.type=cuda", "train.precision=fp32"}, "for moe.gemm = loop", {kPad, {"train.precision=bf16"}}},
      {{"parallel.ep=2", "moe.dispatcher=all_to_all", "recompute.mode=full"}, "graphs.scopes = [\"attn\"], or", {kPad}},
  };
  for (const Refused& refused : all) {
    const Settings settings = of_steps(refused.settings);
    const std::string problem = problem_with(settings);
    SCOPED_TRACE(problem);
    EXPECT_THAT(problem, HasSubstr("r.toml: 1 problem\n  graphs.mode = iteration: "));
    EXPECT_THAT(problem, HasSubstr(refused.text));
    EXPECT_EQ(problem_with(both(settings, kEager)), "");
    EXPECT_EQ(problem_with(both(settings, advised_layers(problem))), "");
    for (const Settings& fix : refused.fixes) EXPECT_EQ(problem_with(both(settings, fix)), "") << fix.front();
  }
  const std::string with_optimizer = problem_with(of_steps(both(kMany, {"graphs.optimizer=true"})));
  EXPECT_THAT(with_optimizer, HasSubstr("] and without graphs.optimizer, or graphs.mode = none"));
}

TEST(MoeGraphs, PeersThatCannotBeAreNotToldToSendRowsInGraphsOfSteps) {
  const std::string problem = problem_with(of_steps(both(kMany, {"moe.dispatcher=peer"})));
  EXPECT_THAT(problem, HasSubstr("make it 16; or use moe.dispatcher = auto with moe.capacity = pad or graphs.mode = "
                                 "none"));
  EXPECT_EQ(problem_with(of_steps(both(kMany, both({"moe.dispatcher=auto"}, kPad)))), "");
  EXPECT_THAT(problem_with(both(kMany, {"moe.dispatcher=peer"})), HasSubstr("use moe.dispatcher = auto or all_to_all"));
}

TEST(MoeGraphs, StepsArePeersWhereTheyMayBe) {
  using enum nn::ExpertDispatcher;
  EXPECT_EQ(plan_with_experts(of_steps({"parallel.ep=2"})).model.moe.dispatcher, peer);
  EXPECT_EQ(plan_with_experts(of_steps(both({"parallel.ep=2"}, kPad))).model.moe.dispatcher, automatic);
  EXPECT_EQ(plan_with_experts({"parallel.ep=2"}).model.moe.dispatcher, automatic);
  EXPECT_EQ(iteration_plan(plan_with_experts({"parallel.ep=2"})).model.moe.dispatcher, peer);
  EXPECT_EQ(iteration_plan(plan_with_experts(kMany)).model.moe.dispatcher, automatic);
  EXPECT_EQ(iteration_plan(plan_with_experts(kSlices)).model.moe.dispatcher, automatic);
}

TEST(MoeGraphs, ScopesWithSizesNameTheSettingsThatKeepThemOnTheDevice) {
  const Settings layers = {"graphs.mode=layers", "parallel.ep=2"};
  for (const char* scopes : {"graphs.scopes=moe", "graphs.scopes=[]"}) {
    const Settings settings = both(layers, {scopes});
    EXPECT_THAT(problem_with(settings), HasSubstr("; pad experts to a capacity, set moe.dispatcher = peer, or "));
    EXPECT_EQ(problem_with(both(settings, {"moe.dispatcher=peer"})), "");
    EXPECT_EQ(problem_with(both(settings, kPad)), "");
    const Settings clones = both(settings, {"moe.echo.slots=2", "moe.echo.backend=host_sized"});
    EXPECT_THAT(problem_with(clones), HasSubstr("; set moe.dispatcher = peer and moe.echo.backend = auto, or "));
    EXPECT_THAT(problem_with(clones), Not(HasSubstr("pad experts")));
    EXPECT_EQ(problem_with(both(clones, {"moe.dispatcher=peer", "moe.echo.backend=auto"})), "");
    const Settings many = both(both(layers, kMany), {scopes});
    EXPECT_THAT(problem_with(many), HasSubstr("; pad experts to a capacity, or "));
  }
}

TEST(MoeGraphs, ScopesThatCannotBeReadAreOneProblem) {
  for (const char* scopes :
       {"[\"moee\"]", "[\"full\", \"attn\"]", "[\"full_iteration\"]", "[\"moe_router\", \"bogus\"]"})
    for (const char* replay : {"moe.replay=", "moe.replay=FILE"})
      EXPECT_THAT(problem_with({"graphs.mode=layers", "parallel.ep=2", replay, str("graphs.scopes=", scopes)}),
                  HasSubstr("r.toml: 1 problem\n  graphs.scopes = ["))
          << scopes;
}

TEST(MoeGraphs, KeysOfPeersAreIdleWhereRowsAreSent) {
  const auto warnings = [](const Settings& settings) { return plan_with_experts(settings).warnings(); };
  const Settings keys = {"moe.rank_capacity_factor=8", "moe.overflow=abort", "moe.overlap=true"};
  const std::string many = "does nothing with more than 8 ranks that exchange rows of experts: they send them";
  for (const Settings& grid : {kMany, kSlices})
    EXPECT_THAT(warnings(both(grid, keys)),
                ::testing::ElementsAre("moe.rank_capacity_factor = 8: " + many, "moe.overflow = abort: " + many,
                                       "moe.overlap = true: " + many));
  EXPECT_THAT(
      warnings(both(kKernels, keys)),
      ::testing::Contains("moe.overlap = true: does nothing with parallel.transfers = kernels, where ranks send "
                          "rows of experts"));
  EXPECT_THAT(warnings({"parallel.ep=2", "moe.dispatcher=all_to_all", "moe.overlap=true"}),
              ::testing::ElementsAre("moe.overlap = true: does nothing with moe.dispatcher = all_to_all"));
  EXPECT_THAT(warnings(both({"parallel.ep=2"}, keys)), ::testing::IsEmpty());
  for (const Settings& grid : {kMany, kSlices})
    EXPECT_THAT(resolve(plan_with_experts(grid).as_config()).warnings(), ::testing::IsEmpty()) << "of a checkpoint";
}

TEST(MoeRecipe, AFactorOfRowsMayBeANumber) {
  const auto problem = [](const std::string& value) { return problem_with({"moe.rank_capacity_factor=" + value}); };
  EXPECT_THAT(problem("[2]"), HasSubstr("moe.rank_capacity_factor = [ 2 ]: must be a number or a text in quotes"));
  EXPECT_THAT(problem_with({"train.batch_ramp=[2]"}), HasSubstr("train.batch_ramp = [ 2 ]: must be a text in quotes"));
}

}  // namespace
}  // namespace megalith::config
