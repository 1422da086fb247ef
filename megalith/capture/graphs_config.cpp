#include "megalith/capture/graphs_config.h"

#include <algorithm>
#include <array>

#include "megalith/base/names.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith::capture {
namespace {

// As the enumerators count.
constexpr std::array<std::string_view, kNumScopes> kScopes = {"attn", "mlp", "moe", "moe_router", "moe_preprocess"};
constexpr std::string_view kWholeLayers = "full", kWholeIteration = "full_iteration";

std::string unknown_scope(std::string_view name) {
  std::string rule = str("no scope is called ", name);
  if (const std::string_view near = nearest(name, kScopes); !near.empty()) rule += str("; did you mean ", near, "?");
  return rule_text(1, rule + "; there are attn, mlp, moe, moe_router, moe_preprocess, and [] for whole layers");
}

/// The first of V1 and V2 that is broken; empty when none is.
std::string broken_rule(std::span<const std::string> names, GraphMode mode) {
  for (const std::string& name : names) {
    const bool is_known = name == kWholeLayers || name == kWholeIteration || enumerator_of<Scope>(kScopes, name);
    if (!is_known) return unknown_scope(name);
  }
  if (names.size() > 1 && std::ranges::find(names, kWholeLayers) != names.end())
    return rule_text(1, "full means whole layers, so nothing can stand beside it; write scopes = []");
  if (std::ranges::find(names, kWholeIteration) == names.end()) return "";
  if (mode != GraphMode::iteration)
    return rule_text(2, "full_iteration is a mode: write mode = \"iteration\", scopes = []");
  return names.size() > 1
             ? rule_text(2, "full_iteration covers all layers, so nothing can stand beside it; write scopes = []")
             : "";
}

}  // namespace

std::string rule_text(int number, std::string_view text) {
  return str(text, " (rule V", number, " of docs/graphs.md)");
}

std::string_view name(GraphMode mode) { return kGraphModeNames[static_cast<std::size_t>(mode)]; }
std::string_view name(GraphsPer per) { return kGraphsPerNames[static_cast<std::size_t>(per)]; }
std::string_view name(Scope scope) { return kScopes[static_cast<std::size_t>(scope)]; }

std::vector<std::string> ScopeSet::names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kScopes.size(); ++i) {
    if (has(static_cast<Scope>(i))) names.emplace_back(kScopes[i]);
  }
  return names;
}

std::string text(const ScopeSet& scopes) { return bracketed(scopes.names()); }

ScopeSet read_scopes(std::span<const std::string> names, GraphMode mode, Problems& out) {
  if (const std::string rule = broken_rule(names, mode); !rule.empty()) {
    out.add("graphs.scopes", bracketed(names), rule);
    return {};
  }
  ScopeSet scopes;
  for (const std::string& name : names) {
    if (const std::optional<Scope> scope = enumerator_of<Scope>(kScopes, name)) scopes.add(*scope);
  }
  return scopes;
}

void check(const GraphsConfig& c, Problems& out) {
  if (c.mode == GraphMode::iteration) {
    out.require(c.warmup_steps != 0, "graphs.warmup_steps", 0,
                "must be at least 1 with graphs.mode = iteration: a step must have run before one is recorded");
    out.require(c.scopes.empty(), "graphs.scopes", text(c.scopes),
                "must be empty with graphs.mode = iteration, whose graph holds all layers; remove it, or set "
                "graphs.mode = layers");
    out.require(
        c.per == GraphsPer::microbatch, "graphs.per", name(c.per),
        "is for graphs.mode = layers: the graph of a step holds all microbatches; remove it, or set graphs.mode = "
        "layers");
  }
  if (c.mode == GraphMode::layers) {
    out.require(
        !c.optimizer, "graphs.optimizer", "true",
        "is for graphs.mode = iteration: graphs of layers never hold the optimizer; remove it, or set graphs.mode = "
        "iteration");
  }
}

}  // namespace megalith::capture
