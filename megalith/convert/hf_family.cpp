#include "megalith/convert/hf_family.h"

#include <array>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::convert {

std::span<const HfFamily* const> hf_families() {
  static constexpr std::array<const HfFamily*, 2> kFamilies = {&kHfGpt2, &kHfLlama};
  return kFamilies;
}

std::optional<LayerParam> layer_param(std::string_view ours) {
  constexpr std::string_view kLayers = "layers.";
  const std::size_t dot = ours.find('.', kLayers.size());
  if (!ours.starts_with(kLayers) || dot == std::string_view::npos) return std::nullopt;
  return LayerParam{ours.substr(kLayers.size(), dot - kLayers.size()), ours.substr(dot + 1)};
}

void throw_no_place(std::string_view ours, const HfFamily& family) {
  throw InternalError(str("[convert] parameter ", ours, " has no place in a ", family.architecture));
}

std::string first_misfit(std::span<const NeededPart> parts) {
  for (const NeededPart& part : parts) {
    if (!part.has) return std::string(part.setting);
  }
  return {};
}

}  // namespace megalith::convert
