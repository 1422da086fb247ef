#include "megalith/report/plan_report.h"

#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/text.h"
#include "megalith/train/engine.h"
#include "megalith/train/expert_rows.h"

namespace megalith::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

config::RunPlan plan_of(std::vector<std::string> settings, int ranks = 0) {
  const char* const recipe =
      "[model]\nnum_layers = 16\nhidden_size = 64\nnum_heads = 4\nseq_len = 32\n[train]\nsteps = 1\nglobal_batch = "
      "64\nmicro_batch = 2\n[data]\ntokenizer = \"byte\"\ntrain = \"text.txt\"\n";
  return config::resolve(config::parse_recipe(recipe, "r.toml", settings), ranks);
}

std::string text_of(const config::RunPlan& plan) { return plan_text(plan, plan_ranks(plan)); }

/// A rank that takes so many GiB, of parameters alone.
BytesByOwner gib(double parameters) {
  return {{"parameters", static_cast<Index>(parameters * 0x1p30)}, {"scratch", Index{0}}};
}

TEST(PlanReport, EqualRanksShareARowInUnitsForPeople) {
  const config::RunPlan plan = plan_of({"parallel.tp=2", "parallel.pp=2"}, 8);
  const PlannedRanks planned = plan_ranks(plan);
  const std::string text = plan_text(plan, planned);
  EXPECT_THAT(text, HasSubstr("grid tp 2 pp 2 dp 2, 8 ranks, " + model::parameters_text(plan.model) + ", "));
  EXPECT_THAT(text, HasSubstr("16 microbatches a step: global_batch 64 = 16 x micro_batch 2 x dp 2\n"));
  EXPECT_THAT(text,
              ::testing::ContainsRegex("\nranks +parameters +gradients +optimizer +activations +others +total\n"));
  EXPECT_THAT(text, HasSubstr("\n  0-3  "));
  EXPECT_THAT(text, HasSubstr("\n  4-7  "));
  const BytesByOwner& first = planned.ranks.front();
  EXPECT_THAT(text, HasSubstr("largest: rank 0, " + human_bytes(total(first)) + ": "));
  EXPECT_THAT(text, HasSubstr("activations " + human_bytes(first.at("activations"))));
  Index sum = 0;
  for (const BytesByOwner& rank : planned.ranks) sum += total(rank);
  EXPECT_THAT(text, HasSubstr("sum of all ranks: " + human_bytes(sum) + "\n"));
}

TEST(PlanReport, RanksOfTheSameMemoryNeedNotBeNeighbours) {
  const config::RunPlan plan = plan_of({"parallel.pp=2", "parallel.order=pp-tp-cp-ep-dp"}, 4);
  EXPECT_THAT(text_of(plan), HasSubstr("\n 0, 2  "));
  EXPECT_THAT(text_of(plan), HasSubstr("\n 1, 3  "));
}

TEST(PlanReport, SaysWhatTheOptimizerTakesTheOtherWay) {
  const config::RunPlan whole = plan_of({}, 4), sharded = plan_of({"optimizer.distributed=true"}, 4);
  const PlannedRanks of_whole = plan_ranks(whole), of_sharded = plan_ranks(sharded);
  ASSERT_TRUE(of_whole.other_sharding && of_sharded.other_sharding);
  EXPECT_EQ(*of_whole.other_sharding, of_sharded.ranks.front());
  EXPECT_EQ(*of_sharded.other_sharding, of_whole.ranks.front());
  const std::string much = human_bytes(of_whole.ranks.front().at("optimizer")),
                    little = human_bytes(of_sharded.ranks.front().at("optimizer"));
  EXPECT_THAT(plan_text(whole, of_whole),
              HasSubstr("optimizer of rank 0: " + much + "; with optimizer.distributed = true (dp 4) " + little));
  EXPECT_THAT(plan_text(sharded, of_sharded),
              HasSubstr("optimizer of rank 0: " + little + "; with optimizer.distributed = false (dp 4) " + much));
  EXPECT_THAT(text_of(plan_of({"parallel.tp=2"})), Not(HasSubstr("optimizer.distributed"))) << "one model copy";
}

TEST(PlanReport, PricesShardedGradientsInBytesThatAStepSends) {
  const std::vector<std::string> distributed = {"optimizer.distributed=true"};
  const config::RunPlan moments = plan_of(distributed, 4);
  config::RunPlan gradients = moments;
  gradients.optimizer.shard = ShardedState::gradients;
  const PlannedRanks of_moments = plan_ranks(moments), of_gradients = plan_ranks(gradients);
  ASSERT_EQ(of_moments.by_shard.size(), 2u);
  const train::RankCost &whole = of_moments.by_shard[0], &sharded = of_moments.by_shard[1];
  EXPECT_EQ(whole.bytes, of_moments.ranks.front());
  EXPECT_EQ(sharded.bytes, of_gradients.ranks.front());
  // 16 layers of 12 * 64^2 weights, in 8 microbatches on each of 4 ranks.
  const Index weights = Index{16} * 12 * 64 * 64 * 4;
  EXPECT_EQ(sharded.sums_sent - whole.sums_sent, 7 * weights / 4 * 3);
  EXPECT_EQ(whole.sums_sent, whole.bytes.at("gradients") / 4 * 3);
  const Index much = whole.bytes.at("gradients"),
              little = sharded.bytes.at("gradients") + sharded.bytes.at("gradient windows");
  EXPECT_EQ(much - little, weights / 4 * 3 - 2 * weights / 16);
  EXPECT_THAT(
      plan_text(moments, of_moments),
      HasSubstr("gradients of rank 0: " + human_bytes(much) + ", sums over dp send " + human_bytes(whole.sums_sent) +
                " a step; with optimizer.shard = gradients " + human_bytes(little) + ", sums send " +
                human_bytes(sharded.sums_sent) + ", the rank then " + human_bytes(total(sharded.bytes)) + "\n"));
  EXPECT_THAT(plan_text(gradients, of_gradients),
              HasSubstr("gradients of rank 0: " + human_bytes(little) + ", sums over dp send " +
                        human_bytes(sharded.sums_sent) + " a step; with optimizer.shard = moments "));
  const nlohmann::json report = nlohmann::json::parse(plan_json(gradients, of_gradients));
  EXPECT_EQ(report.at("shard").at(1).at("optimizer.shard"), "gradients");
  EXPECT_EQ(report.at("shard").at(1).at("sums_sent"), sharded.sums_sent);
  EXPECT_EQ(report.at("shard").at(0).at("total"), total(whole.bytes));
  EXPECT_THAT(text_of(plan_of({}, 4)), Not(HasSubstr("optimizer.shard")));
  EXPECT_THAT(text_of(plan_of({"optimizer.distributed=true", "optimizer.type=muon"}, 4)),
              Not(HasSubstr("optimizer.shard")));
}

TEST(PlanReport, SaysWhichGpusHoldTheLargestRank) {
  const config::RunPlan plan = plan_of({}, 2);
  const auto text = [&](double most) { return plan_text(plan, {{gib(1), gib(most)}}); };
  EXPECT_THAT(text(78), HasSubstr("largest: rank 1, 78.00 GiB: parameters 78.00 GiB\n"));
  EXPECT_THAT(text(78), HasSubstr("\nfits a GPU of 80 GB: 102.40 MiB left beside 1 GiB for CUDA and NCCL\n"));
  EXPECT_THAT(text(79), HasSubstr("\ndoes not fit a GPU of 80 GB: 921.60 MiB missing"));
  EXPECT_THAT(text(79), HasSubstr("\nfits a GPU of 141 GB: 59.80 GiB left"));
  EXPECT_THAT(text(139), HasSubstr("\ndoes not fit a GPU of 141 GB: "));
}

TEST(PlanReport, SaysWhatEachRecomputationTakes) {
  const config::RunPlan plan = plan_of({"parallel.pp=2"});
  const PlannedRanks planned = plan_ranks(plan);
  const auto choices = train::recompute_choices(plan);
  ASSERT_EQ(planned.by_recompute.size(), choices.size());
  EXPECT_EQ(planned.by_recompute[0], planned.ranks[planned.largest()]);
  EXPECT_THAT(plan_text(plan, planned), HasSubstr("recompute  repeated FLOPs  activations"));
  for (std::size_t i = 1; i < choices.size(); ++i) {
    const BytesByOwner& bytes = planned.by_recompute[i];
    EXPECT_LT(bytes.at("activations"), planned.by_recompute[i - 1].at("activations")) << choices[i].name;
    const config::RunPlan asked = train::with_recompute(plan, choices[i].config);
    const PlannedRanks again = plan_ranks(asked);
    EXPECT_EQ(bytes, again.ranks[again.largest()]) << choices[i].name;
    EXPECT_THAT(plan_text(plan, planned), HasSubstr(human_bytes(bytes.at("activations")))) << choices[i].name;
  }
  const nlohmann::json report = nlohmann::json::parse(plan_json(plan, planned));
  EXPECT_EQ(report.at("recompute").back().at("recompute"), "full");
  EXPECT_EQ(report.at("recompute").back().at("total"), total(planned.by_recompute.back()));
}

TEST(PlanReport, PlansOneRankOfAStageForAllAndFewStagesForEachRecomputation) {
  const std::vector<std::vector<std::string>> grids = {
      {"parallel.pp=8", "parallel.tp=2", "optimizer.distributed=true"},
      {"parallel.pp=4", "parallel.chunks=2", "parallel.stage_layers=[0,3,1,2,4,3,2,1]"},
      {"parallel.pp=4", "parallel.chunks=4", "parallel.tp=2", "parallel.sequence_parallel=true"},
      {"parallel.pp=4", "moe.num_experts=8", "moe.pattern=ddmdd", "parallel.ep=2", "parallel.etp=1"},
      {"parallel.pp=4", "moe.num_experts=8", "moe.pattern=dddddddddmm", "parallel.tp=2",
       "parallel.order=pp-tp-cp-ep-dp"},
  };
  for (const std::vector<std::string>& settings : grids) {
    const config::RunPlan plan = plan_of(settings, 16);
    const PlannedRanks planned = plan_ranks(plan);
    ASSERT_EQ(planned.ranks.size(), 16u);
    for (int rank = 0; rank < 16; ++rank)
      EXPECT_EQ(planned.ranks[static_cast<std::size_t>(rank)], train::planned_bytes(plan, rank)) << rank;
    for (std::size_t i = 0; i < planned.by_recompute.size(); ++i) {
      const config::RunPlan other = train::with_recompute(plan, train::recompute_choices(plan)[i].config);
      Index most = 0;
      for (int rank = 0; rank < 16; ++rank) most = std::max(most, total(train::planned_bytes(other, rank)));
      EXPECT_EQ(total(planned.by_recompute[i]), most) << settings[1] << ", " << train::recompute_choices(plan)[i].name;
    }
  }
}

// Experts keep no activation, so recomputing it would take nothing less.
TEST(PlanReport, OffersNoRecomputationThatDoesNothing) {
  const auto offered = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"moe.num_experts=4", "model.num_layers=2"});
    const config::RunPlan plan = plan_of(std::move(settings));
    const nlohmann::json report = nlohmann::json::parse(plan_json(plan, plan_ranks(plan)));
    std::vector<std::string> names;
    for (const nlohmann::json& row : report.at("recompute")) names.push_back(row.at("recompute").get<std::string>());
    return names;
  };
  EXPECT_THAT(offered({}),
              ::testing::ElementsAre("none", "norms", "norms, attention", "norms, attention, mlp", "full"));
  for (const char* has_mlps : {"moe.pattern=dm", "moe.shared_ffn_hidden_size=8"})
    EXPECT_THAT(offered({has_mlps}), ::testing::ElementsAre("none", "gelu, norms", "gelu, norms, attention",
                                                            "norms, attention, mlp", "full"));
}

// Each of them takes less of the rows than the one before, and repeats no FLOPs for rows that are fetched.
TEST(PlanReport, PricesTheRowsOfExpertsThatRanksExchange) {
  for (const char* dispatcher : {"peer", "all_to_all"}) {
    const config::RunPlan plan =
        plan_of({"moe.num_experts=4", "model.num_layers=2", "parallel.ep=2", str("moe.dispatcher=", dispatcher)}, 2);
    const PlannedRanks planned = plan_ranks(plan);
    const nlohmann::json report = nlohmann::json::parse(plan_json(plan, planned)).at("recompute");
    std::vector<std::string> names;
    std::vector<Index> rows;
    for (const nlohmann::json& row : report) {
      names.push_back(row.at("recompute").get<std::string>());
      rows.push_back(row.at("expert_rows").get<Index>());
    }
    ASSERT_THAT(names, ::testing::ElementsAre("none", "dispatch", "norms, dispatch", "norms, attention, dispatch",
                                              "norms, attention, mlp, dispatch", "full"));
    // Per layer and microbatch the rows that arrive [M, H], and those of the first GEMM [M, F].
    const Index width = plan.model.hidden_size, up = plan.model.moe.ffn_hidden_size;
    EXPECT_EQ(rows[0] - rows[1], rows[0] / (width + up) * width) << "H of H + F";
    EXPECT_EQ(rows[2], rows[1]);
    EXPECT_EQ(rows[4], 0) << "nothing of experts is kept";
    EXPECT_THAT(plan_text(plan, planned), HasSubstr("recompute  repeated FLOPs  activations  expert rows     scratch"));
    EXPECT_THAT(plan_text(plan, planned), HasSubstr("dispatch             0 %"));
  }
}

TEST(PlanReport, PricesASlotOfClones) {
  const auto plan = [](int slots, const char* weights) {
    std::vector<std::string> settings = {
        "parallel.ep=2",          "moe.num_experts=8",          "moe.top_k=2",
        "moe.ffn_hidden_size=64", "moe.rank_capacity_factor=2", "train.precision=fp32"};
    if (slots > 0) {
      settings.push_back("moe.echo.slots=" + std::to_string(slots));
      settings.push_back(std::string("moe.echo.weights=") + weights);
    }
    return plan_of(settings, 2);
  };
  const auto bytes = [&](int slots, const char* weights) {
    return total(plan_each_rank(plan(slots, weights)).front());
  };
  for (const char* const weights : {"keep", "redispatch"}) {
    const Index slot = bytes(3, weights) - bytes(2, weights);
    const std::string other = weights == std::string("keep") ? "redispatch" : "keep", text = text_of(plan(3, weights));
    EXPECT_THAT(text, HasSubstr("clones of experts: moe.echo.slots = 3; a slot takes " + human_bytes(slot) +
                                " of rank 0 (moe.echo.weights = " + weights + "); with " + other + " the rank takes " +
                                human_bytes(bytes(3, other.c_str())) + "\n"));
    const auto report = nlohmann::json::parse(plan_json(plan(3, weights), plan_ranks(plan(3, weights))));
    EXPECT_EQ(report.at("echo"), (nlohmann::json{{"slots", 3},
                                                 {"weights", weights},
                                                 {"bytes_per_slot", slot},
                                                 {"total_with_" + other, bytes(3, other.c_str())}}));
  }
  // The matrices of one expert in f32: the weights in each of 16 layers, and gradients of one layer, or of a matrix.
  const Index expert = 2 * 64 * 64 * 4, slot = bytes(3, "keep") - bytes(2, "keep");
  EXPECT_GT(slot, 16 * expert);
  EXPECT_LE(slot, 17 * expert);
  EXPECT_THAT(text_of(plan(0, "")), Not(HasSubstr("clones of experts")));
}

TEST(PlanReport, NamesTheRecomputationThatFitsAndRepeatsLeast) {
  const config::RunPlan plan = plan_of({});
  const auto text = [&](const std::vector<BytesByOwner>& by_recompute) {
    return plan_text(plan, {.ranks = {gib(200)}, .by_recompute = by_recompute});
  };
  const std::string none = text({gib(200), gib(190), gib(180), gib(175), gib(170)});
  EXPECT_THAT(none, Not(HasSubstr("fits with")));
  const std::string some = text({gib(200), gib(130), gib(120), gib(110), gib(70)});
  EXPECT_THAT(some, HasSubstr("does not fit a GPU of 80 GB: 121.90 GiB missing beside 1 GiB for CUDA and NCCL; fits "
                              "with recompute.mode = full\n"));
  EXPECT_THAT(some, HasSubstr("; fits with recompute.mode = selective, recompute.modules = [gelu, norms]\n"));
}

TEST(PlanReport, AScreenHolds64Ranks) {
  const config::RunPlan stages = plan_of({"parallel.pp=16", "train.global_batch=256"}, 64);
  const std::string text = text_of(stages);
  EXPECT_LE(std::ranges::count(text, '\n'), 24) << text;
  std::istringstream lines(text.substr(0, text.find("\nlargest")));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_THAT(text, HasSubstr("\n  0-3  "));
  EXPECT_THAT(text, HasSubstr("others take "));
  EXPECT_THAT(text, HasSubstr(" or less: --format json lists every rank\n"));
}

TEST(PlanReport, JsonHasEveryRank) {
  const config::RunPlan plan = plan_of({"parallel.pp=16", "train.global_batch=256"}, 64);
  const PlannedRanks planned = plan_ranks(plan);
  const nlohmann::json report = nlohmann::json::parse(plan_json(plan, planned));
  ASSERT_EQ(report.at("ranks").size(), 64u);
  Index sum = 0, most = 0;
  for (const nlohmann::json& rank : report.at("ranks")) {
    Index total = 0;
    for (const nlohmann::json& bytes : rank.at("bytes")) total += bytes.get<Index>();
    EXPECT_EQ(rank.at("total"), total);
    sum += total;
    most = std::max(most, total);
  }
  EXPECT_EQ(report.at("padding"), model::count_padding(plan.model));
  EXPECT_EQ(report.at("parameters").get<Index>() + report.at("padding").get<Index>(),
            model::count_parameters(plan.model));
  EXPECT_EQ(report.at("sum"), sum);
  EXPECT_EQ(report.at("largest").at("total"), most);
  EXPECT_EQ(report.at("ranks").at(report.at("largest").at("rank").get<std::size_t>()).at("total"), most);
  EXPECT_EQ(report.at("microbatches"), 32);
  EXPECT_EQ(report.at("other_sharding").at("optimizer.distributed"), true);
  EXPECT_EQ(report.at("fits").at(0).at("gb"), 80);
}

TEST(PlanReport, WhatDoesNotFitBecauseOfExpertRowsNamesTheKeys) {
  const std::vector<std::string> experts = {"moe.num_experts=8", "parallel.ep=4", "parallel.etp=1"};
  const auto with = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), experts.begin(), experts.end());
    return plan_of(settings);
  };
  const auto text = [&](const config::RunPlan& plan, double rows, double others) {
    BytesByOwner bytes = gib(others);
    bytes["expert rows"] = static_cast<Index>(rows * 0x1p30);
    return plan_text(plan, {{bytes}});
  };
  const config::RunPlan plan = with({"moe.rank_capacity_factor=worst"}), usual = with({});
  const Index now = plan_ranks(plan).ranks.front().at("expert rows");
  const Index limited = plan_ranks(usual).ranks.front().at("expert rows");
  ASSERT_LT(limited, now);
  const config::RunPlan padded = with({"moe.capacity=pad", "moe.capacity_factor=1.25"});
  const Index then = plan_ranks(padded).ranks.front().at("expert rows");
  ASSERT_LT(then, now);
  EXPECT_THAT(
      text(plan, 40, 50),
      HasSubstr("GiB missing beside 1 GiB for CUDA and NCCL; of this, expert rows take 40.00 GiB, for the case "
                "that all tokens choose the experts of one rank: moe.rank_capacity_factor = 2 takes " +
                human_bytes(limited) + ", moe.capacity = pad with moe.capacity_factor = 1.25 takes " +
                human_bytes(then) + ", and a smaller train.micro_batch takes less in proportion\nfits a GPU of 141"));
  EXPECT_THAT(text(padded, 40, 50),
              HasSubstr("of this, expert rows take 40.00 GiB: a moe.capacity_factor below 1.25 or "
                        "a smaller train.micro_batch takes less in proportion\n"));
  EXPECT_THAT(text(plan, 200, 100), HasSubstr("of this, expert rows")) << "nothing takes more";
  EXPECT_THAT(text(plan, 5, 100), Not(HasSubstr("does not fit a GPU of 80 GB: 26.90 GiB missing beside 1 GiB for CUDA "
                                                "and NCCL; of this")))
      << "would not fit without them";
  EXPECT_THAT(text(plan, 5, 60), Not(HasSubstr("of this"))) << "fits";
  const auto planned = [](const config::RunPlan& p) { return train::planned_bytes(p, 0); };
  EXPECT_EQ(train::expert_rows_advice(usual, plan_ranks(usual).ranks.front(), planned, 1),
            "; of this, expert rows take " + human_bytes(limited) +
                ": moe.capacity = pad with moe.capacity_factor = 1.25 takes " + human_bytes(then) +
                ", and a smaller train.micro_batch takes less in proportion");
  // Where no capacity takes less: one rank has exactly the rows that its tokens choose.
  const config::RunPlan alone = plan_of({"moe.num_experts=8"});
  const BytesByOwner bytes = plan_ranks(alone).ranks.front();
  EXPECT_EQ(train::expert_rows_advice(alone, bytes, planned, 1),
            "; of this, expert rows take " + human_bytes(bytes.at("expert rows")) +
                ": a smaller train.micro_batch takes less in proportion");
}

}  // namespace
}  // namespace megalith::apps
