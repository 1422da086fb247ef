#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/problems.h"
#include "megalith/base/types.h"

namespace megalith::capture {

/// What a run records as CUDA graphs: nothing, the captured part of every layer (one graph forward, one backward), or
/// the forward and backward passes of a whole step.
enum class GraphMode : std::uint8_t { none, layers, iteration };

/// Whether a captured layer has one graph pair per microbatch of a step, or one per slot of microbatches in flight.
enum class GraphsPer : std::uint8_t { microbatch, slot };

/// A part of layers that graphs cover. scopes.h defines which part of which layer.
enum class Scope : std::uint8_t { attn, mlp, moe, moe_router, moe_preprocess };
inline constexpr int kNumScopes = 5;

/// The names in recipes, in the order of the enumerators.
inline constexpr std::array<std::string_view, 3> kGraphModeNames = {"none", "layers", "iteration"};
inline constexpr std::array<std::string_view, 2> kGraphsPerNames = {"microbatch", "slot"};
std::string_view name(GraphMode mode);
std::string_view name(GraphsPer per);
std::string_view name(Scope scope);  ///< "moe_router"

/// The scopes of a recipe. An empty set means whole layers.
class ScopeSet {
 public:
  ScopeSet() = default;
  ScopeSet(std::initializer_list<Scope> scopes) {
    for (const Scope scope : scopes) add(scope);
  }
  void add(Scope scope) { bits_ |= bit(scope); }
  bool has(Scope scope) const { return (bits_ & bit(scope)) != 0; }
  bool empty() const { return bits_ == 0; }
  std::vector<std::string> names() const;  ///< in the order of Scope
  bool operator==(const ScopeSet&) const = default;

 private:
  static unsigned bit(Scope scope) { return 1U << static_cast<unsigned>(scope); }
  unsigned bits_ = 0;
};
/// "[attn, mlp]"
std::string text(const ScopeSet& scopes);

/// Section [graphs] of a recipe, resolved. With mode = none the other members have no effect.
struct GraphsConfig {
  GraphMode mode = GraphMode::none;
  ScopeSet scopes;                        ///< layers only
  GraphsPer per = GraphsPer::microbatch;  ///< layers only
  Index warmup_steps = 3;                 ///< steps before graphs are recorded
  bool optimizer = false;                 ///< iteration only: the graph holds the optimizer too
  Index check_steps = 0;  ///< the first steps from graphs after their capture that are compared with eager runs
};

/// "every layer is an MoE; remove mlp (rule V6 of docs/graphs.md)"
std::string rule_text(int number, std::string_view text);

/// Reads graphs.scopes. Reports broken rules: V1 (an unknown name; "full", which means whole layers, beside other
/// names) or V2 ("full_iteration" without mode = iteration, whose other name it is). Then there are no scopes.
ScopeSet read_scopes(std::span<const std::string> names, GraphMode mode, Problems& out);

/// Reports keys that do not fit together, under their names in the recipe.
void check(const GraphsConfig& config, Problems& out);

}  // namespace megalith::capture
