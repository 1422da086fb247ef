#pragma once
#include <span>
#include <string>
#include <string_view>

namespace megalith::config {

/// Names of one thing in other programs (nanoGPT, llm.c, Hugging Face, Megatron-LM, torchtitan, DeepSpeed, PyTorch
/// Lightning), and the key of a recipe for it.
struct OtherName {
  std::string_view names;  ///< words in lower case, with spaces between; a full name ("optimizer.type"), its last part,
                           ///< the whole with _ for . ("moe_router_topk"), or all names of a section ("lora.*")
  std::string_view key;    ///< ours; empty: there is none
  std::string_view how;    ///< a sentence on values that must be converted, or on why there is no key; empty: as it is
};
std::span<const OtherName> other_names();

/// In the form of our keys: "model.nLayer" -> "model.n_layer", "--num-layers" -> "num_layers".
std::string as_key(std::string_view name);

/// The choice that was meant by another value: what another program calls by it, else the nearest by spelling, or "".
std::string_view meant_value(std::string_view value, std::span<const std::string_view> choices);

/// How a recipe has what this value of a key is in other programs: a sentence, or "" if it is not known.
std::string_view how_to_write(std::string_view key, std::string_view value);

/// The row of a name as people write it: "n_layer", "model.nLayer", "--num-layers". nullptr: not known.
const OtherName* find_other_name(std::string_view name);

}  // namespace megalith::config
