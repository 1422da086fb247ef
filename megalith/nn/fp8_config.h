#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "megalith/params/policy.h"

namespace megalith::nn {

/// The layers of a model whose GEMMs stay in bf16 although the policy has FP8 operands.
enum class Fp8Skip : std::uint8_t { none, first, last, first_and_last };
inline constexpr std::array<std::string_view, 4> kFp8SkipNames = {"none", "first", "last", "first,last"};

/// The models whose experts have FP8 operands: wide ones, all, none.
enum class Fp8Experts : std::uint8_t { wide, all, none };
inline constexpr std::array<std::string_view, 3> kFp8ExpertsNames = {"wide", "all", "none"};
/// Hidden size from which on GEMMs of experts are faster in FP8 than in bf16, measured on an H200 (docs/benchmarks.md).
inline constexpr Index kFp8ExpertWidth = 2048;

/// Section [fp8]: how a model uses FP8 operands, where Policy::gemms is e4m3.
struct Fp8Config {
  Fp8Skip skip_layers = Fp8Skip::none;
  bool weight_grad = false;  ///< weight gradients have FP8 operands, too
  bool head = false;         ///< so has the head of a language model
  Fp8Experts experts = Fp8Experts::wide;
  bool operator==(const Fp8Config&) const = default;
};

/// The formats of the GEMMs of a layer's linear parts.
struct GemmFormats {
  GemmFormat rows = GemmFormat::compute;  ///< of the forward pass and of the gradient of the input
  GemmFormat weight_grad = GemmFormat::compute;
};

/// The formats of GEMMs whose operands are in `format`, but for those of weight gradients without config.weight_grad.
constexpr GemmFormats formats_with(GemmFormat format, const Fp8Config& config) {
  return {format, config.weight_grad ? format : GemmFormat::compute};
}

/// The formats of layer `layer`, counted from 0, in a model of `layers` layers.
constexpr GemmFormats gemm_formats(GemmFormat format, const Fp8Config& config, Index layer, Index layers) {
  const bool skips_first = config.skip_layers == Fp8Skip::first || config.skip_layers == Fp8Skip::first_and_last,
             skips_last = config.skip_layers == Fp8Skip::last || config.skip_layers == Fp8Skip::first_and_last;
  if ((skips_first && layer == 0) || (skips_last && layer == layers - 1)) return {};
  return formats_with(format, config);
}

/// The format of experts' operands, in a model of this hidden size whose layers have `format`.
constexpr GemmFormat expert_format(GemmFormat format, const Fp8Config& config, Index hidden) {
  const bool is_wide = config.experts == Fp8Experts::wide && hidden >= kFp8ExpertWidth;
  return is_wide || config.experts == Fp8Experts::all ? format : GemmFormat::compute;
}
/// Those of the experts of a layer with formats `layer`.
constexpr GemmFormats expert_formats(const GemmFormats& layer, const Fp8Config& config, Index hidden) {
  return expert_format(layer.rows, config, hidden) == layer.rows ? layer : GemmFormats{};
}

/// Those of the head.
constexpr GemmFormats head_formats(GemmFormat format, const Fp8Config& config) {
  return config.head ? formats_with(format, config) : GemmFormats{};
}

}  // namespace megalith::nn
