#include "megalith/base/str.h"
#include "megalith/config/moe_rules.h"

// What graphs hold of a model with experts, and why they do not hold more.

namespace megalith::config {
namespace {

/// Why passes with clones cannot be captured; empty: they can.
std::string why_host_reads_clones(const RunPlan& plan) {
  if (plan.model.moe.echo.backend != nn::EchoBackend::host_sized) return "";
  return "with moe.echo.backend = host_sized the host reads how many clones go between ranks; use auto, peer or "
         "collective";
}

/// As a recipe has it.
std::string toml_text(const capture::ScopeSet& scopes) {
  std::string text;
  for (const std::string& name : scopes.names()) text += str(text.empty() ? "\"" : ", \"", name, "\"");
  return str("[", text, "]");
}

/// The graphs that the steps of a plan may have where they cannot be graphs themselves.
std::string other_graphs(RunPlan plan) {
  const bool has_optimizer = plan.graphs.optimizer;
  plan.graphs.mode = capture::GraphMode::layers;
  plan.graphs.scopes = {};
  // Where a recipe has auto it is peer in graphs of steps only. Scopes that auto allows are legal with peer, too.
  if (plan.model.moe.dispatcher == nn::ExpertDispatcher::peer)
    plan.model.moe.dispatcher = nn::ExpertDispatcher::automatic;
  return str("; or use graphs.mode = layers, with graphs.scopes = ", toml_text(graph_scopes(plan)),
             has_optimizer ? " and without graphs.optimizer" : "", ", or graphs.mode = none");
}

/// Where the host would read no rows if ranks read them.
std::string how_to_read_rows(const RunPlan& plan) {
  const int ranks = exchanging_ranks(plan);
  if (ranks > nn::kMaxPeers)
    return str("; at most ", nn::kMaxPeers, " ranks may read each other's rows instead, and ", ranks, " exchange them");
  const std::string settings = settings_without_host_sizes(plan);
  if (settings.empty()) return "";
  const bool is_one = settings.find(" and ") == std::string::npos;
  return str("; between ranks of one host ", settings, is_one ? " needs" : " need", " no such numbers");
}

}  // namespace

const char* const kReplayInGraphs =
    "holds routers, and the host reads moe.replay in every pass; use graphs.scopes = [\"attn\"] (and \"mlp\" for dense "
    "layers), or graphs.mode = none";

void choose_graph_dispatcher(RunPlan& plan) {
  nn::MoeConfig& moe = plan.model.moe;
  const bool needs_peers =
      moe.has_experts() && plan.graphs.mode == capture::GraphMode::iteration && moe.capacity != nn::ExpertCapacity::pad;
  if (needs_peers && moe.dispatcher == nn::ExpertDispatcher::automatic && why_no_peers(plan).empty())
    moe.dispatcher = nn::ExpertDispatcher::peer;
}

RunPlan iteration_plan(RunPlan plan) {
  if (plan.graphs.mode == capture::GraphMode::iteration) return plan;
  plan.graphs.mode = capture::GraphMode::iteration;
  plan.graphs.scopes = {};
  choose_graph_dispatcher(plan);
  return plan;
}

std::string settings_without_host_sizes(const RunPlan& plan) {
  const int ranks = exchanging_ranks(plan);
  if (ranks > nn::kMaxPeers) return "";
  RunPlan other = plan;
  nn::MoeConfig& moe = other.model.moe;
  std::string settings;
  const auto add = [&](std::string_view setting) { settings += str(settings.empty() ? "" : " and ", setting); };
  if (ranks > 1 && moe.dispatcher != nn::ExpertDispatcher::peer) {
    moe.dispatcher = nn::ExpertDispatcher::peer;
    add("moe.dispatcher = peer");
    if (!why_no_peers(plan).empty()) add("parallel.transfers = copy_engines");
  }
  if (has_clones(plan) && moe.echo.backend == nn::EchoBackend::host_sized) {
    moe.echo.backend = nn::EchoBackend::automatic;
    add("moe.echo.backend = auto");
  }
  return why_no_evaluation_graph(other).empty() ? settings : "";
}

std::string why_no_iteration(const RunPlan& plan) {
  const nn::MoeConfig& moe = plan.model.moe;
  if (moe.has_experts() && !moe.replay.empty()) return "the host reads moe.replay in every pass";
  if (moe.capacity == nn::ExpertCapacity::pad) return "";
  std::string why = why_no_evaluation_graph(plan);
  const model::HostCounts counts = host_counts(plan.model, expert_setting(plan));
  if (why.empty() || counts == model::HostCounts::none) return why;
  return str(why, counts == model::HostCounts::rows_sent ? how_to_read_rows(plan) : "",
             has_clones(plan) ? "" : "; moe.capacity = pad makes the sizes constants");
}

std::string why_no_evaluation_graph(const RunPlan& plan) {
  switch (host_counts(plan.model, expert_setting(plan))) {
    case model::HostCounts::rows_sent:
      return str("the host reads how many rows go between the ranks of parallel.ep = ", plan.grid.ep,
                 ", parallel.etp = ", plan.grid.etp);
    case model::HostCounts::group_rows:
      return "the host reads how many rows each expert has for moe.gemm = loop, which is also used in f32, for widths "
             "that are no multiples of 8 and on GPUs other than Hopper's";
    case model::HostCounts::none:
      break;
  }
  return has_clones(plan) ? why_host_reads_clones(plan) : "";
}

capture::ScopeSet graph_scopes(const RunPlan& plan) {
  using enum capture::Scope;
  if (!plan.graphs.scopes.empty() || !plan.model.moe.has_experts()) return plan.graphs.scopes;
  const bool has_dense = plan.model.num_moe_layers() < plan.model.num_layers;
  capture::ScopeSet without_experts{attn};
  if (has_dense) without_experts.add(mlp);
  if (first_broken_rule(without_experts, plan.run_facts())) without_experts = {attn};
  if (!plan.model.moe.replay.empty()) return without_experts;
  if (!first_broken_rule({}, plan.run_facts())) return {};
  capture::ScopeSet routed = without_experts, sorted = without_experts;
  routed.add(moe_router);
  for (const capture::Scope scope : {moe_router, moe_preprocess}) sorted.add(scope);
  for (const capture::ScopeSet& scopes : {sorted, routed}) {
    if (!first_broken_rule(scopes, plan.run_facts())) return scopes;
  }
  return without_experts;
}

bool hold_routers(const capture::ScopeSet& scopes) {
  return scopes.empty() || scopes.has(capture::Scope::moe) || scopes.has(capture::Scope::moe_router);
}

void check_moe_graphs(const RunPlan& plan, Problems& out) {
  if (plan.graphs.mode == capture::GraphMode::iteration) {
    if (const std::string why = why_no_iteration(plan); !why.empty())
      out.add("graphs.mode", "iteration", why + other_graphs(plan));
    return;
  }
  const bool is_of_layers = plan.graphs.mode == capture::GraphMode::layers;
  if (is_of_layers && !plan.model.moe.replay.empty() && hold_routers(plan.graphs.scopes))
    out.add("graphs.scopes", text(plan.graphs.scopes), kReplayInGraphs);
}

}  // namespace megalith::config
