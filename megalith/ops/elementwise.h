#pragma once
#include <cstdint>

#include "megalith/ops/matmul.h"  // Write
#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// x [T, F] += bias [F] in every row, in place.
void add_bias(Exec& ex, const Tensor& x, const Tensor& bias);

/// bias_grad [F] += sum of the rows of dy [T, F]. Rows are summed in fixed blocks.
void bias_backward(Exec& ex, const Tensor& dy, const Tensor& bias_grad);

/// y = gelu(z), z = x + bias. GeluForm::tanh: 0.5 z (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))); erf: z Phi(z), Phi(z) =
/// (1 + erf(z / sqrt(2))) / 2, the distribution of a normal number.
/// x [T, F] is replaced by z, which backward reads; bias [F]; y [T, F].
/// Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; the tanh form is GPT-2's.
struct BiasGelu {
  Tensor x;     // in, out: z
  Tensor bias;  // in
  Tensor y;     // out
  GeluForm form = GeluForm::tanh;
};
void bias_gelu(Exec& ex, const BiasGelu& args);

/// y = gelu(z), recomputed from the z that bias_gelu or matmul_gelu has stored. It is for backward passes that have not
/// kept y. In 16 bits z was rounded, but y was computed from the unrounded sums, so y may differ by a few roundings.
/// Otherwise it has the same bits.  z, y [T, F]
struct Gelu {
  Tensor z;  // in
  Tensor y;  // out
  GeluForm form = GeluForm::tanh;
};
void gelu(Exec& ex, const Gelu& args);

/// dz = dy * gelu'(z). dz may be dy.  z, dy, dz [T, F]
struct GeluBackward {
  Tensor z, dy;  // in
  Tensor dz;     // out
  GeluForm form = GeluForm::tanh;
};
void gelu_backward(Exec& ex, const GeluBackward& args);

/// y = tanh(x), for any equal shapes. y may be x.
void tanh_forward(Exec& ex, const Tensor& x, const Tensor& y);
/// dx = dy (1 - y^2), from the y that tanh_forward() has stored. dx may be dy.
struct TanhBackward {
  Tensor y, dy;  // in
  Tensor dx;     // out
};
void tanh_backward(Exec& ex, const TanhBackward& args);

/// The random numbers of a dropout. Element e of a tensor of token rows is global element (state.first_sample * seq_len
/// + first_row) * elements_per_row + e. `state` is the StepState in memory, which also has the step. Attention numbers
/// and compares its probabilities in its own way (kept_patch.h). An element is kept if its word of the site's stream
/// (base/philox.h) is at least dropout_threshold(probability). It is then scaled by 1 / (1 - p).
struct Dropout {
  double probability = 0;  ///< 0: no random numbers are drawn
  std::uint64_t seed = 0;
  std::uint32_t site = 0;
  Tensor step_state;    ///< u8 [sizeof(StepState)]; not needed if probability is 0
  Index seq_len = 0;    ///< rows of one sample, for ops on [T, H] whose own arguments do not contain it
  Index first_row = 0;  ///< the first row's number in its microbatch; not 0 if an op works on a part of it
};

/// out = residual + dropout(x + bias): the end of a region of a Transformer block that is not followed by a norm.
///   x, residual, out [T, H], bias [H]; the seq_len rows of one sample are contiguous. out may be x or residual.
/// Kept values are scaled by 1/(1-p). Global element = (state.first_sample * seq_len + first_row + row) * H + h.
struct BiasDropoutResidual {
  Tensor x, bias, residual;  // in; bias may be undefined (no bias)
  Tensor out;                // out
  Dropout dropout;
};
void bias_dropout_residual(Exec& ex, const BiasDropoutResidual& args);

/// dx = dropout'(dout): the same mask and scale. dx may be dout. With probability 0, dx = dout (a copy, unless both
/// have the same memory).
struct DropoutBackward {
  Tensor dout;  // in   [T, H]
  Tensor dx;    // out  [T, H]
  Dropout dropout;
};
void dropout_backward(Exec& ex, const DropoutBackward& args);

/// out = a + b, for any equal shapes. out may be a or b.
void add(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& out);
/// Sets every element.
void fill(Exec& ex, const Tensor& x, double value);
void copy(Exec& ex, const Tensor& from, const Tensor& to);
/// x *= factor
void scale(Exec& ex, const Tensor& x, double factor);

}  // namespace megalith::ops
