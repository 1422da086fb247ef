#pragma once
#include "megalith/ops/norm.h"

namespace megalith::ops::cpu {

template <class T>
void layer_norm_forward(const LayerNormForward& args);
template <class T>
void residual_layer_norm(const ResidualLayerNorm& args);
/// parts: scratch [row_blocks(T), 2, H]
template <class T>
void layer_norm_backward(const LayerNormBackward& args, const Tensor& parts);
template <class T>
void rms_norm_forward(const RmsNormForward& args);
template <class T>
void residual_rms_norm(const ResidualRmsNorm& args);
/// parts: scratch [row_blocks(T), 1, H]
template <class T>
void rms_norm_backward(const RmsNormBackward& args, const Tensor& parts);

}  // namespace megalith::ops::cpu
