#pragma once
#include "megalith/tensor/exec.h"

namespace megalith::ops {

/// One AdamW step on one parameter tensor (any shape, all equal), with decoupled weight decay:
///   g = grad * factor; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
///   w -= lr (m / (1-b1^n) / (sqrt(v / (1-b2^n)) + eps) + decay w),   n = step + 1 updates, counted by `update`
/// Nothing changes when verdict.apply is 0. Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
struct AdamW {
  Tensor value, m, v;  // in, out
  Tensor grad;         // in
  Tensor verdict;      // in   u8 [sizeof(StepVerdict)]
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
};

/// What the ranks agreed about a step; lives in device memory, read by the optimizer's kernel.
struct StepVerdict {
  std::int32_t apply = 0;  ///< 1: all ranks are finite and agree
  double factor = 1;       ///< on gradients: clip, and the inverse loss scale
  double learning_rate = 0;
  std::int64_t update = 0;  ///< updates applied before this one
};
void adamw(Exec& ex, const AdamW& args);

/// sum_squares [1] f64 += the sum of x^2 over a flat tensor: f64 sums of fixed blocks of 2^20 elements, added in block
/// order.
void sum_of_squares(Exec& ex, const Tensor& x, const Tensor& sum_squares);

}  // namespace megalith::ops
