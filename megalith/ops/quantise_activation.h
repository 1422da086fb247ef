#pragma once
#include "megalith/ops/quantise.h"

namespace megalith::ops {

// The activation of an MLP and its gradient, rounded to E4M3 where they are made: their 16-bit numbers need not go to
// memory. Bits are those of the op of its own (ops/elementwise.h, ops/swiglu.h), which rounds to the dtype of z,
// followed by quantise(). Scales are ScaleForm::f32. T and F may be 0. Throws ShapeError.

enum class Activation : std::uint8_t { gelu, gelu_erf, swiglu };

/// y = activation(z). Reads z once. Writes 1 byte per element of y and form, and y itself where it is defined.
struct QuantiseActivation {
  Tensor z;               // in   [T, F], swiglu: [T, 2F]; f32, bf16 or f16
  Tensor y = {};          // out  [T, F], or undefined: it is not written
  Operand straight = {};  // out  [T, F], as of Quantise with x = y
  Operand turned = {};    // out  [F, T]
  Activation activation = Activation::swiglu;
  GroupRows groups = {};  // in   as of Quantise; with them y is undefined
};
void quantise_activation(Exec& ex, const QuantiseActivation& args);

/// dz = dy activation'(z). Reads z and dy once, and writes as above.
struct QuantiseActivationBackward {
  Tensor z, dy;           // in   [T, F] or [T, 2F], [T, F]
  Tensor dz = {};         // out  as z, or undefined: it is not written
  Operand straight = {};  // out  as of Quantise with x = dz
  Operand turned = {};
  Activation activation = Activation::swiglu;
  Tensor column_sums = {};  // in/out  [F] or [2F] f32, of dz, as of Quantise
};
void quantise_activation_backward(Exec& ex, const QuantiseActivationBackward& args);

}  // namespace megalith::ops
