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

/// A tensor that files may hold as a copy of another one: of the tensor that fills a parameter of ours.
struct HfCopy {
  std::string name;
  std::string_view ours;
  Shape shape;
};

/// For a family that stores no tensors of zeros: nothing.
std::vector<HfTensor> no_zeros(const model::ModelConfig& model);
/// The table of logits, where it is the token table.
std::vector<HfCopy> tied_table(const model::ModelConfig& model);
/// A buffer of rotations that older versions saved.
bool is_rotation_buffer(std::string_view name);
/// For a family whose tensors have one name each.
std::vector<std::string> no_other_names(std::string_view name);
/// For a family whose folders have nothing that the library leaves out.
std::string_view nothing_left_out(const model::ModelConfig& model, std::string_view name);
/// For a family whose folders have all heads.
std::string_view no_lacking_head(std::string_view ours);

inline constexpr std::string_view kLmHeads[] = {"lm_head."};

/// A family of models of the transformers library: one row. Names are without `prefix`, but those of heads. Values
/// that most families share are given here.
struct HfFamily {
  std::string_view model_type;         ///< in config.json
  std::string_view architecture;       ///< in config.json, and the class that loads it
  std::string_view name;               ///< for messages
  std::string_view prefix = "model.";  ///< in front of all names but those of heads; some files leave it out
  std::span<const std::string_view> heads = kLmHeads;  ///< begin the names that have no prefix
  /// Further classes of such models, by one of which config.json may name them.
  std::span<const std::string_view> other_architectures = {};

  bool is_bert = false;  ///< masked language models; else decoders

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
  /// Whether those of a folder must be zeros. False: a model computes the same with any values.
  bool needs_zeros = true;
  std::vector<HfCopy> (*copies)(const model::ModelConfig& model) = tied_table;
  /// Whether a tensor that files may hold is no parameter.
  bool (*is_ignored)(std::string_view name) = is_rotation_buffer;
  /// The part that a tensor of a folder belongs to, for messages, where the library's class has no such part and leaves
  /// it out; else "".
  std::string_view (*left_out)(const model::ModelConfig& model, std::string_view name) = nothing_left_out;
  /// tensors_of() where a folder holds all experts of a layer in one tensor (kFusedExperts); null: they have no
  /// experts.
  std::vector<HfTensor> (*fused_tensors_of)(const model::ModelConfig& model, std::string_view ours,
                                            const Shape& shape) = nullptr;
  /// Names that a tensor has in some files instead of its own.
  std::vector<std::string> (*other_names)(std::string_view name) = no_other_names;
  /// The head of a parameter of ours, for messages, where a folder may lack all of that head; else "".
  std::string_view (*lacking_head)(std::string_view ours) = no_lacking_head;
  /// The class that an export names, where that depends on the model; null: `architecture`.
  std::string_view (*written_architecture)(const model::ModelConfig& model) = nullptr;

  /// The name of a tensor in files, where names have this prefix.
  std::string full_name(std::string_view tensor, std::string_view files_prefix) const;
};

extern const HfFamily kHfGpt2, kHfLlama, kHfMixtral, kHfOlmoe, kHfQwen2Moe, kHfQwen3Moe, kHfBert, kHfMegatronBert;
std::span<const HfFamily* const> hf_families();

/// The table of logits of a language model.
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
