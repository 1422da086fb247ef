#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "megalith/grid/layer_assignment.h"
#include "megalith/model/grad_reducer.h"
#include "megalith/model/model_config.h"
#include "megalith/model/param_gatherer.h"
#include "megalith/nn/lm_head.h"
#include "megalith/nn/transformer_block.h"
#include "megalith/nn/vocab_parallel_embedding.h"
#include "megalith/tensor/graph_cache.h"

namespace megalith::model {

/// What of the model a chunk holds.
struct ChunkRange {
  grid::LayerRange layers;
  bool embedding = false;  ///< the first global stage
  bool head = false;       ///< the last global stage
};

/// Which stretch of each layer's passes is a piece of its own, in one go and with all its communication, so that a
/// graph may hold it.
enum class LayerPieces : std::uint8_t { none, attention, mlp, whole };

/// Whether a layer that is cut into pieces ends its forward pass in the norm of the next: its last sum is taken there.
/// With several parts (of a microbatch, TensorParallel) also rows are yet to leave, beside the first products of the
/// next layer: only where its piece follows at once.
constexpr bool ends_in_next_layer(LayerPieces pieces, int parts) { return parts == 1 || pieces == LayerPieces::whole; }

/// Where a chunk's first layer reads and its last one writes: in the caller's message buffers, or in memory of the
/// chunk's own with a copy beside, so that addresses depend on the slot alone.
enum class ChunkEdges : std::uint8_t { of_caller, own };

struct PieceConfig {
  LayerPieces pieces = LayerPieces::none;
  ChunkEdges edges = ChunkEdges::of_caller;
};

/// What runs the pieces of one pass.
struct PieceRunner {
  GraphCache* graphs = nullptr;  ///< null: they run as everything else does
  int chunk = 0, instance = 0;   ///< of GraphCache::Key
};

/// A run of Transformer layers, with the embedding in front or the head behind where it is the first or last. Const in
/// forward and backward; what must survive in between is in Saved, one per microbatch in flight.
class GptChunk {
 public:
  /// Buffers of one slot that are filled from outside.
  struct Inputs {
    nn::Microbatch microbatch;
    Tensor tokens, targets;  ///< [T] i32; read only by chunks with the embedding, with the head
    Tensor loss_sum;         ///< [1] f64, added to by the head
    PieceRunner runner = {};
  };
  struct Saved {
    std::vector<nn::TransformerBlock::Saved> blocks;
    nn::LmHead::Saved head;
  };

  GptChunk(const ModelConfig& model, const ChunkRange& range, const nn::TensorParallel& tp, ParamBuffer& params,
           std::uint64_t seed, const PieceConfig& pieces);

  /// A Saved with room for every layer, so that filling it allocates nothing.
  Saved make_saved() const { return {std::vector<nn::TransformerBlock::Saved>(blocks_.size()), {}}; }

  /// Starts to bring this chunk's parameters, in the order in which its forward reads them.
  void gather_params(Exec& ex, ParamGatherer& gatherer) const;
  /// input [O, H] unless the chunk embeds; output [O, H] is written unless the chunk has the head; O = tp's
  /// rows_outside of T. The layers take the tp's parts of the microbatch in turn. `gatherer`: asked for every layer
  /// before it reads its parameters; null where they have arrived.
  void forward(Exec& ex, const Inputs& inputs, const Tensor& input, const Tensor& output, Saved& saved,
               ParamGatherer* gatherer) const;
  /// output_grad [O, H] unless the chunk has the head; input_grad [O, H] is written unless the chunk embeds. `reducer`:
  /// told of every layer that is done; null while later microbatches of the step will add to the gradients.
  void backward(Exec& ex, const Inputs& inputs, const Tensor& output_grad, const Tensor& input_grad, const Saved& saved,
                GradReducer* reducer) const;
  /// Evaluation of a whole model in one chunk: this rank's logits [1, V/tp] after token `row`.
  Tensor last_logits(Exec& ex, const Inputs& inputs, Index row, Saved& saved) const;

  /// Evaluation of a whole model in one chunk: loss [T] of every token, 0 where its target is -1.
  Tensor token_losses(Exec& ex, const Inputs& inputs, Saved& saved) const;

  const ChunkRange& range() const { return range_; }

 private:
  Tensor boundary(Exec& ex, const Inputs& inputs) const;
  /// Embedding and blocks; the result goes to `output` where that is defined. Returns it.
  Tensor body(Exec& ex, const Inputs& inputs, const Tensor& input, const Tensor& output, Saved& saved,
              ParamGatherer* gatherer) const;

  /// The forward passes of the blocks, in pieces where layers have them. x [O, H]; the result goes to `output` where
  /// that is defined. Returns it.
  Tensor blocks(Exec& ex, const Inputs& inputs, const Tensor& x, const Tensor& output, Saved& saved,
                ParamGatherer* gatherer) const;

  /// In each turn one of the tp's parts of the microbatch passes through one region of a block: all parts through its
  /// attention, then all through its MLP, so turn t is in block t / parts / 2. A stretch of turns begins and ends with
  /// a region.
  struct Turns {
    std::size_t begin, end;
    /// The block before ends here; of several parts the last one's rows have yet to leave its MLP. And the same of the
    /// last turn, for the stretch that follows.
    bool finishes_before = false, leaves_rest = false;
  };
  /// x [O, H]: what the first block reads, where its attention is among the turns; written where the block before ends
  /// here. What the last block gives, where its MLP is, goes to `output` where that is defined, and is returned. All
  /// messages have arrived.
  Tensor take_turns(Exec& ex, const Inputs& inputs, const Turns& turns, const Tensor& x, const Tensor& output,
                    Saved& saved, ParamGatherer* gatherer) const;
  /// The backward pass of one block in pieces.
  void block_backward_in_pieces(Exec& ex, const Inputs& inputs, std::size_t block, const nn::SummedGrad& dy,
                                const Saved& saved, const nn::SummedGrad& dx) const;
  /// A copy of a message in memory of the chunk's own, where its edges are; else the message itself.
  Tensor own_edge(Exec& ex, const Inputs& inputs, const Tensor& message) const;
  bool writes_to_caller() const { return pieces_.edges == ChunkEdges::of_caller; }

  ChunkRange range_;
  PieceConfig pieces_;
  nn::TensorParallel tp_;
  Index hidden_size_;
  DType dtype_;
  std::optional<nn::VocabParallelEmbedding> embedding_;
  std::vector<nn::TransformerBlock> blocks_;
  std::optional<nn::LmHead> head_;
};

/// The parameters of all chunks of one rank. The tied table is declared once where a rank both embeds and ends; the
/// last stage's copy is a replica.
std::vector<ParamSpec> declare_gpt(const ModelConfig& model, const std::vector<ChunkRange>& chunks,
                                   const nn::TensorParallel& tp, std::uint64_t seed);

/// Name of the tied token table, as parameter and in checkpoints.
inline constexpr const char* kTokenTable = "embedding.token.weight";

}  // namespace megalith::model
