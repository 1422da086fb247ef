#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/capture/graphs_config.h"

namespace megalith::capture {

// ---- what a scope covers --------------------------------------------------------------------------------------------

/// What a layer is made of: an attention part, then an MLP part, which is dense or a mixture of experts.
struct LayerParts {
  bool attention = true;
  bool moe = false;
};

/// How far a graph goes into the MLP part of a layer. `router`: norm, shared experts and routing of an MoE; then it
/// ends. `preprocess`: also the dispatcher's counts and first permutation. `whole`: to the layer's output.
enum class MlpCover : std::uint8_t { none, router, preprocess, whole };

/// The part of one layer that its graph covers: one contiguous piece. What is before it runs eagerly first, and hands
/// its result to the graph; what is after it runs eagerly on the same stream.
struct Coverage {
  bool attention = false;
  MlpCover mlp = MlpCover::none;
  /// Layers end in the next one's norm: where a layer has one below in its chunk, it begins with that one's last sum.
  bool ends_layer_below = false;
  bool operator==(const Coverage&) const = default;
  /// Whether the layer has a graph at all; others run eagerly.
  bool any() const { return attention || mlp != MlpCover::none; }
};
Coverage covered(const ScopeSet& scopes, const LayerParts& layer);

/// Something that the forward graph writes and the eager rest of the layer, or its backward, reads: a tensor at a fixed
/// address, of its own for every microbatch in flight.
struct BoundaryField {
  std::string_view name;
  bool optional = false;  ///< only where the model has it (shared experts, cross attention)
};
/// What crosses the end of a graph that covers `coverage`, which is not empty.
std::vector<BoundaryField> boundary_fields(const Coverage& coverage);

// ---- which scopes are legal -----------------------------------------------------------------------------------------

/// How many tokens an expert takes: all that are routed to it, at most a capacity (the rest are dropped), or always
/// just the capacity (missing ones are padding).
enum class Capacity : std::uint8_t { dropless, dropping, padded };
enum class Dispatcher : std::uint8_t { all_to_all, all_gather };

/// What of a run the rules on scopes ask for. The defaults are what a run without the feature has.
struct RunFacts {
  Index dense_layers = 0, moe_layers = 0;  ///< of the whole model
  int num_stages = 1;                      ///< pp

  // Mixture of experts.
  Index num_experts = 0;
  Capacity capacity = Capacity::dropless;
  Dispatcher dispatcher = Dispatcher::all_to_all;
  bool pads_routing = false;            ///< the router's counts are rounded up for 8-bit products
  bool overlaps_experts = false;        ///< all-to-alls of a microbatch run beside another's compute
  bool echo = false;                    ///< hot experts are copied to other ranks
  bool echo_stops_at_boundary = false;  ///< ... by code that can stop where a graph ends

  // What backward computes again. Random numbers have no state, so a second pass draws the same inside a graph.
  bool recomputes_layers = false;   ///< whole ones
  bool recomputes_experts = false;  ///< an MoE

  bool offloads_activations = false;
  bool varying_lengths = false;  ///< packed sequences, or sequences of varying length
  bool for_inference = false;
  bool hybrid_context_parallel = false;
  bool ramps_batch = false;     ///< the number of microbatches grows during training
  bool records_again = false;   ///< ... and graphs are recorded again when it does
  bool random_on_host = false;  ///< what random numbers follow from is an argument, not device memory
  bool maps_memory = false;     ///< memory comes from virtual mappings
  bool nccl_registers = false;  ///< NCCL registers the buffers that graphs use
};

/// Rules on scopes are numbered as in docs/graphs.md: V1 and V2 are read_scopes()'s, V3 to V16 are here.
struct BrokenRule {
  int number = 0;
  std::string text;  ///< what is wrong and how to put it right
};
/// The first rule that graphs of layers with these scopes break in such a run.
std::optional<BrokenRule> first_broken_rule(const ScopeSet& scopes, const RunFacts& run);

/// The same as a problem of graphs.scopes. Says nothing unless mode = layers.
void check_scopes(const GraphsConfig& config, const RunFacts& run, Problems& out);

}  // namespace megalith::capture
