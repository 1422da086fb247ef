#pragma once
#include "megalith/nn/linear.h"
#include "megalith/ops/quantise_activation.h"

namespace megalith::nn {

// The activation of an MLP between two GEMMs with FP8 operands. It is rounded where it is made; its 16-bit numbers are
// written only for GEMMs that read them.

/// Who reads an activation that a pass makes.
struct ActivationPass {
  GemmFormats formats;  ///< of the last GEMM
  SubBatch sub_batch;
  bool is_read = false;  ///< the last GEMM of this pass
  bool is_kept = false;  ///< the weight gradient
};

/// From z, of the whole microbatch, [T, F] or gated [T, 2F]: the sub-microbatch's rows of `operands`, and of y [T, F]
/// where numbers are kept. The first sub-microbatch makes y; where none are kept it becomes undefined.
void activate(Exec& ex, ops::Activation activation, const Tensor& z, const ActivationPass& pass, Tensor& y,
              RowOperands& operands);

/// From dy [T, F] to the gradient of z, for the first GEMM: its operands, and its numbers where the weight gradient
/// reads them; else `dz` becomes undefined. Adds to the gradient of the first GEMM's bias.
void activate_backward(Exec& ex, const ops::QuantiseActivationBackward& args, const ColumnParallelLinear& first,
                       Tensor& dz, RowOperands& operands);

}  // namespace megalith::nn
