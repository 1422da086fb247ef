#pragma once
#include "megalith/ops/cuda/elementwise.h"
#include "megalith/ops/norm.h"

namespace megalith::ops::cuda {

void layer_norm_forward(Stream stream, const LayerNormForward& args);
void residual_layer_norm(Stream stream, const ResidualLayerNorm& args);
/// parts: scratch f32 [row_parts(T), 2, H], or with bias_grad [., 3, H]
void layer_norm_backward(Stream stream, const LayerNormBackward& args, const Tensor& parts);
void rms_norm_forward(Stream stream, const RmsNormForward& args);
void residual_rms_norm(Stream stream, const ResidualRmsNorm& args);
/// parts: scratch f32 [row_parts(T), 1, H], or with bias_grad [., 2, H]
void rms_norm_backward(Stream stream, const RmsNormBackward& args, const Tensor& parts);

}  // namespace megalith::ops::cuda
