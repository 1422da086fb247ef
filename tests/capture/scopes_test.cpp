#include "megalith/capture/scopes.h"

#include <gtest/gtest.h>

#include "tests/capture/vectors.h"

namespace megalith::capture {
namespace {

using nlohmann::json;

constexpr Scope kScopes[] = {Scope::attn, Scope::mlp, Scope::moe, Scope::moe_router, Scope::moe_preprocess};

std::vector<ScopeSet> all_scope_sets() {
  std::vector<ScopeSet> sets;
  for (unsigned bits = 0; bits < 1U << kNumScopes; ++bits) {
    ScopeSet& set = sets.emplace_back();
    for (const Scope scope : kScopes) {
      if ((bits >> static_cast<unsigned>(scope) & 1U) != 0) set.add(scope);
    }
  }
  return sets;
}

int broken(const ScopeSet& scopes, const RunFacts& run) {
  const std::optional<BrokenRule> rule = first_broken_rule(scopes, run);
  return rule ? rule->number : 0;
}

const RunFacts kDenseFacts{.dense_layers = 4};
const RunFacts kMixed{.dense_layers = 2, .moe_layers = 2, .num_experts = 8};
const RunFacts kPadded{.dense_layers = 2, .moe_layers = 2, .num_experts = 8, .capacity = Capacity::padded};

TEST(Scopes, EverySetOfEveryModelIsJudgedAsInTheVectors) {
  std::size_t judged = 0;
  for (const json& entry : graph_vectors().at("scope_validation")) {
    const std::string model = entry.at("model");
    RunFacts run{.dense_layers = model == "all_moe" ? 0 : 2,
                 .moe_layers = model == "dense" ? 0 : 2,
                 .num_experts = model == "dense" ? 0 : 64,
                 .capacity = capacity_of(entry.at("capacity")),
                 .pads_routing = entry.at("router_padding_for_quantization")};
    ASSERT_EQ(entry.at("dispatcher"), "alltoall");
    for (const json& names : entry.at("legal")) {
      EXPECT_EQ(broken(scopes_of(names), run), 0) << entry << names;
      ++judged;
    }
    for (const json& rejected : entry.at("rejected")) {
      const std::string rule = rejected.at(1);
      EXPECT_EQ("V" + std::to_string(broken(scopes_of(rejected.at(0)), run)), rule) << rejected;
      ++judged;
    }
  }
  EXPECT_EQ(judged, 11 * all_scope_sets().size());
}

TEST(Scopes, RulesOnTheRun) {
  struct Case {
    int rule;
    ScopeSet scopes;
    RunFacts run;
    void (*breaks)(RunFacts&);
  };
  const ScopeSet attn{Scope::attn}, mlp{Scope::mlp}, whole, router{Scope::moe_router}, moe{Scope::moe};
  const Case cases[] = {
      {10, attn, kDenseFacts, [](RunFacts& r) { r.offloads_activations = true; }},
      {10, attn, kDenseFacts, [](RunFacts& r) { r.varying_lengths = true; }},
      {10, attn, kDenseFacts, [](RunFacts& r) { r.for_inference = true; }},
      {10, attn, kDenseFacts, [](RunFacts& r) { r.hybrid_context_parallel = true; }},
      {11, mlp, kMixed, [](RunFacts& r) { r.overlaps_experts = true; }},
      {11, moe, kPadded, [](RunFacts& r) { r.overlaps_experts = true; }},
      {11, whole, kPadded, [](RunFacts& r) { r.overlaps_experts = true; }},
      {12, router, kMixed, [](RunFacts& r) { r.recomputes_experts = true; }},
      {12, router, kMixed, [](RunFacts& r) { r.recomputes_layers = true; }},
      {12, mlp, kMixed, [](RunFacts& r) { r.recomputes_layers = r.recomputes_groups = true; }},
      {13, router, kMixed, [](RunFacts& r) { r.echo = true; }},
      {14, attn, kDenseFacts, [](RunFacts& r) { r.ramps_batch = true, r.num_stages = 2; }},
      {15, attn, kDenseFacts, [](RunFacts& r) { r.random_on_host = true; }},
      {16, attn, kDenseFacts, [](RunFacts& r) { r.maps_memory = true, r.nccl_registers = true; }},
  };
  for (const Case& c : cases) {
    RunFacts run = c.run;
    EXPECT_EQ(broken(c.scopes, run), 0) << text(c.scopes);
    c.breaks(run);
    EXPECT_EQ(broken(c.scopes, run), c.rule) << text(c.scopes);
  }
}

TEST(Scopes, WhatTheRulesOnTheRunAllow) {
  RunFacts run = kMixed;
  run.overlaps_experts = true;
  EXPECT_EQ(broken({Scope::attn, Scope::moe_router}, run), 0);
  // Rule V12 is for experts; runs of dense layers are in tests/train/recompute_test.cpp.
  run = kDenseFacts;
  run.recomputes_layers = true;
  for (const ScopeSet& scopes : {ScopeSet{}, ScopeSet{Scope::attn}, ScopeSet{Scope::mlp}})
    EXPECT_EQ(broken(scopes, run), 0) << text(scopes);
  run = kMixed;
  run.recomputes_experts = true;
  EXPECT_EQ(broken({Scope::attn, Scope::mlp}, run), 0);
  run.capacity = Capacity::padded;
  EXPECT_EQ(broken({Scope::moe}, run), 0) << "the whole MoE is inside";
  run.recomputes_layers = run.recomputes_groups = true;
  EXPECT_EQ(broken({Scope::mlp}, run), 0) << "experts of constant sizes may be recomputed in the graph of an MLP";
  run = kMixed;
  run.echo = true;
  EXPECT_EQ(broken({Scope::attn}, run), 0);
  run.echo_stops_at_boundary = true;
  EXPECT_EQ(broken({Scope::moe_router}, run), 0);
  run = kDenseFacts;
  run.ramps_batch = true;
  EXPECT_EQ(broken({}, run), 0);
  run.num_stages = 4;
  run.records_again = true;
  EXPECT_EQ(broken({}, run), 0);
  run.maps_memory = true;
  EXPECT_EQ(broken({}, run), 0);
}

TEST(Scopes, SizesThatStayOnTheDeviceBreakNoRule) {
  for (const Capacity capacity : {Capacity::dropless, Capacity::dropping, Capacity::padded}) {
    RunFacts run = kMixed;
    run.capacity = capacity;
    run.sizes_stay_on_device = true;
    for (const ScopeSet& scopes :
         {ScopeSet{}, ScopeSet{Scope::moe}, ScopeSet{Scope::moe_router, Scope::moe_preprocess}})
      EXPECT_EQ(broken(scopes, run), 0) << text(scopes);
    EXPECT_EQ(broken({Scope::moe, Scope::moe_router}, run), 3);
  }
}

TEST(Scopes, TheFirstBrokenRuleWins) {
  RunFacts run = kDenseFacts;
  run.offloads_activations = run.random_on_host = true;
  EXPECT_EQ(broken({Scope::moe, Scope::moe_router}, run), 3);
  EXPECT_EQ(broken({Scope::moe_router}, run), 5);
  EXPECT_EQ(broken({Scope::attn}, run), 10);
}

TEST(Scopes, RuleV8IsWhatTheHostCopiesAllow) {
  for (const Capacity capacity : {Capacity::dropless, Capacity::dropping, Capacity::padded}) {
    for (const bool pads : {false, true}) {
      RunFacts run = kMixed;
      run.capacity = capacity;
      run.pads_routing = pads;
      const nn::HostCopies copies = nn::host_copies(
          {.capacity = capacity_of_experts(capacity), .pads_routing = pads, .preprocess_captured = true});
      EXPECT_EQ(broken({Scope::moe_router, Scope::moe_preprocess}, run) == 8, !copies.legal());
    }
  }
  RunFacts gathering = kMixed;
  gathering.capacity = Capacity::dropping;
  gathering.dispatcher = Dispatcher::all_gather;
  EXPECT_EQ(broken({Scope::moe_router, Scope::moe_preprocess}, gathering), 0);
}

TEST(Scopes, ProblemsNameTheRuleAndComeWithGraphsOfLayersOnly) {
  Problems problems;
  GraphsConfig config{.mode = GraphMode::layers, .scopes = {Scope::attn, Scope::moe_router}};
  check_scopes(config, kDenseFacts, problems);
  EXPECT_EQ(problems.lines(),
            std::vector<std::string>{"graphs.scopes = [attn, moe_router]: the model has no experts; use attn, mlp, "
                                     "or [] for whole layers (rule V5 of docs/graphs.md)"});
  config.mode = GraphMode::none;
  check_scopes(config, kDenseFacts, problems);
  EXPECT_EQ(problems.lines().size(), 1U);
}

TEST(Scopes, EdgesOfALayersGraph) {
  using nn::Edge;
  using nn::ForwardStage;
  using nn::LayerEdges;
  const LayerParts dense{}, moe{.moe = true}, no_attention{.attention = false};
  const LayerEdges whole{{0}, {2}}, attention{{0}, {1}}, mlp{{1}, {2}};
  EXPECT_EQ(edges_of({}, dense), whole);
  EXPECT_EQ(edges_of({}, moe), whole);
  EXPECT_EQ(edges_of({}, no_attention), mlp);
  EXPECT_EQ(edges_of({Scope::attn}, dense), attention);
  EXPECT_FALSE(edges_of({Scope::attn}, no_attention).any());
  EXPECT_EQ(edges_of({Scope::mlp}, dense), mlp);
  EXPECT_FALSE(edges_of({Scope::mlp}, moe).any());
  EXPECT_EQ(edges_of({Scope::moe}, moe), mlp);
  EXPECT_FALSE(edges_of({Scope::moe_router}, dense).any());
  EXPECT_EQ(edges_of({Scope::attn, Scope::moe_router}, dense), attention);
  EXPECT_EQ(edges_of({Scope::moe_router}, moe), (LayerEdges{{1}, {1, ForwardStage::preprocess}}));
  EXPECT_EQ(edges_of({Scope::attn, Scope::moe_router}, moe), (LayerEdges{{0}, {1, ForwardStage::preprocess}}));
  EXPECT_EQ(edges_of({Scope::moe_router, Scope::moe_preprocess}, moe), (LayerEdges{{1}, {1, ForwardStage::dispatch}}));
}

/// What the driver of a layer makes of them.
TEST(Scopes, EdgesStateWhereEachSublayersCaptureEnds) {
  using nn::ForwardStage;
  const std::optional<ForwardStage> all, none = ForwardStage::seam;
  const auto ends = [](const ScopeSet& scopes, bool moe) {
    const nn::LayerEdges edges = edges_of(scopes, {.moe = moe});
    return std::pair{nn::captured_end(edges, 0), nn::captured_end(edges, 1)};
  };
  for (const bool moe : {false, true}) {
    EXPECT_EQ(ends({}, moe), std::pair(all, all));
    EXPECT_EQ(ends({Scope::attn}, moe), std::pair(all, none));
  }
  EXPECT_EQ(ends({Scope::mlp}, false), std::pair(none, all));
  EXPECT_EQ(ends({Scope::mlp}, true), std::pair(none, none));
  EXPECT_EQ(ends({Scope::moe}, true), std::pair(none, all));
  EXPECT_EQ(ends({Scope::moe_router}, true), std::pair(none, std::optional(ForwardStage::preprocess)));
  EXPECT_EQ(ends({Scope::attn, Scope::moe_router, Scope::moe_preprocess}, true),
            std::pair(all, std::optional(ForwardStage::dispatch)));
}

TEST(Scopes, BoundaryFieldsAreThoseOfTheVectors) {
  const json& fields = graph_vectors().at("boundary_fields");
  EXPECT_EQ(fields.size(), static_cast<std::size_t>(kNumScopes));
  for (const auto& [scope, names] : fields.items()) {
    ScopeSet scopes = scopes_of(json::array({scope}));
    const bool is_dense = scopes.has(Scope::mlp);
    json got = json::array();
    for (const BoundaryField& field : boundary_fields(edges_of(scopes, {.moe = !is_dense})))
      got.push_back(std::string(field.name) + (field.optional ? "?" : ""));
    EXPECT_EQ(got, names) << scope;
  }
}

}  // namespace
}  // namespace megalith::capture
