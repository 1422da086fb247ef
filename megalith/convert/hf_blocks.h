#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/convert/hf_family.h"

namespace megalith::convert {

// What the families with Llama's blocks have in common: RMS norms, rotations, kv heads, gated MLPs. Rotations pair
// numbers i and i + D/2 of a head there as here, so no row of q and k moves.
// Source: github.com/huggingface/transformers, models/llama (names and layout), modeling_rope_utils.py.

/// Sizes, norms, rotations and the tie of the head: of both spellings, rope_theta beside rope_scaling, and
/// rope_parameters, in which transformers 5 has both. Biases stay none. Throws InputError, also for another activation,
/// another scaling, attention to a window, clipped q, k and v.
model::ModelConfig read_blocks(const HfConfig& config);
/// The same keys, in the spelling that every version of the library reads.
nlohmann::ordered_json write_blocks(const model::ModelConfig& model);
/// What the blocks have and the model has not.
std::string blocks_misfit(const model::ModelConfig& model);
/// Embedding, head, norms, attention and dense MLPs; nothing for parameters of another name.
std::vector<HfTensor> block_tensors(const model::ModelConfig& model, std::string_view ours, const Shape& shape);

}  // namespace megalith::convert
