#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/convert/hf_family.h"

namespace megalith::convert {

// What the families with Llama's blocks have in common: RMS norms, rotations, kv heads, gated MLPs. Rotations pair
// numbers i and i + D/2 of a head there as here, so no row of q and k moves.
// Source: github.com/huggingface/transformers, models/llama (names and layout), modeling_rope_utils.py.

/// What a family's class takes for keys that config.json lacks.
struct BlockDefaults {
  double rope_theta = 10000, norm_eps = 1e-6;
  Index seq_len = 2048;
  bool kv_heads_are_heads = true;  ///< false: num_key_value_heads must be given
  bool uses_window = true;         ///< whether sliding_window counts without use_sliding_window
};

/// Sizes, norms, rotations and the tie of the head: of both spellings, rope_theta beside rope_scaling, and
/// rope_parameters, in which transformers 5 has both. Biases stay none. Throws InputError, also for another activation,
/// another scaling, attention to a window, clipped q, k and v.
model::ModelConfig read_blocks(const HfConfig& config, const BlockDefaults& defaults = {});
/// The same keys, in the spelling that every version of the library reads.
nlohmann::ordered_json write_blocks(const model::ModelConfig& model);
/// What the blocks have and the model has not.
std::string blocks_misfit(const model::ModelConfig& model);
/// Embedding, head, norms, attention and dense MLPs; nothing for parameters of another name.
std::vector<HfTensor> block_tensors(const model::ModelConfig& model, std::string_view ours, const Shape& shape);
/// q, k and v, each a tensor of its own. Ours has, for each kv head, its q heads, its k, its v.
std::vector<HfTensor> qkv_tensors(const model::ModelConfig& model, const std::array<std::string, 3>& names,
                                  const Shape& ours);
/// Gate and up [F, H] below `theirs` ("layers.2.mlp.") of ours [F, 2, H]; of biases [F] and [F, 2].
std::vector<HfTensor> gate_up_tensors(const std::string& theirs, std::string_view kind, const Shape& ours);
/// The zeros of an attention_bias, which brings biases of q, k, v and o, where a model has only those of q, k and v.
std::vector<HfTensor> zero_out_biases(const model::ModelConfig& model);

}  // namespace megalith::convert
