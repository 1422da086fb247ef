#pragma once
#include <functional>

#include "megalith/ops/elementwise.h"
#include "megalith/runtime/exec.h"

namespace megalith::nn {

enum class Mode : std::uint8_t { train, evaluate };  ///< evaluate: no dropout, and nothing is kept for a backward pass

/// Whether a forward pass is the microbatch's first, or recomputes results for backward: then it adds to no totals.
enum class ForwardPass : std::uint8_t { first, recompute };
struct MoeStep;  // nn/moe/moe_step.h
/// How rows come to experts of other ranks: all at once, or in rounds where their buffers are too small.
enum class RowExchange : std::uint8_t { at_once, in_rounds };

/// The largest number of sub-microbatches of a microbatch.
inline constexpr int kMaxSubBatches = 2;

/// The sub-microbatch of a forward pass: one of `count` equal parts of a microbatch's samples. Layers pass on tensors
/// of the whole microbatch, of which a sub-microbatch reads and writes its own rows. Backward passes always work on the
/// whole microbatch. So the communication of one sub-microbatch overlaps with the GEMMs of the other.
struct SubBatch {
  int index = 0, count = 1;

  /// The rows of this sub-microbatch in a tensor whose first dimension follows the samples.
  Tensor of(const Tensor& whole) const {
    const Index rows = whole.dim(0) / count;
    return whole.rows(index * rows, rows);
  }
  /// The first sub-microbatch makes a tensor of the whole microbatch. The others find it in `whole`.
  void make(Exec& ex, Tensor& whole, const Shape& shape, DType dtype) const {
    if (index == 0) whole = ex.tensor(shape, dtype);
  }
};

inline constexpr SubBatch kWholeMicrobatch{};

/// What a row attends to: the rows before it in its document, or what a KvCache holds of its sequence.
enum class Past : std::uint8_t { none, cached };

/// What every layer must know about its microbatch. T = batch * seq_len tokens.
struct Microbatch {
  Index batch = 0, seq_len = 0;
  Tensor step_state;  ///< u8 [sizeof(StepState)], of the microbatch's slot
  Mode mode = Mode::train;
  /// For gradients whose ParamSpec::first_grad is overwritten: overwrite in the first microbatch of a step, unless a
  /// graph serves it and other microbatches.
  ops::Write weight_grads = ops::Write::accumulate;

  const MoeStep* moe = nullptr;  ///< in models with MoE layers; null in evaluations: routing by score
  ForwardPass pass = ForwardPass::first;
  RowExchange exchange = RowExchange::at_once;
  SubBatch sub_batch = {};  ///< forward only
  Tensor lengths = {};      ///< [B] i32, tokens of each sample; undefined: all have seq_len
  /// [T] i32, the first token of each token's document within its sample, before which it attends to none
  /// (ops/attention.h); undefined: a sample is one document.
  Tensor document_begin = {};
  Tensor rope_table = {};  ///< ops::rope_table of positions [0, seq_len); where layers rotate q and k

  /// Where every row stands in its document or, when decoding, in its sequence, [T] i32 on the device; undefined: in
  /// its sample. Sublayers that took a KvCache add to it.
  Tensor positions = {};
  Past past = Past::none;

  Index tokens() const { return batch * seq_len; }
  Index samples() const { return batch / sub_batch.count; }                  ///< of the sub-microbatch
  Index first_row() const { return sub_batch.index * samples() * seq_len; }  ///< within the microbatch
};

/// Keys and values of the tokens so far of some sequences, of one attention sublayer's heads on this rank: [B, G/tp, C,
/// D] each (ops/attention_decode.h).
struct KvCache {
  Tensor keys, values;
};
/// Takes memory for one, of so many kv heads of D numbers.
using TakeKvCache = std::function<KvCache(Index kv_heads, Index head_dim)>;

/// Dropout at one site of the model: its random numbers, and its probability.
struct DropoutSite {
  double probability = 0;
  std::uint64_t seed = 0;
  std::uint32_t site = 0;

  ops::Dropout in(const Microbatch& microbatch) const {
    return {.probability = microbatch.mode == Mode::train ? probability : 0.0,
            .seed = seed,
            .site = site,
            .step_state = microbatch.step_state,
            .seq_len = microbatch.seq_len,
            .first_row = microbatch.first_row()};
  }
};

}  // namespace megalith::nn
