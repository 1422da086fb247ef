#pragma once
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/convert/hf_config.h"
#include "megalith/convert/hf_tensor.h"
#include "megalith/model/model_config.h"

namespace megalith::convert {

/// For a family that stores no tensors of zeros: nothing.
std::vector<HfTensor> no_zeros(const model::ModelConfig& model);
/// A buffer of rotations that older versions saved.
bool is_rotation_buffer(std::string_view name);

/// A family of models of the transformers library: one row. Names are without `prefix`, but those of the head. Values
/// that most families share are given here.
struct HfFamily {
  std::string_view model_type;         ///< in config.json
  std::string_view architecture;       ///< in config.json, and the class that loads it
  std::string_view name;               ///< for messages
  std::string_view prefix = "model.";  ///< in front of all names but the head's; some files leave it out

  /// Throws InputError for a model that megalith would compute otherwise.
  model::ModelConfig (*read_config)(const HfConfig& config);
  /// The keys of config.json that are the family's own.
  nlohmann::ordered_json (*write_config)(const model::ModelConfig& model);
  /// What the family requires and the model lacks, as a recipe writes it ("model.norm = layer"); empty: it can be
  /// exported.
  std::string (*misfit)(const model::ModelConfig& model);
  /// The tensors that fill a parameter of ours, of this shape, each element once; nothing for an unknown one.
  std::vector<HfTensor> (*tensors_of)(const model::ModelConfig& model, std::string_view ours, const Shape& shape);
  /// Tensors that the family has and the model has not, which then are zeros and may be missing: an export writes them.
  std::vector<HfTensor> (*zeros)(const model::ModelConfig& model) = no_zeros;
  /// Whether a tensor that files may hold is no parameter.
  bool (*is_ignored)(std::string_view name) = is_rotation_buffer;
  /// tensors_of() where a folder holds all experts of a layer in one tensor (kFusedExperts); null: they have no
  /// experts.
  std::vector<HfTensor> (*fused_tensors_of)(const model::ModelConfig& model, std::string_view ours,
                                            const Shape& shape) = nullptr;
};

extern const HfFamily kHfGpt2, kHfLlama, kHfMixtral, kHfOlmoe, kHfQwen2Moe, kHfQwen3Moe;
std::span<const HfFamily* const> hf_families();

/// The table of logits. It has no prefix.
inline constexpr std::string_view kHfHead = "lm_head.weight";
/// Ends the names of tensors that save_pretrained(save_original_format=False) of transformers 5 writes.
inline constexpr std::string_view kFusedExperts = ".mlp.experts.gate_up_proj";

/// "layers.12.mlp.up.weight" -> "12" and "mlp.up.weight"; nothing for parameters outside the layers.
struct LayerParam {
  std::string_view number, name;
};
std::optional<LayerParam> layer_param(std::string_view ours);

struct NeededPart {
  bool has;
  std::string_view setting;
};
/// The first rule that does not hold: `before`, unless it is empty, else of `parts`.
std::string first_misfit(std::string before, std::initializer_list<NeededPart> parts);
inline std::string first_misfit(std::initializer_list<NeededPart> parts) { return first_misfit({}, parts); }
inline constexpr std::string_view kNoExperts = "no [moe]";

}  // namespace megalith::convert
