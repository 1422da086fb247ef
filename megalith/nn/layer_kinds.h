#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace megalith::nn {

// The parts that a block may have, and their names in recipes, in the order of the enumerators.

enum class NormKind : std::uint8_t { layer, rms };
inline constexpr std::array<std::string_view, 2> kNormKindNames = {"layer", "rms"};

/// Where the norms of a residual stream are: before each sublayer, with one at the end of the model (pre), or after
/// each residual sum, with one after the embeddings (post).
enum class NormPlacement : std::uint8_t { pre, post };
inline constexpr std::array<std::string_view, 2> kNormPlacementNames = {"pre", "post"};

/// Where a token's position comes from: a table that is added to its embedding, or rotations of q and k.
enum class PositionKind : std::uint8_t { learned, rope };
inline constexpr std::array<std::string_view, 2> kPositionKindNames = {"learned", "rope"};

/// The norm of q and k before the rotation: none, over each head, or over all heads of q and of k.
enum class QkNorm : std::uint8_t { none, head, all };
inline constexpr std::array<std::string_view, 3> kQkNormNames = {"none", "head", "all"};

/// Between the two GEMMs of an MLP. gelu: its tanh form. swiglu: the first GEMM makes gate and up. gelu_erf: with the
/// error function.
enum class Activation : std::uint8_t { gelu, swiglu, gelu_erf };
inline constexpr std::array<std::string_view, 3> kActivationNames = {"gelu", "swiglu", "gelu_erf"};

/// Which GEMMs of a layer add a bias: all, that of q, k and v alone, or none.
enum class Biases : std::uint8_t { all, qkv, none };
inline constexpr std::array<std::string_view, 3> kBiasesNames = {"all", "qkv", "none"};

}  // namespace megalith::nn
