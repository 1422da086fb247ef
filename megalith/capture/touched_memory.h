#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "megalith/capture/scopes.h"
#include "megalith/runtime/graph_cache.h"
#include "megalith/runtime/memory_plan.h"
#include "megalith/tensor/memory.h"

namespace megalith::capture {

/// Ranges of memory. Overlapping and adjacent ranges are merged, and bytes count once.
class Stretches {
 public:
  struct Stretch {
    std::uintptr_t begin = 0, end = 0;
    auto operator<=>(const Stretch&) const = default;
  };
  static Stretch of(const void* begin, Index bytes);
  static Stretch of(const Tensor& tensor) { return of(tensor.raw(), tensor ? tensor.bytes() : 0); }

  void add(Stretch stretch);
  void remove(Stretch stretch);
  void add(const Stretches& others);
  void remove(const Stretches& others);
  /// The part of a range that is not in here.
  Stretches missing(Stretch stretch) const;
  std::vector<Stretch> all() const;
  Index bytes() const;

 private:
  std::map<std::uintptr_t, std::uintptr_t> ends_;  // by begin
};
Stretches common(const Stretches& a, const Stretches& b);

/// The role of a buffer for the graphs of layers that access it.
enum class Role : std::uint8_t {
  layer_input,
  chunk_input,  ///< of its first layer
  saved,        ///< from a forward graph for its backward
  output,
  output_grad,
  input_grad,
  step_state,
  weights,  ///< and their gradients
  any       ///< all memory that graphs access, also what stays within one
};
inline constexpr std::size_t kRoles = 9;
/// Buffers of the roles before it cross the edge of a graph.
inline constexpr auto kEdgeRoles = static_cast<std::size_t>(Role::step_state);
std::string_view name(Role role);

/// Owners of a run's memory (MemoryLedger) in which graphs may access buffers. The last one stands for all others.
inline constexpr std::array<std::string_view, 11> kTouchedOwners = {
    "activations", kScratchOwner,      "pipeline buffers", "inputs",       "parameters", "parameter copies",
    "gradients",   "gradient windows", "optimizer",        "step scalars", "elsewhere"};

/// Where the memory plan has the data of a buffer that graphs would otherwise own.
struct PlannedPlace {
  Role role;
  std::string_view place;  ///< in words
  std::vector<std::string_view> owners;
};
/// The places of graphs that hold these stages of their layers (each layer has attention). Empty if there are none.
std::vector<PlannedPlace> planned_places(const nn::LayerEdges& layer);

/// The memory of captured graphs, from the addresses that their ops access. Plain bytes, so that ranks can send it.
struct TouchedMemory {
  struct Buffers {
    Index count = 0, bytes = 0;
    bool operator==(const Buffers&) const = default;
  };
  // The largest number of buffers of graphs of layers that are alive at the same time. Inputs, outputs and saved
  // tensors live from a layer's forward to its backward. Output gradients live while a backward runs. Second inputs,
  // those in scratch, live while a forward runs. Two with the same address count once, and so do adjacent ones of a
  // graph.
  Buffers inputs = {}, second_inputs = {}, outputs = {}, saved = {}, output_grads = {};
  /// The bytes of a step, by role and owner.
  std::array<std::array<Index, kTouchedOwners.size()>, kRoles> bytes{};
  /// The bytes of these that two roles have in common: memory of one that is also memory of the other, at the same or
  /// at another time.
  std::array<std::array<Index, kEdgeRoles>, kEdgeRoles> shared{};

  Index in(Role role, std::size_t owner) const { return bytes[static_cast<std::size_t>(role)][owner]; }
  bool operator==(const TouchedMemory&) const = default;
};

/// The memory that the graphs of a step's layers touch. `memory`: that of the run, by owner. Throws InternalError
/// unless each forward has a backward.
TouchedMemory touched_memory(const GraphCache& layers, std::span<const MemoryLedger::Block> memory);
/// The same for one graph without edges of layers: only Role::any.
TouchedMemory touched_memory(const Graph& graph, std::span<const MemoryLedger::Block> memory);

}  // namespace megalith::capture
