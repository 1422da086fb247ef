#pragma once
#include "megalith/ops/matmul.h"
#include "megalith/params/param_buffer.h"

namespace megalith::nn {

/// x [n, H] W^T -> [n, C] for a few outputs a row that nothing may round: f32 whatever x is (f64 for f64). W [C, H].
Tensor wide_logits(Exec& ex, const Tensor& x, const Param& weight);

struct WideLogitsBackward {
  Tensor d_logits, x;  // in   [n, C] f32 (f64), [n, H]
  Tensor dx;           // out, accumulated [n, H]
  ops::Write weight_grads = ops::Write::accumulate;
};
/// Also adds to the gradient of W, or overwrites it. d_logits is rounded to the dtype of x first.
void wide_logits_backward(Exec& ex, const WideLogitsBackward& args, const Param& weight);

}  // namespace megalith::nn
