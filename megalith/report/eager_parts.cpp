#include "megalith/report/eager_parts.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/moe_rules.h"
#include "megalith/train/graph_accounting.h"

namespace megalith::apps {
namespace {

/// Why the experts of a layer, or what follows `end` of them, have no graph where the recipe names no scopes.
std::string why_experts_are_eager(const config::RunPlan& plan, nn::ForwardStage end) {
  std::string why = config::why_no_iteration(plan);
  if (end != nn::ForwardStage::seam || !plan.model.moe.replay.empty()) return why;
  using enum capture::Scope;
  const auto rule = capture::first_broken_rule({attn, moe_router}, plan.run_facts());
  return rule ? rule->message() : why;
}

/// What a graph that ends before this stage leaves of the experts.
const char* experts_from(nn::ForwardStage end) {
  if (end == nn::ForwardStage::preprocess) return "experts after routing";
  return end == nn::ForwardStage::dispatch ? "experts after sorting rows" : "experts";
}

}  // namespace

std::vector<EagerPart> eager_parts(const config::RunPlan& plan) {
  const std::string left_out = str("graphs.scopes = ", text(config::graph_scopes(plan)), " leaves it out");
  EagerPart attention{"attention", {}, left_out}, mlp{"MLP", {}, left_out}, experts;
  for (Index layer = 0; layer < plan.model.num_layers; ++layer) {
    const nn::LayerEdges edges = train::captured_edges(plan, layer);
    if (!edges.holds_attention()) attention.layers.push_back(static_cast<int>(layer));
    if (edges.ends_layer()) continue;
    const bool has_experts = plan.model.moe.is_moe_layer(layer);
    if (has_experts && experts.layers.empty()) {
      const nn::ForwardStage end = edges.any() ? edges.end.stage : nn::ForwardStage::seam;
      experts = {experts_from(end), {}, plan.graphs.scopes.empty() ? why_experts_are_eager(plan, end) : left_out};
    }
    (has_experts ? experts : mlp).layers.push_back(static_cast<int>(layer));
  }
  std::vector<EagerPart> parts;
  for (EagerPart* part : {&attention, &mlp, &experts}) {
    if (!part->layers.empty()) parts.push_back(std::move(*part));
  }
  return parts;
}

std::string no_iteration(const config::RunPlan& plan) { return config::why_no_iteration(config::iteration_plan(plan)); }
std::string no_evaluation_graph(const config::RunPlan& plan) {
  return config::why_no_evaluation_graph(config::iteration_plan(plan));
}

void require_legal_scopes(const config::RunPlan& plan) {
  const capture::ScopeSet scopes = config::graph_scopes(plan);
  const auto refuse = [&](std::string_view rule) {
    throw ConfigError(str("graphs.scopes = ", text(plan.graphs.scopes), ": ", rule));
  };
  if (!plan.model.moe.replay.empty() && config::hold_routers(scopes)) refuse(config::kReplayInGraphs);
  if (const auto rule = capture::first_broken_rule(scopes, plan.run_facts())) refuse(rule->message());
}

}  // namespace megalith::apps
