#pragma once
#include "megalith/ops/moment_rounding.h"
#include "megalith/runtime/exec.h"
#include "megalith/tensor/master_values.h"

namespace megalith::ops {

/// One AdamW step over flat buffers of N elements, with decoupled weight decay:
///   g = grad * factor; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
///   w -= lr (m / (1-b1^n) / (sqrt(v / (1-b2^n)) + eps) + decay w),   n = update + 1 updates, counted by the verdict
/// decay is weight_decay where decays[i / kDecayGroup] is 1, else 0. w are the masters; their copy, if there is one,
/// becomes w rounded to its dtype. m and v are of the dtype of the masters, or both bf16. In bf16 w follows from their
/// new values before these are rounded as `rounding` describes. Both forms of masters give the same bits. Nothing
/// changes when verdict.apply is 0. One pass moves 28 bytes per parameter in f32, with whole or split masters, and 20
/// with moments in bf16; a copy in f16 takes 2 more. Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
struct AdamW {
  MasterValues masters;          // in, out  of N parameters, f32 or f64
  Tensor m, v;                   // in, out  [N]
  MomentRounding rounding = {};  // for m and v in bf16
  Tensor grad;                   // in       [N]
  Tensor decays;                 // in       [N / kDecayGroup, rounded up] u8
  Tensor verdict;                // in       u8 [sizeof(StepVerdict)]
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
};

/// What the ranks agreed about a step; lives in device memory, read by the optimizer's kernel.
struct StepVerdict {
  std::int64_t apply = 0;  ///< 1: all ranks are finite and agree
  double factor = 1;       ///< on gradients: clip, and the inverse loss scale
  double learning_rate = 0;
  std::int64_t update = 0;  ///< updates applied before this one
};
void adamw(Exec& ex, const AdamW& args);

/// sum_of_squares() cuts a row of n elements into this many blocks. A block has 2^20 elements, or 2^14 on GPUs, to fill
/// them.
Index square_blocks(Device device, Index n);
/// sums [R, square_blocks(device, N)] f64 = the sums of x^2, in f64, over the blocks of every row of x [R, N].
void sum_of_squares(Exec& ex, const Tensor& x, const Tensor& sums);
/// total [1] f64 += the numbers [N] f64. The CPU adds them in their order, a GPU in an order that N alone fixes.
void add_up(Exec& ex, const Tensor& numbers, const Tensor& total);

}  // namespace megalith::ops
