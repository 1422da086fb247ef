// The vectors on scopes and on host copies, as recipes that users could write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/str.h"
#include "megalith/comm/world.h"
#include "megalith/config/moe_rules.h"
#include "megalith/model/layer_groups.h"
#include "megalith/model/model_spec.h"
#include "megalith/nn/moe/moe.h"

#include "tests/capture/vectors.h"
#include "tests/config/small_recipe.h"

namespace megalith::config {
namespace {

using capture::graph_vectors;
using nlohmann::json;
using ::testing::HasSubstr;

std::vector<std::string> capacity_settings(const std::string& capacity) {
  if (capacity == "none" || capacity == "dropless") return {};
  return {capacity == "drop" ? "moe.capacity=drop" : "moe.capacity=pad", "moe.capacity_factor=1.25"};
}

/// A run on a GPU whose host reads sizes of experts: where it does not, more can be captured.
std::vector<std::string> settings_of_host_reads() {
  return {"device.type=cuda", "train.precision=bf16", "moe.gemm=loop"};
}

void append(std::vector<std::string>& all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

std::vector<std::string> scope_settings(const json& names) {
  return {"graphs.mode=layers", "graphs.scopes=" + names.dump()};
}

/// The 11 entries are of 7 kinds of recipes: counts that are rounded up for 8-bit GEMMs cannot be asked for.
TEST(GraphVectors, EverySetOfScopesIsJudgedInARecipe) {
  std::size_t recipes = 0, sets = 0;
  for (const json& entry : graph_vectors().at("scope_validation")) {
    if (entry.at("router_padding_for_quantization").get<bool>()) continue;
    ++recipes;
    const std::string model = entry.at("model");
    std::vector<std::string> settings = capacity_settings(entry.at("capacity"));
    if (model != "dense") {
      append(settings, settings_of_host_reads());
      append(settings, {"moe.num_experts=64", str("moe.pattern=", model == "mixed" ? "dm" : "m")});
    }
    const auto problem = [&](const json& names) {
      std::vector<std::string> all = settings;
      append(all, scope_settings(names));
      ++sets;
      return problem_of(kSmall, all, 1);
    };
    for (const json& names : entry.at("legal")) EXPECT_EQ(problem(names), "") << entry.at("capacity") << names;
    for (const json& rejected : entry.at("rejected")) {
      EXPECT_THAT(problem(rejected.at(0)), HasSubstr(str("(rule ", rejected.at(1).get<std::string>(), " of ")))
          << entry.at("capacity") << rejected;
    }
  }
  EXPECT_EQ(recipes, 7U);
  EXPECT_EQ(sets, 7U * 32U);
}

/// Of the 96 entries recipes can ask for 24: the first permutation is always its own pass, no counts are rounded up for
/// 8-bit GEMMs, and a model has at least two experts. The others are in tests/capture/host_copies_test.cpp.
TEST(GraphVectors, HostCopiesOfRecipes) {
  int recipes = 0;
  for (const json& entry : graph_vectors().at("d2h_points")) {
    const int ep = entry.at("ep"), etp = entry.at("etp"), experts = ep * entry.at("local_experts").get<int>();
    if (entry.at("router_padding").get<bool>() || entry.at("fused_permute").get<bool>() || experts < 2) continue;
    ++recipes;
    const bool captured = entry.at("preprocess_captured");
    std::vector<std::string> settings = settings_of_host_reads();
    append(settings, capacity_settings(entry.at("capacity")));
    append(settings, scope_settings(captured ? json{"moe_router", "moe_preprocess"} : json{"moe_router"}));
    append(settings, {str("moe.num_experts=", experts), str("parallel.ep=", ep), str("parallel.etp=", etp)});
    const int ranks = ep * etp;
    const std::string problem = problem_of(kSmall, settings, ranks);
    if (!entry.at("legal").get<bool>()) {
      EXPECT_THAT(problem, HasSubstr("(rule V8 of ")) << entry;
      continue;
    }
    ASSERT_EQ(problem, "") << entry;
    const RunPlan plan = resolve(parse_recipe(kSmall, "r.toml", settings), ranks);
    const std::unique_ptr<comm::World> world = comm::dry_world(0, ranks);
    const comm::Mesh mesh = comm::make_mesh(*world, plan.grid);
    const nn::LayerGroups groups = model::layer_groups({mesh.tp, nn::SequenceParallel::off, 1}, plan.model, mesh);
    const model::ModelSpec spec = model::model_spec(plan.model);
    const auto& moe = std::get<nn::MoeSpec>(spec.sublayers.at(1).body);
    const nn::LayerEdges edges = capture::edges_of(plan.graphs.scopes, {.moe = true});
    const nn::HostCopies copies =
        nn::host_copies(nn::facts_of_copies(moe, *groups.experts, nn::Mode::train, nn::captured_end(edges, 1)));
    EXPECT_EQ(copies.issue ? json(name(*copies.issue)) : json(), entry.at("copy_issue_point")) << entry;
    EXPECT_EQ(name(copies.wait), entry.at("host_wait_point")) << entry;
    // An evaluation drops and pads nothing.
    if (plan.model.moe.capacity != nn::ExpertCapacity::pad) continue;
    EXPECT_NE(nn::facts_of_copies(moe, *groups.experts, nn::Mode::evaluate, nn::captured_end(edges, 1)).capacity,
              nn::ExpertCapacity::pad);
  }
  EXPECT_EQ(recipes, 24);
}

/// The rules V7 to V9 are about sizes that the host reads. Where one rank has all experts of its rows and a CPU, or one
/// kernel for all experts, reads the sizes, there are none.
TEST(GraphVectors, WhatFollowsFromDataMayStayOnTheDevice) {
  const std::vector<std::string> on_cpu = {"moe.num_experts=8"},
                                 on_hopper = {"moe.num_experts=8", "device.type=cuda", "train.precision=bf16"};
  for (const std::vector<std::string>& device : {on_cpu, on_hopper}) {
    for (const char* capacity : {"none", "drop", "drop_pad"}) {
      for (const json& names : {json::array(), json{"moe"}, json{"attn", "moe_router", "moe_preprocess"}}) {
        std::vector<std::string> settings = device;
        append(settings, capacity_settings(capacity));
        append(settings, scope_settings(names));
        EXPECT_EQ(problem_of(kSmall, settings, 1), "") << capacity << names;
        append(settings, {"parallel.ep=2"});
        const bool is_legal =
            capacity == std::string("drop_pad") || (capacity == std::string("none") && names.size() == 3);
        EXPECT_EQ(problem_of(kSmall, settings, 2).empty(), is_legal) << capacity << names;
      }
    }
  }
}

}  // namespace
}  // namespace megalith::config
