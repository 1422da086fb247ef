#pragma once
#include "megalith/ops/quantise_activation.h"

namespace megalith::ops {

// All matrices (R, C) : (C, 1); operands as in quantise_kernels.h.

namespace cpu {
void quantise_activation(const QuantiseActivation& args);
void quantise_activation_backward(const QuantiseActivationBackward& args, const Tensor& sum_parts);
}  // namespace cpu

namespace cuda {
void quantise_activation(Stream stream, const QuantiseActivation& args);
void quantise_activation_backward(Stream stream, const QuantiseActivationBackward& args, const Tensor& sum_parts);
}  // namespace cuda

}  // namespace megalith::ops
