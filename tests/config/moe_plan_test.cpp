#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/config/moe_rules.h"

#include "tests/config/moe_recipe.h"

// What is derived from recipes of models with experts: defaults, room for rows, facts for graphs.
namespace megalith::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MoePlan, DefaultsAreFilledIn) {
  const RunPlan plan = plan_with_experts();
  EXPECT_EQ(plan.model.moe.top_k, 2);
  EXPECT_EQ(plan.model.moe.ffn_hidden_size, 256);
  EXPECT_EQ(plan.model.moe.aux_loss, 0.01);
  EXPECT_EQ(plan.model.moe_layers(), (std::vector<Index>{0, 1, 2, 3}));
  EXPECT_EQ(plan.grid.ep, 1);
  EXPECT_EQ(plan.model.moe.dispatcher, nn::ExpertDispatcher::automatic);
  EXPECT_EQ(plan_with_experts({"device.type=cuda", "moe.dispatcher=auto"}).model.moe.dispatcher,
            nn::ExpertDispatcher::automatic);
  EXPECT_EQ(plan_with_experts({"device.type=cuda", "parallel.ep=2", "parallel.pp=2"}).model.moe.dispatcher,
            nn::ExpertDispatcher::automatic);
  EXPECT_EQ(plan_with_experts({"graphs.mode=iteration", "parallel.ep=2"}).model.moe.dispatcher,
            nn::ExpertDispatcher::peer);
  EXPECT_EQ(plan_with_experts({"graphs.mode=iteration", "parallel.ep=2", "moe.capacity=pad", "moe.capacity_factor=1"})
                .model.moe.dispatcher,
            nn::ExpertDispatcher::automatic);
  EXPECT_EQ(plan_with_experts({"device.type=cuda", "moe.dispatcher=peer", "parallel.ep=2"}).model.moe.dispatcher,
            nn::ExpertDispatcher::peer);
  EXPECT_EQ(plan_with_experts({"moe.dispatcher=peer", "parallel.ep=8", "parallel.tp=2"}).model.moe.dispatcher,
            nn::ExpertDispatcher::peer)
      << "each of 2 tensor-parallel ranks exchanges rows with 8";
  EXPECT_EQ(plan_with_experts({"moe.pattern=dm"}).model.moe_layers(), (std::vector<Index>{1, 3}));
  EXPECT_EQ(plan_with_experts({"moe.expert_bias_rate=0.001", "moe.score=sigmoid"}).model.moe.aux_loss, 0);
  for (const RunPlan& one : {plan, plan_with_experts({"moe.capacity=drop", "moe.capacity_factor=1.25"}),
                             plan_with_experts({"moe.capacity=pad", "moe.capacity_factor=1", "moe.capacity_run=16"})})
    EXPECT_EQ(to_toml(resolve(one.as_config()).as_config()), to_toml(one.as_config()));
}

TEST(MoePlan, EchoHasATableOfItsOwn) {
  const nn::EchoConfig none = plan_with_experts().model.moe.echo;
  EXPECT_EQ(none.slots, 0);
  const std::string table = std::string(kExperts) + "[moe.echo]\nslots = 3\n[parallel]\nep = 2\n";
  for (const RunPlan& plan :
       {resolve(read_recipe(table, "r.toml", {})), plan_with_experts({"moe.echo.slots=3", "parallel.ep=2"})}) {
    const nn::EchoConfig& echo = plan.model.moe.echo;
    EXPECT_EQ(echo.slots, 3);
    EXPECT_EQ(echo.min_pairs, 1024);
    EXPECT_EQ(echo.balance, ops::EchoBalance::greedy);
    EXPECT_EQ(echo.weights, nn::EchoWeights::automatic);
    EXPECT_EQ(echo.backend, nn::EchoBackend::automatic);
    EXPECT_TRUE(echo.overlap);
    EXPECT_EQ(echo.check_plan, 0);
    EXPECT_THAT(plan.warnings(), ::testing::IsEmpty());
    EXPECT_EQ(to_toml(resolve(plan.as_config()).as_config()), to_toml(plan.as_config()));
  }
  EXPECT_EQ(plan_with_experts({"moe.echo.slots=3", "moe.echo.balance=exact"}).model.moe.echo.min_pairs, 0);
  EXPECT_THAT(problem_with({"moe.echo={slots=2, slotz=1}"}), HasSubstr("moe.echo"));
}

TEST(MoePlan, RanksAreTheLeastThatBothGridsDivide) {
  EXPECT_EQ(plan_with_experts({"parallel.tp=2", "parallel.etp=1", "parallel.ep=4"}).grid.world_size, 4);
  EXPECT_EQ(plan_with_experts({"parallel.tp=2", "parallel.etp=1", "parallel.ep=8", "parallel.pp=2"}).grid.world_size,
            16);
  EXPECT_EQ(plan_with_experts({"parallel.tp=4", "parallel.etp=1", "parallel.ep=2"}).grid.edp, 2);
  EXPECT_THAT(problem_with({"parallel.ranks=6", "parallel.ep=4"}),
              AllOf(HasSubstr("}: world_size (6) is not divisible by"), HasSubstr("the least number of ranks is 4")));
}

TEST(MoePlan, FactsForGraphsAreThoseOfThePlan) {
  using capture::Capacity;
  const auto facts = [](std::vector<std::string> settings) {
    return plan_with_experts(std::move(settings)).run_facts();
  };
  const capture::RunFacts plain = facts({"moe.pattern=dmm"});
  EXPECT_EQ(plain.dense_layers, 2);
  EXPECT_EQ(plain.moe_layers, 2);
  EXPECT_EQ(plain.num_experts, 8);
  EXPECT_EQ(plain.num_stages, 1);
  EXPECT_EQ(plain.capacity, Capacity::dropless);
  EXPECT_FALSE(plain.recomputes_layers || plain.recomputes_experts || plain.overlaps_experts || plain.maps_memory ||
               plain.nccl_registers);
  EXPECT_EQ(facts({"parallel.pp=2"}).num_stages, 2);
  EXPECT_EQ(facts({"moe.capacity=drop", "moe.capacity_factor=1"}).capacity, Capacity::dropping);
  EXPECT_EQ(facts({"moe.capacity=pad", "moe.capacity_factor=1"}).capacity, Capacity::padded);
  EXPECT_TRUE(facts({"recompute.mode=full"}).recomputes_layers);
  EXPECT_FALSE(facts({"recompute.mode=full"}).recomputes_groups);
  EXPECT_TRUE(facts({"recompute.mode=full", "recompute.layers=2"}).recomputes_groups);
  const auto selective = [&](const char* module) {
    return facts({"recompute.mode=selective", str("recompute.modules=", module)}).recomputes_experts;
  };
  EXPECT_TRUE(selective("mlp"));
  EXPECT_FALSE(selective("gelu") || selective("attention") || selective("norms"));
  EXPECT_TRUE(plain.sizes_stay_on_device);
  EXPECT_FALSE(facts({"parallel.ep=2"}).sizes_stay_on_device);
  EXPECT_TRUE(facts({"parallel.ep=2", "moe.dispatcher=peer"}).sizes_stay_on_device);
  EXPECT_FALSE(facts({"device.type=cuda", "moe.gemm=loop"}).sizes_stay_on_device);
  EXPECT_FALSE(facts({"device.type=cuda"}).maps_memory);
  EXPECT_TRUE(facts({"device.type=cuda", "parallel.ep=2"}).maps_memory);
}

TEST(MoePlan, WhatCanBeCapturedIsInTheScopes) {
  using enum capture::Scope;
  const auto scopes = [](std::vector<std::string> settings) {
    return graph_scopes(plan_with_experts(std::move(settings)));
  };
  EXPECT_EQ(scopes({}), capture::ScopeSet{}) << "on CPUs no host reads sizes of experts on one rank";
  const auto on_two = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"parallel.ep=2", "parallel.ranks=2"});
    return scopes(std::move(settings));
  };
  EXPECT_EQ(on_two({}), (capture::ScopeSet{attn, moe_router, moe_preprocess}));
  EXPECT_EQ(on_two({"moe.pattern=dm"}), (capture::ScopeSet{attn, mlp, moe_router, moe_preprocess}));
  EXPECT_EQ(on_two({"moe.capacity=drop", "moe.capacity_factor=1"}), (capture::ScopeSet{attn, moe_router}));
  EXPECT_EQ(on_two({"moe.capacity=pad", "moe.capacity_factor=1"}), capture::ScopeSet{});
  EXPECT_EQ(on_two({"recompute.mode=full"}), capture::ScopeSet{attn});
  EXPECT_EQ(on_two({"moe.echo.slots=2"}), (capture::ScopeSet{attn, moe_router, moe_preprocess}));
  EXPECT_EQ(on_two({"moe.echo.slots=2", "moe.dispatcher=peer"}), capture::ScopeSet{});
  EXPECT_EQ(on_two({"moe.replay=FILE"}), capture::ScopeSet{attn});
  EXPECT_EQ(scopes({"moe.replay=FILE", "moe.pattern=dm"}), (capture::ScopeSet{attn, mlp}));
  EXPECT_EQ(scopes({"moe.pattern=dm", "graphs.scopes=mlp"}), capture::ScopeSet{mlp});
}

TEST(MoePlan, RanksOfExpertsHaveRoomForTwiceTheirEvenShare) {
  const auto factor = [](std::vector<std::string> settings) {
    return plan_with_experts(std::move(settings)).model.moe.rank_capacity_factor.text();
  };
  EXPECT_EQ(factor({}), "worst");
  EXPECT_EQ(factor({"parallel.ep=2"}), "worst") << "2 is the worst case";
  EXPECT_EQ(factor({"parallel.ep=4"}), "2");
  EXPECT_EQ(factor({"parallel.ep=8"}), "worst") << "of one expert: ep / top_k = 4";
  EXPECT_EQ(factor({"parallel.ep=8", "moe.num_experts=16"}), "4");
  EXPECT_EQ(factor({"parallel.ep=8", "moe.num_experts=16", "moe.top_k=3"}), "2.667") << "rounded up";
  EXPECT_EQ(factor({"parallel.ep=4", "moe.dispatcher=all_to_all"}), "worst");
  EXPECT_EQ(factor({"parallel.ep=4", "device.type=cuda"}), "2");
  EXPECT_EQ(plan_with_experts({"parallel.ep=4"}).model.moe.overflow, nn::RowOverflow::rerun);
  EXPECT_EQ(factor({"parallel.ep=4", "moe.rank_capacity_factor=worst"}), "worst");
  EXPECT_EQ(factor({"parallel.ep=4", "moe.rank_capacity_factor=3.125"}), "3.125");
  std::string toml = kExperts;
  toml.replace(toml.find("num_experts = 8"), 15, "num_experts = 8\nrank_capacity_factor = 3");
  const RunPlan of_toml = resolve(read_recipe(toml, "r.toml", std::vector<std::string>{"parallel.ep=4"}));
  EXPECT_EQ(of_toml.model.moe.rank_capacity_factor.text(), "3") << "a number of TOML";
  for (const RunPlan& one : {plan_with_experts({"parallel.ep=4", "moe.rank_capacity_factor=2.5", "moe.overflow=drop"}),
                             plan_with_experts({"parallel.ep=4"}), plan_with_experts({})})
    EXPECT_EQ(to_toml(resolve(one.as_config()).as_config()), to_toml(one.as_config()));
}

TEST(MoePlan, RoomForRowsMustHoldOneExpert) {
  const auto problem = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"parallel.ep=8", "moe.num_experts=16"});
    return problem_with(std::move(settings));
  };
  EXPECT_EQ(problem({"moe.rank_capacity_factor=4"}), "");
  EXPECT_THAT(problem({"moe.rank_capacity_factor=3.999"}),
              HasSubstr("moe.rank_capacity_factor = 3.999: must be at least parallel.ep / moe.top_k = 8 / 2, so that a "
                        "rank has room for one expert that all tokens choose; the least is 4"));
  EXPECT_THAT(problem({"moe.rank_capacity_factor=2.6", "moe.top_k=3"}), HasSubstr("8 / 3, so that"));
  EXPECT_THAT(problem({"moe.rank_capacity_factor=2.6", "moe.top_k=3"}), HasSubstr("; the least is 2.667"));
  for (const char* wrong : {"0", "-1", "nan", "inf", "many", "1.0005", "1e9"}) {
    EXPECT_THAT(problem({str("moe.rank_capacity_factor=", wrong)}),
                HasSubstr(str("moe.rank_capacity_factor = ", wrong,
                              ": must be a multiple of 0.001 from 0.001 to 1000000, or worst")));
  }
  const std::string only_peers =
      "is for ranks that read each other's rows, moe.dispatcher = peer; it is all_to_all, with room for all rows that "
      "can come: remove the key";
  const std::string sends = "moe.dispatcher=all_to_all";
  EXPECT_THAT(problem({sends, "moe.rank_capacity_factor=4"}), HasSubstr("moe.rank_capacity_factor = 4: " + only_peers));
  EXPECT_THAT(problem({sends, "moe.overflow=rerun"}), HasSubstr("moe.overflow = rerun: " + only_peers));
  EXPECT_EQ(problem({sends, "moe.rank_capacity_factor=worst"}), "");
  for (const char* reads : {"moe.dispatcher=peer", "moe.dispatcher=auto"}) {
    EXPECT_EQ(problem({"device.type=cuda", reads, "moe.rank_capacity_factor=4"}), "");
  }
  EXPECT_THAT(problem({"moe.overflow=wait"}), HasSubstr("moe.overflow = wait: must be rerun, abort or drop"));
}

TEST(MoePlan, RoomForRowsIsIdleWhereNoneIsLacking) {
  const auto warnings = [](std::vector<std::string> settings) {
    return plan_with_experts(std::move(settings)).warnings();
  };
  EXPECT_THAT(warnings({"moe.rank_capacity_factor=3"}),
              ::testing::ElementsAre("moe.rank_capacity_factor = 3: does nothing with ranks that exchange no rows of "
                                     "experts: they keep none"));
  EXPECT_THAT(warnings({"moe.overflow=drop", "moe.capacity=pad", "moe.capacity_factor=1", "parallel.ep=4"}),
              ::testing::ElementsAre("moe.overflow = drop: does nothing with moe.capacity = pad, which makes the rows "
                                     "constants"));
  EXPECT_THAT(warnings({"moe.rank_capacity_factor=3", "parallel.ep=4"}), ::testing::IsEmpty());
}

TEST(MoePlan, FetchingRowsAgainIsForRanksThatExchangeThem) {
  const auto warnings = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"recompute.mode=selective", "recompute.modules=dispatch"});
    return plan_with_experts(std::move(settings)).warnings();
  };
  const std::vector<std::string> idle = {
      "recompute.modules = [dispatch]: does nothing with ranks that exchange no rows of experts: they keep none"};
  EXPECT_EQ(warnings({}), idle);
  EXPECT_EQ(warnings({"parallel.ranks=2"}), idle) << "copies of the model";
  EXPECT_EQ(warnings({"parallel.ep=2"}), std::vector<std::string>{});
}

// Of experts only the results of the first GEMM are kept, so there is no activation to recompute.
TEST(MoePlan, RecomputingActivationsIsForMlpsAndSharedExperts) {
  const auto plan = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"recompute.mode=selective", "train.precision=bf16", "model.activation=gelu"});
    return plan_with_experts(std::move(settings));
  };
  constexpr const char* kGelu = "recompute.modules=gelu";
  EXPECT_EQ(
      plan({kGelu}).warnings(),
      std::vector<std::string>{"recompute.modules = [gelu]: does nothing with experts in every layer and no shared "
                               "ones: no activation of theirs is kept"});
  for (const char* has_mlps : {"moe.pattern=dm", "moe.shared_ffn_hidden_size=8"})
    EXPECT_EQ(plan({kGelu, has_mlps}).warnings(), std::vector<std::string>{}) << has_mlps;
  EXPECT_EQ(plan({"recompute.modules=mlp"}).warnings(), std::vector<std::string>{});
  const auto warned = [&](std::vector<std::string> settings) {
    settings.emplace_back("recompute.modules=norms");
    const RunConfig saved = plan(settings).as_config();
    settings.back() = kGelu;
    return resume_changes(saved, plan(settings)).warned;
  };
  EXPECT_THAT(warned({}), ::testing::Not(::testing::Contains(HasSubstr("gradients of gelu differ"))));
  EXPECT_THAT(warned({"moe.pattern=dm"}), ::testing::Contains(HasSubstr("gradients of gelu differ")));
}

}  // namespace
}  // namespace megalith::config
