#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/capture/graphs_config.h"
#include "megalith/nn/segments.h"

namespace megalith::capture {

// ---- what a scope covers --------------------------------------------------------------------------------------------

/// The parts of a layer: attention, then an MLP part, which is dense or a mixture of experts.
struct LayerParts {
  bool attention = true;
  bool moe = false;
};
/// The stages of such a layer that its graph holds. What precedes them runs eagerly first and passes its result to the
/// graph. What follows them runs eagerly on the same stream. The only place that knows what scopes mean.
nn::LayerEdges edges_of(const ScopeSet& scopes, const LayerParts& layer);

/// A tensor that the forward graph writes, and that the eager rest of the layer, or its backward, reads. It has a fixed
/// address for every microbatch in flight.
struct BoundaryField {
  std::string_view name;
  bool optional = false;  ///< only if the model has it (shared experts, cross attention)
};
/// The tensors that cross the end of a layer's graph, which must not be empty.
std::vector<BoundaryField> boundary_fields(const nn::LayerEdges& layer);

// ---- which scopes are legal -----------------------------------------------------------------------------------------

/// How many tokens an expert takes: all that are routed to it; at most a capacity (the rest are dropped); or always
/// exactly the capacity (missing ones are padding).
enum class Capacity : std::uint8_t { dropless, dropping, padded };
enum class Dispatcher : std::uint8_t { all_to_all, all_gather };

/// The facts of a run that the rules on scopes need. The defaults are those of a run without the feature.
struct RunFacts {
  Index dense_layers = 0, moe_layers = 0;  ///< of the whole model
  int num_stages = 1;                      ///< pp

  // Mixture of experts.
  Index num_experts = 0;
  Capacity capacity = Capacity::dropless;
  Dispatcher dispatcher = Dispatcher::all_to_all;
  bool pads_routing = false;            ///< the router's counts are rounded up for 8-bit GEMMs
  bool sizes_stay_on_device = false;    ///< the host reads no number of rows: one rank holds all experts of its rows
  std::string device_sizes_by = {};     ///< settings of a recipe with which it reads none; empty: there are none
  bool overlaps_experts = false;        ///< all-to-alls of one microbatch run concurrently with the compute of another
  bool echo = false;                    ///< hot experts are copied to other ranks
  bool echo_stops_at_boundary = false;  ///< ... by code that can stop at the end of a graph

  // What backward recomputes. Random numbers have no state, so a second pass draws the same numbers inside a graph.
  bool recomputes_layers = false;   ///< whole layers
  bool recomputes_groups = false;   ///< ... several at once, in the last of them
  bool recomputes_experts = false;  ///< an MoE

  bool offloads_activations = false;
  bool varying_lengths = false;  ///< packed sequences, or sequences of varying length
  bool for_inference = false;
  bool hybrid_context_parallel = false;
  bool ramps_batch = false;     ///< the number of microbatches grows during training
  bool records_again = false;   ///< ... and graphs are then recorded again
  bool random_on_host = false;  ///< random numbers depend on an argument instead of device memory
  bool maps_memory = false;     ///< memory comes from virtual mappings
  bool nccl_registers = false;  ///< NCCL registers the buffers that graphs use
};

/// Rules on scopes are numbered as in docs/graphs.md. V1 and V2 are in read_scopes(), V3 to V16 are here.
struct BrokenRule {
  int number = 0;
  std::string text;  ///< the error and its fix

  std::string message() const { return rule_text(number, text); }
};
/// The first rule that graphs of layers with these scopes break in such a run.
std::optional<BrokenRule> first_broken_rule(const ScopeSet& scopes, const RunFacts& run);

/// The same as a problem of graphs.scopes. Reports nothing unless mode = layers.
void check_scopes(const GraphsConfig& config, const RunFacts& run, Problems& out);

}  // namespace megalith::capture
