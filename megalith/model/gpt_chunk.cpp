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

template <class Ops>
void run_piece(Exec& ex, const PieceRunner& runner, Index layer, int piece, Ops&& ops) {
  if (runner.graphs == nullptr) return ops();
  runner.graphs->run(ex, {runner.chunk, runner.instance, layer, piece}, ops);
}

void await_params(Exec& ex, ParamGatherer* gatherer, Index layer) {
  if (gatherer == nullptr) return;
  ex.aside([&] { gatherer->layer_needed(ex, layer); });
}

}  // namespace

std::vector<ParamSpec> declare_gpt(const ModelConfig& model, const std::vector<ChunkRange>& chunks,
                                   const nn::TensorParallel& tp, std::uint64_t seed) {
  std::vector<ParamSpec> specs;
  const nn::VocabShard vocab = nn::vocab_shard(model.vocab_size, model.padded_vocab_size, tp.group());
  const nn::BlockConfig block = block_config(model, seed);
  const bool ends = std::any_of(chunks.begin(), chunks.end(), [](const ChunkRange& c) { return c.head; });
  const bool embeds = std::any_of(chunks.begin(), chunks.end(), [](const ChunkRange& c) { return c.embedding; });
  ParamSpec table = nn::token_table(kTokenTable, vocab, model.hidden_size, kInitStd);
  if (!embeds || !ends) table.held_by = HeldBy::embd;
  if (!embeds) table.ownership = Ownership::replica;
  if (ends) table.first_grad = FirstGrad::replaced;  // by the head's product, which comes first in backward
  for (const ChunkRange& chunk : chunks) {
    if (chunk.embedding) {
      specs.push_back(table);
      specs.push_back(
          nn::replicated(kPositionTable, {model.seq_len, model.hidden_size}, tp.group(), Init::normal, kInitStd));
    }
    for (Index layer = chunk.layers.begin; layer < chunk.layers.end; ++layer) {
      const auto first = static_cast<std::ptrdiff_t>(specs.size());
      nn::TransformerBlock::declare(specs, layer_name(layer), block, tp);
      std::for_each(specs.begin() + first, specs.end(), [&](ParamSpec& spec) { spec.layer = layer; });
    }
    if (chunk.head) {
      nn::LayerNorm::declare(specs, kFinalNorm, model.hidden_size, tp);
      if (!embeds) specs.push_back(table);
    }
  }
  return specs;
}

GptChunk::GptChunk(const ModelConfig& model, const ChunkRange& range, const nn::TensorParallel& tp, ParamBuffer& params,
                   std::uint64_t seed, const PieceConfig& pieces)
    : range_(range), pieces_(pieces), tp_(tp), hidden_size_(model.hidden_size), dtype_(params.policy().compute) {
  const nn::VocabShard vocab = nn::vocab_shard(model.vocab_size, model.padded_vocab_size, tp.group());
  const nn::BlockConfig block = block_config(model, seed);
  if (range.embedding) {
    embedding_.emplace(vocab, tp, params.at(kTokenTable), params.at(kPositionTable),
                       nn::DropoutSite{model.embedding_dropout, seed, 0});
  }
  for (Index layer = range.layers.begin; layer < range.layers.end; ++layer) {
    blocks_.emplace_back(layer_name(layer), layer, block, tp, params);
  }
  if (range.head) {
    const std::string norm = kFinalNorm;
    head_.emplace(vocab, tp, nn::LayerNorm(params.at(norm + ".weight"), params.at(norm + ".bias"), block.norm_eps),
                  params.at(kTokenTable));
  }
}

Tensor GptChunk::boundary(Exec& ex, const Inputs& inputs) const {
  return ex.tensor({tp_.rows_outside(inputs.microbatch.tokens()), hidden_size_}, dtype_);
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
  if (blocks_.empty()) return x;
  return blocks(ex, inputs, embedding_ ? x : own_edge(ex, inputs, x), output, saved, gatherer);
}

Tensor GptChunk::own_edge(Exec& ex, const Inputs& inputs, const Tensor& message) const {
  if (writes_to_caller() || !message) return message;
  const Tensor own = boundary(ex, inputs);
  ops::copy(ex, message, own);
  return own;
}

Tensor GptChunk::blocks(Exec& ex, const Inputs& inputs, const Tensor& input, const Tensor& output, Saved& saved,
                        ParamGatherer* gatherer) const {
  const auto parts = static_cast<std::size_t>(tp_.parts());  // turns of a region
  if (pieces_.pieces == LayerPieces::none)
    return take_turns(ex, inputs, {.begin = 0, .end = 2 * parts * blocks_.size()}, input, output, saved, gatherer);
  // The piece begins and ends before one of a layer's two regions, or behind both.
  const std::size_t piece_begins = pieces_.pieces == LayerPieces::mlp ? 1 : 0,
                    piece_ends = pieces_.pieces == LayerPieces::attention ? 1 : 2;
  const bool hands_on = ends_in_next_layer(pieces_.pieces, tp_.parts());
  Tensor x = input;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Index layer = range_.layers.begin + static_cast<Index>(i);
    await_params(ex, gatherer, layer);
    ex.set_layer(layer);
    const bool last = i + 1 == blocks_.size();
    const Tensor y = last && output && writes_to_caller() ? output : boundary(ex, inputs);
    const auto pass_through = [&](std::size_t first_region, std::size_t end_region) {
      if (first_region == end_region) return;
      const std::size_t first = 2 * i;
      const Turns turns{.begin = parts * (first + first_region),
                        .end = parts * (first + end_region),
                        .finishes_before = hands_on && i > 0 && first_region == 0,
                        .leaves_rest = hands_on && !last && end_region == 2};
      take_turns(ex, inputs, turns, x, y, saved, nullptr);
    };
    pass_through(0, piece_begins);
    run_piece(ex, inputs.runner, layer, GraphCache::Key::kForward, [&] { pass_through(piece_begins, piece_ends); });
    pass_through(piece_ends, 2);
    x = y;
  }
  if (!output || writes_to_caller()) return x;
  ops::copy(ex, x, output);
  return output;
}

void GptChunk::block_backward_in_pieces(Exec& ex, const Inputs& inputs, std::size_t i, const nn::SummedGrad& dy,
                                        const Saved& saved, const nn::SummedGrad& dx) const {
  const nn::TransformerBlock& block = blocks_[i];
  const nn::TransformerBlock::Saved& kept = saved.blocks[i];
  const Index layer = range_.layers.begin + static_cast<Index>(i);
  if (pieces_.pieces == LayerPieces::whole) {
    return run_piece(ex, inputs.runner, layer, GraphCache::Key::kBackward,
                     [&] { block.backward(ex, inputs.microbatch, dy, kept, dx); });
  }
  const Tensor da = boundary(ex, inputs);
  const auto through_mlp = [&] { block.backward_mlp(ex, inputs.microbatch, dy, kept, da); };
  const auto through_attention = [&] { block.backward_attention(ex, inputs.microbatch, da, kept, dx); };
  if (pieces_.pieces == LayerPieces::mlp) {
    run_piece(ex, inputs.runner, layer, GraphCache::Key::kBackward, through_mlp);
    through_attention();
  } else {
    through_mlp();
    run_piece(ex, inputs.runner, layer, GraphCache::Key::kBackward, through_attention);
  }
}

Tensor GptChunk::take_turns(Exec& ex, const Inputs& inputs, const Turns& turns, const Tensor& input,
                            const Tensor& output, Saved& saved, ParamGatherer* gatherer) const {
  using Region = nn::TransformerBlock::Region;
  const auto parts = static_cast<std::size_t>(tp_.parts());
  std::array<nn::InFlight, nn::kMostParts> messages;  // of each part
  Tensor x = input;
  const auto microbatch_of = [&](std::size_t t) {
    nn::Microbatch microbatch = inputs.microbatch;
    microbatch.part = {static_cast<int>(t % parts), static_cast<int>(parts)};
    return microbatch;
  };
  const auto layer_of = [&](std::size_t i) { return range_.layers.begin + static_cast<Index>(i); };
  const auto in_block = [&](std::size_t i) -> const nn::TransformerBlock& {
    ex.set_layer(layer_of(i));
    return blocks_[i];
  };
  const auto region_of = [&](std::size_t t) { return t / parts % 2 == 0 ? Region::attention : Region::mlp; };
  // Also called for the turns that would come next: there the last region ends.
  const auto enter = [&](std::size_t t) {
    const nn::Microbatch microbatch = microbatch_of(t);
    const std::size_t i = t / parts / 2;
    const bool goes_on = t < turns.end, first_part = microbatch.part.index == 0;
    nn::InFlight& message = messages[t % parts];
    message.wait(ex);
    if (region_of(t) == Region::mlp) {
      if (goes_on) message = in_block(i).enter_mlp(ex, microbatch, saved.blocks[i]);
      return;
    }
    if (goes_on && first_part) await_params(ex, gatherer, layer_of(i));
    const bool is_first_region = t < turns.begin + parts, ends_block = !is_first_region || turns.finishes_before;
    if (!is_first_region && first_part) x = !goes_on && output ? output : boundary(ex, inputs);
    if (!ends_block) {
      message = in_block(i).enter_attention(ex, microbatch, x, saved.blocks[i]);
    } else if (goes_on) {
      message = in_block(i).enter_attention(ex, microbatch, x, blocks_[i - 1], saved.blocks[i - 1], saved.blocks[i]);
    } else {
      in_block(i - 1).add_up(ex, microbatch, x, saved.blocks[i - 1]);
    }
  };
  // One part's message leaves beside the other's work: the whole of a turn, or where rows also enter by messages its
  // first product, as the other part's enter beside the rest of it.
  const bool early = parts > 1 && tp_.shares_rows();
  // The rest of a turn and the beginning of the next.
  const auto leave_and_enter = [&](std::size_t t) {
    if (early) enter(t + 1);
    const std::size_t i = t / parts / 2;
    messages[t % parts] = in_block(i).leave(ex, microbatch_of(t), region_of(t), saved.blocks[i]);
    if (!early) enter(t + 1);
  };
  if (turns.finishes_before && parts > 1)
    leave_and_enter(turns.begin - 1);
  else
    enter(turns.begin);
  for (std::size_t t = turns.begin; t < turns.end; ++t) {
    const std::size_t i = t / parts / 2;
    messages[t % parts].wait(ex);
    in_block(i).work(ex, microbatch_of(t), region_of(t), saved.blocks[i]);
    if (!turns.leaves_rest || t + 1 < turns.end) leave_and_enter(t);
  }
  if (turns.leaves_rest) {
    const std::size_t t = turns.end - 1;
    if (parts == 1) messages[0] = in_block(t / 2).leave(ex, microbatch_of(t), region_of(t), saved.blocks[t / 2]);
    for (nn::InFlight& message : messages) message.wait(ex);
    return output;
  }
  for (std::size_t t = turns.end + 1; t < turns.end + parts; ++t) enter(t);
  return x;
}

void GptChunk::forward(Exec& ex, const Inputs& inputs, const Tensor& input, const Tensor& output, Saved& saved,
                       ParamGatherer* gatherer) const {
  const Tensor x = body(ex, inputs, input, output, saved, gatherer);
  if (!head_) return;
  await_params(ex, gatherer, kOutsideLayers);
  ex.set_layer(kOutsideLayers);
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
  nn::SummedGrad dy{blocks_.empty() ? output_grad : own_edge(ex, inputs, output_grad)};
  if (head_) {
    dy.grad = blocks_.empty() && input_grad ? input_grad : boundary(ex, inputs);
    if (!blocks_.empty()) dy.row_sums = blocks_.back().dy_sums();
    head_->backward(ex, inputs.microbatch, inputs.targets, saved.head, dy);
  }
  // Where rows enter by a message, each block begins that of the one before.
  const bool in_pieces = pieces_.pieces != LayerPieces::none, ahead = !in_pieces && tp_.shares_rows();
  const auto set_layer = [&](std::size_t i) { ex.set_layer(range_.layers.begin + static_cast<Index>(i)); };
  nn::EnteredBackward entered;  // of the block that comes next
  const auto enter = [&](std::size_t i, const nn::SummedGrad& d_out) {
    set_layer(i);
    entered = blocks_[i].enter_backward(ex, inputs.microbatch, d_out, saved.blocks[i]);
  };
  if (!blocks_.empty() && ahead) enter(blocks_.size() - 1, dy);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    set_layer(i);
    nn::SummedGrad dx{i == 0 && input_grad && writes_to_caller() ? input_grad : boundary(ex, inputs)};
    if (i > 0) dx.row_sums = blocks_[i - 1].dy_sums();
    if (in_pieces) {
      block_backward_in_pieces(ex, inputs, i, dy, saved, dx);
    } else if (!ahead) {
      blocks_[i].backward(ex, inputs.microbatch, dy, saved.blocks[i], dx);
    } else {
      blocks_[i].backward(ex, inputs.microbatch, dy, std::move(entered), saved.blocks[i], dx, [&] {
        if (i > 0) enter(i - 1, dx);
        set_layer(i);
      });
    }
    dy = dx;
    if (reducer == nullptr) continue;
    ex.aside([&] { reducer->layer_done(ex, range_.layers.begin + static_cast<Index>(i)); });
  }
  ex.set_layer(kOutsideLayers);
  if (embedding_) {
    embedding_->backward_weight(ex, inputs.microbatch, inputs.tokens, dy.grad);
  } else if (blocks_.empty() && !head_) {
    ops::copy(ex, output_grad, input_grad);  // a stage without layers
  } else if (!blocks_.empty() && !writes_to_caller()) {
    ops::copy(ex, dy.grad, input_grad);
  }
}

}  // namespace megalith::model
