#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "megalith/grid/layer_assignment.h"
#include "megalith/model/batch.h"
#include "megalith/model/model_spec.h"
#include "megalith/nn/vocab_parallel_embedding.h"
#include "megalith/optim/param_exchange.h"

namespace megalith::model {

/// The part of the model that a chunk holds.
struct ChunkRange {
  grid::LayerRange layers;
  bool embedding = false;  ///< the first global stage
  bool head = false;       ///< the last global stage
};

/// Where a chunk's first layer reads its input, and its last layer writes its output: in the caller's message buffers,
/// or at fixed addresses of the chunk's slot, with a copy from or to the message. Graphs per slot need the latter.
enum class BoundaryBuffers : std::uint8_t { messages, fixed };

struct CaptureConfig {
  nn::CaptureEdges layers = {};
  BoundaryBuffers boundaries = BoundaryBuffers::messages;
};

/// How a chunk runs, for any model.
struct ChunkConfig {
  std::uint64_t seed = 0;
  CaptureConfig capture = {};
  nn::RecomputeConfig recompute = {};
  nn::Fp8Config fp8 = {};
  Index model_layers = 0;     ///< all layers of the model, for Fp8Config::skip_layers
  Index group_alignment = 1;  ///< nn::SublayerOptions
};

/// Consecutive Transformer layers, preceded by the embedding in the first chunk, and followed by the head in the last.
/// Const in forward and backward; what must survive in between is in Saved, one per microbatch in flight.
class Chunk {
 public:
  /// Buffers of one slot that other code fills.
  struct Inputs {
    nn::Microbatch microbatch;
    BatchTensors batch;  ///< a chunk with the embedding reads tokens, one with the head reads targets
    Tensor loss_sums;    ///< [losses] f64; the head adds to them
    nn::SegmentGraphs graphs = {};
    Tensor label_state = {}, numbers = {};  ///< nn::HeadInputs
  };
  /// Where a forward pass reads and writes the stream, as in forward().
  struct StreamEnds {
    Tensor input = {}, output = {};
  };
  struct Saved {
    nn::VocabParallelEmbedding::Saved embedding;
    nn::SublayerStack::Saved layers;
    std::unique_ptr<nn::Head::Saved> head;                                     ///< null without the head
    void take_host_memory(Device device) { layers.take_host_memory(device); }  ///< nn::Sublayer::Saved
  };

  Chunk(const ModelSpec& model, const ChunkRange& range, const nn::LayerGroups& groups, ParamSet& params,
        const ChunkConfig& config);

  /// A Saved with room for every layer, so that filling it allocates nothing.
  Saved make_saved() const { return {{}, layers_.make_saved(), head_ ? head_->make_saved() : nullptr}; }
  /// For decoding: memory for the keys and values that passes with `saved` add to and attend to.
  void take_caches(const nn::TakeKvCache& take, Saved& saved) const { layers_.take_caches(take, saved.layers); }

  /// Starts to gather this chunk's parameters, in the order in which its forward reads them.
  void gather_params(Exec& ex, optim::ParamExchange& values) const;
  /// input [O, H] unless the chunk embeds; output [O, H] is written unless the chunk has the head. O is rows_outside(T)
  /// of tp. The layers overlap tp's sub-microbatches. `values` is called for every layer before the layer reads its
  /// parameters; null if they have arrived.
  void forward(Exec& ex, const Inputs& inputs, const Tensor& input, const Tensor& output, Saved& saved,
               optim::ParamExchange* values) const;
  /// output_grad [O, H] unless the chunk has the head; input_grad [O, H] is written unless the chunk embeds.
  /// `gradients` is notified of every layer that begins and of every completed one; may be null.
  void backward(Exec& ex, const Inputs& inputs, const Tensor& output_grad, const Tensor& input_grad, Saved& saved,
                optim::ParamExchange* gradients) const;
  /// Inference, in the chunk with the head: overwrites the results that are defined. inputs.batch has rows, R of the
  /// microbatch (-1: none) and targets [R]; where results about samples are asked for, the first row of each sample
  /// follows after the R, and labels are read. The head gets these rows only, kRowsOfHead at a time.
  void infer(Exec& ex, const Inputs& inputs, const Tensor& input, const nn::HeadResults& results, Saved& saved) const;
  static constexpr Index kRowsOfHead = 512;

  /// Evaluation: forward(), with this rank's logits [count, V/tp] after some of the rows instead of losses. Undefined
  /// unless the chunk has the head.
  struct Rows {
    Index first = 0, count = 0;
  };
  Tensor logits(Exec& ex, const Inputs& inputs, const StreamEnds& ends, Rows rows, Saved& saved) const;

  /// Evaluation of a whole model in one chunk: loss [T] of every token, 0 where its target is -1.
  Tensor token_losses(Exec& ex, const Inputs& inputs, Saved& saved) const;

  const ChunkRange& range() const { return range_; }

 private:
  Tensor boundary(Exec& ex, const Inputs& inputs) const;
  /// Embedding and layers. The result goes to `output` if that is defined. Returns it.
  Tensor body(Exec& ex, const Inputs& inputs, const Tensor& input, const Tensor& output, Saved& saved,
              optim::ParamExchange* values) const;
  /// A copy of a message at a fixed address, if the chunk has those; else the message itself.
  Tensor in_fixed_buffer(Exec& ex, const Inputs& inputs, const Tensor& message) const;
  bool has_fixed_buffers() const { return boundaries_ == BoundaryBuffers::fixed; }

  ChunkRange range_;
  BoundaryBuffers boundaries_;
  nn::TensorParallel tp_;
  Index hidden_size_;
  DType dtype_;
  std::optional<nn::VocabParallelEmbedding> embedding_;
  nn::SublayerStack layers_;
  std::unique_ptr<nn::Head> head_;
};

/// The parameters of all chunks of one rank. A tied table is declared once where a rank both embeds and ends.
std::vector<ParamSpec> declare_model(const ModelSpec& model, const std::vector<ChunkRange>& chunks,
                                     const nn::LayerGroups& groups);
/// The parameters of a whole model, as one rank holds them. padded_vocab_size 0: without padding rows.
std::vector<ParamSpec> declare_whole_model(ModelConfig model);

/// Names of the token table and of an untied head's, as parameters and in checkpoints.
inline constexpr const char* kTokenTable = "embedding.token.weight";
inline constexpr const char* kHeadTable = "head.weight";

}  // namespace megalith::model
