#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/problems.h"
#include "megalith/base/types.h"
#include "megalith/data/bert_config.h"
#include "megalith/nn/layer_kinds.h"
#include "megalith/nn/moe/moe_config.h"
#include "megalith/nn/task_form.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/rope.h"

namespace megalith::model {

/// Whether the head's logits are made with the token table, or with a table of its own.
enum class Tying : std::uint8_t { untied, tied };

/// [model] of a recipe, resolved. Symbols: L layers, H hidden, A heads, G kv heads, D head, F ffn, S sequence,
/// v vocabulary, V padded.
struct ModelConfig {
  std::string family = "gpt2";
  Index num_layers = 0, hidden_size = 0, num_heads = 0, ffn_hidden_size = 0;
  Index num_kv_heads = 0, head_dim = 0;  ///< 0: num_heads, hidden_size / num_heads
  Index seq_len = 0, vocab_size = 0, padded_vocab_size = 0;
  Index num_positions = 0;  ///< rows of the table of positions; 0: seq_len
  double dropout = 0.1, attention_dropout = 0.1, embedding_dropout = 0.1;
  nn::NormKind norm = nn::NormKind::layer;
  double norm_eps = 1e-5;
  nn::NormPlacement norm_placement = nn::NormPlacement::pre;
  nn::PositionKind position = nn::PositionKind::learned;
  double rope_theta = 10000;
  ops::RopeScaling rope_scaling = ops::RopeScaling::none;
  double rope_factor = 1, rope_low_freq_factor = 1, rope_high_freq_factor = 4;
  Index rope_original_seq_len = 8192;
  nn::QkNorm qk_norm = nn::QkNorm::none;
  nn::Activation activation = nn::Activation::gelu;
  nn::Biases biases = nn::Biases::all;
  Tying tying = Tying::tied;
  double init_std = 0.02;                     ///< standard deviation of the first values of weights and tables
  bool init_depth_scaling = true;             ///< weights right before a residual sum begin with init_std / sqrt(2 L)
  Index token_types = 0;                      ///< rows of a table of types; texts are of type 0
  data::BertSampleConfig bert = {};           ///< section [bert], where the family is "bert"
  std::optional<nn::TaskHeadSpec> task = {};  ///< fine-tuned: its form; dropout follows from `dropout`
  nn::MoeConfig moe = {};                     ///< section [moe]
  ops::SampleLengths lengths = ops::SampleLengths::equal;  ///< given: batches have the input `lengths`
  /// given: training and its evaluations have batches with the inputs `document_begin` and `positions`.
  ops::DocumentMask documents = ops::DocumentMask::none;

  Index kv_heads() const { return num_kv_heads == 0 ? num_heads : num_kv_heads; }
  Index head_width() const { return head_dim == 0 ? hidden_size / num_heads : head_dim; }
  /// Whether it is an encoder: attention to all tokens of a sample, samples with lengths.
  bool is_bert() const { return family == "bert"; }
  /// Whether it is a masked language model: an encoder with BERT's heads.
  bool is_masked_lm() const { return is_bert() && !task; }
  Index tokens_per_sample() const { return seq_len * (task ? task->sequences() : 1); }
  Index positions() const { return num_positions == 0 ? seq_len : num_positions; }
  ops::AttentionMask attention_mask() const {
    return is_bert() ? ops::AttentionMask::full : ops::AttentionMask::causal;
  }
  bool is_post_norm() const { return norm_placement == nn::NormPlacement::post; }
  bool has_rope() const { return position == nn::PositionKind::rope; }
  ops::RopeFrequencies rope_frequencies() const;
  /// Numbers of the MoE layers.
  std::vector<Index> moe_layers() const;
  Index num_moe_layers() const { return static_cast<Index>(moe_layers().size()); }
  /// Whether some MLP is not an expert that tokens are sent to: that of a dense layer, or shared experts.
  bool has_mlps() const { return num_moe_layers() < num_layers || moe.shared_ffn_hidden_size > 0; }
  Index capacity_run() const { return moe.capacity_run == 0 ? seq_len : moe.capacity_run; }
  /// The shape of ops::rope_table for all positions.
  Shape rope_table_shape() const { return {seq_len, 2, head_width() / 2}; }
};

/// What model.family sets together, where no key sets another value: Llama's blocks.
ModelConfig llama_defaults();
/// The same of "bert": its blocks, heads and samples, with norms before sublayers.
ModelConfig bert_defaults();
/// What model.family sets together: GPT-2's parts for any other name.
ModelConfig family_defaults(std::string_view family);
/// The width of an MLP where no key gives it: 4 H; of "llama" two thirds of that, rounded up to a multiple of 256.
Index default_ffn_hidden_size(std::string_view family, Index hidden_size);

/// A published model. Its vocab_size is the tokenizer's; padded_vocab_size 0: from tp (128 * tp).
struct Preset {
  std::string_view name, source;
  ModelConfig model;
};
/// GPT-2's own sizes, and those of Shoeybi et al. 2019, arXiv:1909.08053, tables 1 and 2 (their vocabulary is padded to
/// 51,200 for every tp), of BERT's table 4 and section 5.3; those of Devlin et al. 2019, arXiv:1810.04805; models with
/// Llama's blocks, as their config.json has them.
std::span<const Preset> presets();
/// Throws ConfigError that names the nearest preset.
const Preset& preset(std::string_view name);

/// Four times the deepest models that were trained. A plan takes time and memory for each layer, and a typing error
/// must not cost minutes and gigabytes.
inline constexpr Index kMaxLayers = 4096;

/// The smallest multiple of 128 * tp that holds the vocabulary, so that every shard is a multiple of 128.
Index padded_vocab_size(Index vocab_size, int tp);

/// Rules over several sizes, and over sizes and the tensor-parallel size, under the recipe's keys. All sizes must be
/// positive.
void check(const ModelConfig& model, int tp, Problems& out);

}  // namespace megalith::model
