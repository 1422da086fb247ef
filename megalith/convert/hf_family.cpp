#include "megalith/convert/hf_family.h"

#include <algorithm>
#include <array>

#include "megalith/base/str.h"
#include "megalith/model/chunk.h"

namespace megalith::convert {

std::span<const HfFamily* const> hf_families() {
  static constexpr std::array<const HfFamily*, 8> kFamilies = {
      &kHfGpt2, &kHfLlama, &kHfMixtral, &kHfOlmoe, &kHfQwen2Moe, &kHfQwen3Moe, &kHfBert, &kHfMegatronBert};
  return kFamilies;
}

std::optional<LayerParam> layer_param(std::string_view ours) {
  constexpr std::string_view kLayers = "layers.";
  const std::size_t dot = ours.find('.', kLayers.size());
  if (!ours.starts_with(kLayers) || dot == std::string_view::npos) return std::nullopt;
  return LayerParam{ours.substr(kLayers.size(), dot - kLayers.size()), ours.substr(dot + 1)};
}

std::string HfFamily::full_name(std::string_view tensor, std::string_view files_prefix) const {
  const bool is_of_head = std::ranges::any_of(heads, [&](std::string_view head) { return tensor.starts_with(head); });
  return is_of_head ? std::string(tensor) : str(files_prefix, tensor);
}

std::vector<HfTensor> no_zeros(const model::ModelConfig&) { return {}; }

std::vector<HfCopy> tied_table(const model::ModelConfig& model) {
  if (model.tying != model::Tying::tied) return {};
  return {{std::string(kHfHead), model::kTokenTable, {model.vocab_size, model.hidden_size}}};
}

std::vector<std::string> no_other_names(std::string_view) { return {}; }

std::string_view nothing_left_out(const model::ModelConfig&, std::string_view) { return {}; }
std::string_view no_lacking_head(std::string_view) { return {}; }

bool is_rotation_buffer(std::string_view name) { return name.ends_with(".self_attn.rotary_emb.inv_freq"); }

std::string first_misfit(std::string before, std::initializer_list<NeededPart> parts) {
  if (!before.empty()) return before;
  for (const NeededPart& part : parts) {
    if (!part.has) return std::string(part.setting);
  }
  return {};
}

}  // namespace megalith::convert
