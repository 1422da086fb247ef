#include "megalith/capture/scopes.h"

#include "megalith/base/str.h"

namespace megalith::capture {
namespace {

/// Where a graph ends in the MLP part of a layer: before this stage. The seam: it holds nothing of it; unset: all.
std::optional<nn::ForwardStage> mlp_end(const ScopeSet& scopes, bool moe) {
  using nn::ForwardStage;
  if (scopes.empty() || scopes.has(moe ? Scope::moe : Scope::mlp)) return std::nullopt;
  if (!moe) return ForwardStage::seam;
  if (scopes.has(Scope::moe_preprocess)) return ForwardStage::dispatch;
  return scopes.has(Scope::moe_router) ? ForwardStage::preprocess : ForwardStage::seam;
}

std::string unfit_for_any_graph(const RunFacts& run) {
  constexpr std::string_view kFix = ", which graphs cannot hold; set graphs.mode = none";
  if (run.offloads_activations) return str("activations are moved to the host", kFix);
  if (run.varying_lengths) return str("sequences are packed or vary in length", kFix);
  if (run.for_inference) return str("this is inference", kFix);
  if (run.hybrid_context_parallel) return str("context parallelism varies from sequence to sequence", kFix);
  return "";
}

/// How sizes of experts come to follow from no data, or stay on the device: "set KEY = VALUE, or ".
std::string fix_of_sizes(const RunFacts& run) {
  std::string fix = run.echo ? "" : "pad experts to a capacity";  // clones are for experts that take all rows
  if (!run.device_sizes_by.empty()) fix += str(fix.empty() ? "" : ", ", "set ", run.device_sizes_by);
  return fix.empty() ? "" : fix + ", or ";
}

}  // namespace

nn::LayerEdges edges_of(const ScopeSet& scopes, const LayerParts& layer) {
  constexpr std::size_t kAttention = 0, kMlp = 1, kNextLayer = 2;
  const bool has_attention = layer.attention && (scopes.empty() || scopes.has(Scope::attn));
  const std::optional<nn::ForwardStage> end = mlp_end(scopes, layer.moe);
  if (!has_attention && end == nn::ForwardStage::seam) return {};
  return {.begin = {has_attention ? kAttention : kMlp}, .end = end ? nn::Edge{kMlp, *end} : nn::Edge{kNextLayer}};
}

std::vector<BoundaryField> boundary_fields(const nn::LayerEdges& layer) {
  constexpr BoundaryField kContext{"context", true}, kShared{"shared_expert_output", true};
  if (layer.ends_layer()) return {{"layer_output"}, kContext};
  switch (layer.end.stage) {
    case nn::ForwardStage::preprocess:
      return {{"moe_input"}, {"probs"}, {"routing_map"}, kShared, {"layer_residual"}, kContext};
    case nn::ForwardStage::dispatch:
      return {{"permuted_hidden"},
              {"permuted_probs"},
              {"moe_residual", true},
              {"tokens_per_expert"},
              {"input_splits"},
              {"output_splits"},
              {"output_splits_tp"},
              {"num_out_tokens"},
              {"num_global_tokens_per_local_expert"},
              {"reversed_local_input_permutation_mapping"},
              {"routing_map"},
              {"shared_experts.gate_score", true},
              {"shared_experts.cached_fc1_input", true},
              kShared,
              {"layer_residual"},
              kContext};
    default:  // of attention alone
      return {{"layer_hidden"}, kContext};
  }
}

std::optional<BrokenRule> first_broken_rule(const ScopeSet& scopes, const RunFacts& run) {
  const auto has = [&](Scope scope) { return scopes.has(scope); };
  const bool any_moe = has(Scope::moe) || has(Scope::moe_router) || has(Scope::moe_preprocess);
  const bool whole_mlp = scopes.empty() || has(Scope::mlp) || has(Scope::moe);
  // Sizes that follow from data are no obstacle where only the device reads them.
  const bool host_sizes = run.capacity != Capacity::padded && !run.sizes_stay_on_device;
  const bool sized_by_data =
      run.capacity == Capacity::dropping || (run.capacity == Capacity::dropless && run.pads_routing);
  const std::string unfit = unfit_for_any_graph(run);
  const std::string sizes_fix = fix_of_sizes(run);
  const std::string of_moe =
      str("the sizes inside an MoE follow from data unless experts have a capacity and are padded to it; ", sizes_fix,
          "use moe_router");
  const std::string of_layers =
      str("whole layers hold experts whose sizes follow from data; ", sizes_fix, "name scopes");
  const bool recomputes_experts = run.moe_layers > 0 && (run.recomputes_layers || run.recomputes_experts);
  const struct {
    int number;
    bool broken;
    std::string_view text;
  } rules[] = {
      {3, has(Scope::moe) && has(Scope::moe_router), "moe holds the router already; keep one of moe and moe_router"},
      {4, has(Scope::moe_preprocess) && !has(Scope::moe_router), "moe_preprocess goes with moe_router; add it"},
      {5, any_moe && run.num_experts <= 1, "the model has no experts; use attn, mlp, or [] for whole layers"},
      {6, has(Scope::mlp) && run.dense_layers == 0, "every layer is an MoE; remove mlp"},
      {7, has(Scope::moe) && host_sizes, of_moe},
      {8, has(Scope::moe_preprocess) && run.dispatcher == Dispatcher::all_to_all && host_sizes && sized_by_data,
       "the number of permuted tokens follows from data, because tokens are dropped or counts rounded up; remove "
       "moe_preprocess"},
      {9, scopes.empty() && run.moe_layers > 0 && host_sizes, of_layers},
      {10, !unfit.empty(), unfit},
      {11, run.overlaps_experts && whole_mlp,
       "all-to-alls that run beside another microbatch's compute cut the MLP part; remove mlp and moe, or the overlap"},
      {12, has(Scope::moe_router) && recomputes_experts,
       "an MoE that is recomputed cannot be cut after its router; remove moe_router, or recompute less"},
      {12, has(Scope::mlp) && run.moe_layers > 0 && run.recomputes_groups && host_sizes,
       "the graph of an MLP would recompute the experts of the layers before it, whose sizes the host reads; remove "
       "mlp, "
       "or set recompute.layers = 1"},
      {13, run.echo && !run.echo_stops_at_boundary && (has(Scope::moe_router) || has(Scope::moe_preprocess)),
       "the host compares plans of clones; set moe.echo.check_plan = 0, or remove moe_router and moe_preprocess"},
      {14, run.num_stages > 1 && run.ramps_batch && !run.records_again,
       "graphs of a pipeline are made for one number of microbatches, and the batch grows; keep train.global_batch"},
      {15, run.random_on_host, "random numbers follow from host values, which a graph would repeat; set dropout to 0"},
      {16, run.maps_memory && run.nccl_registers,
       "NCCL cannot register mapped memory for graphs; set NCCL_GRAPH_REGISTER=0"},
  };
  for (const auto& rule : rules) {
    if (rule.broken) return BrokenRule{rule.number, std::string(rule.text)};
  }
  return std::nullopt;
}

void check_scopes(const GraphsConfig& config, const RunFacts& run, Problems& out) {
  if (config.mode != GraphMode::layers) return;
  if (const std::optional<BrokenRule> rule = first_broken_rule(config.scopes, run))
    out.add("graphs.scopes", text(config.scopes), rule->message());
}

}  // namespace megalith::capture
