#include "megalith/model/gpt_chunk.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "megalith/base/str.h"
#include "megalith/nn/param_specs.h"
#include "megalith/ops/elementwise.h"

namespace megalith::model {
namespace {

constexpr double kInitStd = 0.02;
constexpr std::size_t kMostParts = 2;
constexpr const char* kPositionTable = "embedding.position.weight";
constexpr const char* kFinalNorm = "final_norm";

nn::BlockConfig block_config(const ModelConfig& m, std::uint64_t seed) {
  return {.hidden_size = m.hidden_size,
          .num_heads = m.num_heads,
          .ffn_hidden_size = m.ffn_hidden_size,
          .dropout = m.dropout,
          .attention_dropout = m.attention_dropout,
          .init_std = kInitStd,
          .residual_init_std = kInitStd / std::sqrt(2.0 * static_cast<double>(m.num_layers)),
          .seed = seed};
}

std::string layer_name(Index layer) { return str("layers.", layer); }

void await_params(Exec& ex, ParamGatherer* gatherer, Index layer) {
  if (gatherer == nullptr) return;
  ex.aside([&] { gatherer->layer_needed(ex, layer); });
}

}  // namespace

std::vector<ParamSpec> declare_gpt(const ModelConfig& model, const std::vector<ChunkRange>& chunks,
                                   const grid::Mesh& mesh, std::uint64_t seed) {
  std::vector<ParamSpec> specs;
  const nn::VocabShard vocab = nn::vocab_shard(model.vocab_size, model.padded_vocab_size, mesh.tp);
  const nn::BlockConfig block = block_config(model, seed);
  const bool ends = std::any_of(chunks.begin(), chunks.end(), [](const ChunkRange& c) { return c.head; });
  const bool embeds = std::any_of(chunks.begin(), chunks.end(), [](const ChunkRange& c) { return c.embedding; });
  for (const ChunkRange& chunk : chunks) {
    if (chunk.embedding) {
      specs.push_back(nn::token_table(kTokenTable, vocab, model.hidden_size, kInitStd, Ownership::owner,
                                      ends ? FirstGrad::replaced : FirstGrad::summed));
      specs.push_back(
          nn::replicated(kPositionTable, {model.seq_len, model.hidden_size}, mesh.tp, Init::normal, kInitStd));
    }
    for (Index layer = chunk.layers.begin; layer < chunk.layers.end; ++layer) {
      const auto first = static_cast<std::ptrdiff_t>(specs.size());
      nn::TransformerBlock::declare(specs, layer_name(layer), block, mesh.tp);
      std::for_each(specs.begin() + first, specs.end(), [&](ParamSpec& spec) { spec.layer = layer; });
    }
    if (chunk.head) {
      specs.push_back(nn::replicated(std::string(kFinalNorm) + ".weight", {model.hidden_size}, mesh.tp, Init::ones));
      specs.push_back(nn::replicated(std::string(kFinalNorm) + ".bias", {model.hidden_size}, mesh.tp, Init::zeros));
      if (!embeds)
        specs.push_back(
            nn::token_table(kTokenTable, vocab, model.hidden_size, kInitStd, Ownership::replica, FirstGrad::replaced));
    }
  }
  return specs;
}

GptChunk::GptChunk(const ModelConfig& model, const ChunkRange& range, const grid::Mesh& mesh, ParamBuffer& params,
                   std::uint64_t seed)
    : range_(range), hidden_size_(model.hidden_size), dtype_(params.policy().compute) {
  const nn::VocabShard vocab = nn::vocab_shard(model.vocab_size, model.padded_vocab_size, mesh.tp);
  const nn::BlockConfig block = block_config(model, seed);
  if (range.embedding) {
    embedding_.emplace(vocab, mesh.tp, params.at(kTokenTable), params.at(kPositionTable),
                       nn::DropoutSite{model.embedding_dropout, seed, 0});
  }
  for (Index layer = range.layers.begin; layer < range.layers.end; ++layer) {
    blocks_.emplace_back(layer_name(layer), layer, block, mesh.tp, params);
  }
  if (range.head) {
    const std::string norm = kFinalNorm;
    head_.emplace(vocab, mesh.tp, nn::LayerNorm(params.at(norm + ".weight"), params.at(norm + ".bias"), block.norm_eps),
                  params.at(kTokenTable));
  }
}

Tensor GptChunk::boundary(Exec& ex, const Inputs& inputs) const {
  return ex.tensor({inputs.microbatch.tokens(), hidden_size_}, dtype_);
}

void GptChunk::gather_params(Exec& ex, ParamGatherer& gatherer) const {
  if (embedding_) gatherer.start(ex, kOutsideLayers);
  for (Index layer = range_.layers.begin; layer < range_.layers.end; ++layer) gatherer.start(ex, layer);
  if (head_) gatherer.start(ex, kOutsideLayers);
}

Tensor GptChunk::body(Exec& ex, const Inputs& inputs, const Tensor& input, const Tensor& output, Saved& saved,
                      ParamGatherer* gatherer) const {
  const bool output_from_blocks = static_cast<bool>(output) && !blocks_.empty();
  Tensor x = input;
  if (embedding_) {
    await_params(ex, gatherer, kOutsideLayers);
    x = output && !output_from_blocks ? output : boundary(ex, inputs);
    embedding_->forward(ex, inputs.microbatch, inputs.tokens, x);
  } else if (output && !output_from_blocks) {
    ops::copy(ex, input, output);  // a stage without layers
    x = output;
  }
  std::array<comm::Pending, kMostParts> sums;
  const auto for_parts = [&](auto&& pass) {
    nn::Microbatch microbatch = inputs.microbatch;
    nn::Part& part = microbatch.part;
    for (part.count = inputs.forward_parts; part.index < part.count; ++part.index) {
      comm::Pending& sum = sums[static_cast<std::size_t>(part.index)];
      sum.wait(ex);
      pass(microbatch, sum);
    }
  };
  // A part's end of a layer comes with its beginning of the next, so that its last sum has the other part's whole mix
  // to arrive in.
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    ex.set_layer(range_.layers.begin + static_cast<Index>(i));
    await_params(ex, gatherer, range_.layers.begin + static_cast<Index>(i));
    for_parts([&](const nn::Microbatch& microbatch, comm::Pending& sum) {
      if (i > 0) blocks_[i - 1].add_up(ex, microbatch, x, saved.blocks[i - 1]);
      sum = blocks_[i].attend(ex, microbatch, x, saved.blocks[i]);
    });
    for_parts([&](const nn::Microbatch& microbatch, comm::Pending& sum) {
      sum = blocks_[i].mix(ex, microbatch, x, saved.blocks[i]);
    });
    x = i + 1 == blocks_.size() && output ? output : boundary(ex, inputs);
  }
  if (!blocks_.empty()) {
    for_parts([&](const nn::Microbatch& microbatch, const comm::Pending&) {
      blocks_.back().add_up(ex, microbatch, x, saved.blocks[blocks_.size() - 1]);  // `saved` may have more
    });
  }
  return x;
}

void GptChunk::forward(Exec& ex, const Inputs& inputs, const Tensor& input, const Tensor& output, Saved& saved,
                       ParamGatherer* gatherer) const {
  const Tensor x = body(ex, inputs, input, output, saved, gatherer);
  if (!head_) return;
  await_params(ex, gatherer, kOutsideLayers);
  head_->forward(ex, inputs.microbatch, x, inputs.targets, inputs.loss_sum, saved.head);
}

Tensor GptChunk::last_logits(Exec& ex, const Inputs& inputs, Index row, Saved& saved) const {
  const Tensor x = body(ex, inputs, {}, {}, saved, nullptr);
  return head_->logits(ex, x.rows(row, 1), saved.head);
}

Tensor GptChunk::token_losses(Exec& ex, const Inputs& inputs, Saved& saved) const {
  const Tensor x = body(ex, inputs, {}, {}, saved, nullptr);
  return head_->forward(ex, inputs.microbatch, x, inputs.targets, inputs.loss_sum, saved.head);
}

void GptChunk::backward(Exec& ex, const Inputs& inputs, const Tensor& output_grad, const Tensor& input_grad,
                        const Saved& saved, GradReducer* reducer) const {
  Tensor dy = output_grad;
  if (head_) {
    dy = blocks_.empty() && input_grad ? input_grad : boundary(ex, inputs);
    head_->backward(ex, inputs.microbatch, inputs.targets, saved.head, dy);
  }
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    ex.set_layer(range_.layers.begin + static_cast<Index>(i));
    const Tensor dx = i == 0 && input_grad ? input_grad : boundary(ex, inputs);
    blocks_[i].backward(ex, inputs.microbatch, dy, saved.blocks[i], dx);
    dy = dx;
    if (reducer == nullptr) continue;
    ex.aside([&] { reducer->layer_done(ex, range_.layers.begin + static_cast<Index>(i)); });
  }
  if (embedding_) {
    embedding_->backward_weight(ex, inputs.microbatch, inputs.tokens, dy);
  } else if (blocks_.empty() && !head_) {
    ops::copy(ex, output_grad, input_grad);  // a stage without layers
  }
}

}  // namespace megalith::model
