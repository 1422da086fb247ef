#pragma once
#include "megalith/ops/elementwise.h"
#include "megalith/tensor/tensor.h"

namespace megalith::nn {

enum class Mode : std::uint8_t { train, evaluate };  ///< evaluate: no dropout, nothing kept for a backward pass

/// What every layer must know about the microbatch that passes through it. T = batch * seq_len tokens.
struct Microbatch {
  Index batch = 0, seq_len = 0;
  Tensor step_state;  ///< u8 [sizeof(StepState)], of the microbatch's slot
  Mode mode = Mode::train;
  /// Of the gradients that ParamSpec::first_grad calls replaced: overwrite in the first microbatch of a step.
  ops::Write weight_grads = ops::Write::accumulate;

  Index tokens() const { return batch * seq_len; }
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
            .seq_len = microbatch.seq_len};
  }
};

}  // namespace megalith::nn
