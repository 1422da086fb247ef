#include "megalith/report/eager_parts.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/moe_rules.h"
#include "megalith/train/graph_accounting.h"

namespace megalith::apps {
namespace {

std::string why_experts_are_eager(const config::RunPlan& plan) {
  const std::string whole = config::why_no_iteration(plan).empty() ? "; graphs.mode = iteration holds them" : "";
  return "graphs of parts of MoE layers are not built" + whole;
}

}  // namespace

std::vector<EagerPart> eager_parts(const config::RunPlan& plan) {
  const std::string left_out = str("graphs.scopes = ", text(config::graph_scopes(plan)), " leaves it out");
  EagerPart attention{"attention", {}, left_out}, mlp{"MLP", {}, left_out},
      experts{"experts", {}, why_experts_are_eager(plan)};
  for (Index layer = 0; layer < plan.model.num_layers; ++layer) {
    const nn::LayerEdges edges = train::captured_edges(plan, layer);
    if (!edges.holds_attention()) attention.layers.push_back(static_cast<int>(layer));
    if (edges.ends_layer()) continue;
    (plan.model.moe.is_moe_layer(layer) ? experts : mlp).layers.push_back(static_cast<int>(layer));
  }
  std::vector<EagerPart> parts;
  for (EagerPart* part : {&attention, &mlp, &experts}) {
    if (!part->layers.empty()) parts.push_back(std::move(*part));
  }
  return parts;
}

std::string no_iteration(const config::RunPlan& plan) { return config::why_no_iteration(plan); }
std::string no_evaluation_graph(const config::RunPlan& plan) { return config::why_no_evaluation_graph(plan); }

void require_legal_scopes(const config::RunPlan& plan) {
  const auto refuse = [&](const std::string& rule) {
    throw ConfigError(str("graphs.scopes = ", text(plan.graphs.scopes), ": ", rule));
  };
  if (plan.model.moe.has_experts() && config::has_moe(plan.graphs.scopes)) refuse(config::kExpertsInGraphs);
  if (const auto rule = capture::first_broken_rule(config::graph_scopes(plan), plan.run_facts()))
    refuse(rule->message());
}

}  // namespace megalith::apps
