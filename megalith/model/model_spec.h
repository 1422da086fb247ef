#pragma once
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "megalith/grid/layer_assignment.h"
#include "megalith/model/model_config.h"
#include "megalith/nn/bert_head.h"
#include "megalith/nn/sublayer_spec.h"
#include "megalith/nn/task_head.h"

namespace megalith::model {

/// Token table, unless positions are rotations a position table, and perhaps a table of types.
struct EmbeddingSpec {
  Index vocab_size = 0, padded_vocab_size = 0;  ///< padded: rows of the token table
  Index num_positions = 0;                      ///< 0: no position table
  Index num_types = 0;                          ///< 0: no table of types
  double dropout = 0;
  std::optional<nn::NormSpec> norm = {};  ///< after the sum, before the dropout
};

/// The head of a language model: logits of the next token.
struct LmHeadSpec {};
/// One alternative per class of heads.
using HeadBody = std::variant<LmHeadSpec, nn::BertHeadSpec, nn::TaskHeadSpec>;

/// The end of a model: final norm, unless layers end with one, then a head, whose logits are made with a table.
struct HeadSpec {
  std::optional<nn::NormSpec> norm;
  Tying tying = Tying::tied;
  HeadBody body = {};
};
/// The losses of a model, on every rank: those of its head.
std::span<const nn::LossSpec> losses_of(const ModelConfig& model);

/// A model as data: embedding, sublayers in the order of a forward pass, head. Chunks are built, parameters declared
/// and FLOPs counted from it.
struct ModelSpec {
  nn::StreamSpec stream;
  Index seq_len = 0;  ///< 0, to count weights: GEMMs of one token, without attention
  EmbeddingSpec embedding;
  std::vector<nn::SublayerSpec> sublayers;
  HeadSpec head;
  Index masked_tokens = 0;                   ///< of a sample, which the heads of a masked language model read
  std::optional<ops::RopeFrequencies> rope;  ///< where layers rotate q and k

  /// The sublayers of layers [begin, end) of the model.
  std::span<const nn::SublayerSpec> of_layers(Index begin, Index end) const;
};
ModelSpec model_spec(const ModelConfig& config);
/// With the sublayers of these layers only, in ascending order: a stage of many takes no time for the others' layers.
ModelSpec model_spec(const ModelConfig& config, std::span<const grid::LayerRange> layers);

/// Elements of all parameters, each once: those of the whole model on one rank.
Index count_parameters(const ModelConfig& model);
/// The part of these in rows of the table beyond the vocabulary, which stay 0.
Index count_padding(const ModelConfig& model);
/// "124,439,808 parameters (+ 36,096 of padding)"; with experts also how many of them a token passes.
std::string parameters_text(const ModelConfig& model);

/// FLOPs of one token's forward pass, 2 per multiplication and addition: GEMMs of sublayers and of the head (with its
/// padding), and attention, not halved for causality. BERT's heads read some rows of a sample, spare ones among them.
double forward_flops_per_token(const ModelSpec& spec);
/// Model FLOPs of one token, forward and backward: each GEMM of a forward pass has two in the backward pass.
/// Recomputation does not count.
double flops_per_token(const ModelConfig& model);
/// The FLOPs of one token's forward pass that backward recomputes, for whole layers or selected modules; with method =
/// block as if there were one chunk.
double repeated_flops_per_token(const ModelSpec& spec, const nn::RecomputeConfig& recompute);

}  // namespace megalith::model
