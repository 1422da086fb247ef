#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/problems.h"
#include "megalith/base/types.h"

namespace megalith::nn {

enum class RecomputeMode : std::uint8_t { none, selective, full };
/// For `full`: groups of consecutive layers over the whole chunk, or only the first layers of the chunk, each by
/// itself.
enum class RecomputeMethod : std::uint8_t { uniform, block };
/// For `selective`: what the backward pass of each layer recomputes.
///   gelu: the activation of MLPs and shared experts, from the output of the first GEMM. Experts never keep it;
///   norms: the outputs of norms, from the residual stream;
///   attention: its output, from q, k and v;
///   mlp: the first GEMM and the activation of MLPs and experts, from their input;
///   dispatch: the rows of experts, by another exchange. Ranks that exchange none keep none.
enum class RecomputeModule : std::uint8_t { gelu, norms, attention, mlp, dispatch };
inline constexpr int kNumRecomputeModules = 5;

/// The names in recipes, in the order of the enumerators.
inline constexpr std::array<std::string_view, 3> kRecomputeModeNames = {"none", "selective", "full"};
inline constexpr std::array<std::string_view, 2> kRecomputeMethodNames = {"uniform", "block"};
std::string_view name(RecomputeMode mode);
std::string_view name(RecomputeMethod method);
std::string_view name(RecomputeModule module);

/// Section [recompute] of a recipe, resolved: what backward passes recompute instead of keeping it. Results do not
/// change, except for gelu in 16 bits (ops/elementwise.h). Sources: Chen et al. 2016, arXiv:1604.06174; Korthikanti et
/// al. 2022, arXiv:2205.05198, section 5.
struct RecomputeConfig {
  RecomputeMode mode = RecomputeMode::none;
  RecomputeMethod method = RecomputeMethod::uniform;
  Index layers = 1;  ///< full: layers of a group (uniform), or of each chunk (block)
  unsigned module_bits = 0;

  /// Whether the mode is selective and names the module.
  bool has(RecomputeModule module) const { return mode == RecomputeMode::selective && names(module); }
  bool names(RecomputeModule module) const { return (module_bits >> static_cast<unsigned>(module) & 1U) != 0; }
  void add(RecomputeModule module) { module_bits |= 1U << static_cast<unsigned>(module); }
  std::vector<std::string> modules() const;  ///< in the order of RecomputeModule
  bool operator==(const RecomputeConfig&) const = default;
};

/// Reads recompute.modules. Reports unknown names with the nearest known one, and returns whether there are none.
bool read_modules(std::span<const std::string> names, RecomputeConfig& config, Problems& out);

/// Reports keys that do not fit together, under their names in the recipe. `max_layers`: of the largest chunk.
void check(const RecomputeConfig& config, Index max_layers, Problems& out);

}  // namespace megalith::nn
