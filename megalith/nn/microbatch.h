#pragma once
#include "megalith/ops/elementwise.h"
#include "megalith/runtime/exec.h"

namespace megalith::nn {

enum class Mode : std::uint8_t { train, evaluate };  ///< evaluate: no dropout, nothing kept for a backward pass

/// A microbatch is cut into at most so many sub-microbatches.
inline constexpr int kMaxSubBatches = 2;

/// A sub-microbatch: which of `count` equal shares of a microbatch's samples a forward pass works on. The communication
/// of one overlaps with the GEMMs of another. Layers return tensors of the whole microbatch, of which a sub-microbatch
/// reads and writes its own rows. Backward passes work on whole microbatches.
struct SubBatch {
  int index = 0, count = 1;

  /// The sub-microbatch's rows of a tensor whose first dimension follows the samples.
  Tensor of(const Tensor& whole) const {
    const Index rows = whole.dim(0) / count;
    return whole.rows(index * rows, rows);
  }
  /// Makes a tensor of the whole microbatch, which later sub-microbatches find in `whole`.
  void make(Exec& ex, Tensor& whole, const Shape& shape, DType dtype) const {
    if (index == 0) whole = ex.tensor(shape, dtype);
  }
};

inline constexpr SubBatch kWholeMicrobatch{};

/// What every layer must know about the microbatch that passes through it. T = batch * seq_len tokens.
struct Microbatch {
  Index batch = 0, seq_len = 0;
  Tensor step_state;  ///< u8 [sizeof(StepState)], of the microbatch's slot
  Mode mode = Mode::train;
  /// Of the gradients that ParamSpec::first_grad calls replaced: overwrite in the first microbatch of a step, unless a
  /// graph serves it and others.
  ops::Write weight_grads = ops::Write::accumulate;

  SubBatch sub_batch = {};  ///< forward only

  Index tokens() const { return batch * seq_len; }
  Index samples() const { return batch / sub_batch.count; }                  ///< of the sub-microbatch
  Index first_row() const { return sub_batch.index * samples() * seq_len; }  ///< within the microbatch
};

/// Dropout at one place of the model: which random numbers, and how many are dropped.
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
