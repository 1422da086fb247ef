#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/problems.h"
#include "megalith/base/types.h"

namespace megalith::model {

/// Section [model] of a recipe, resolved. Symbols: L layers, H hidden, A heads, F ffn, S sequence, v vocabulary, V
/// padded.
struct ModelConfig {
  std::string family = "gpt2";
  Index num_layers = 0, hidden_size = 0, num_heads = 0, ffn_hidden_size = 0;
  Index seq_len = 0, vocab_size = 0, padded_vocab_size = 0;
  double dropout = 0.1, attention_dropout = 0.1, embedding_dropout = 0.1;
};

/// The shape of a published model. vocab_size is the tokenizer's; padded_vocab_size 0: from tp (128 * tp).
struct Preset {
  std::string_view name;
  Index num_layers, hidden_size, num_heads, vocab_size, padded_vocab_size, seq_len;
  std::string_view source;
};
/// GPT-2's own sizes, and those of Shoeybi et al. 2019, arXiv:1909.08053, tables 1 and 2 (their vocabulary is padded to
/// 51,200 for every tp).
std::span<const Preset> presets();
/// Throws ConfigError that names the nearest preset.
const Preset& preset(std::string_view name);

/// A plan takes time and memory for each layer. A typing error must not cost minutes and gigabytes.
inline constexpr Index kMaxLayers = 65'535;

/// The smallest multiple of 128 * tp that holds the vocabulary, so that every shard is a multiple of 128.
Index padded_vocab_size(Index vocab_size, int tp);

/// Rules over several sizes, and over sizes and the tensor-parallel size, under the recipe's keys. All sizes must be
/// positive.
void check(const ModelConfig& model, int tp, Problems& out);

}  // namespace megalith::model
