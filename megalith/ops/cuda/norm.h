#pragma once
#include "megalith/ops/cuda/elementwise.h"
#include "megalith/ops/norm.h"

namespace megalith::ops::cuda {

void layer_norm_forward(Stream stream, const LayerNormForward& args);
void residual_layer_norm(Stream stream, const ResidualLayerNorm& args);
inline RowParts norm_cut(Index rows) { return cut_rows(rows, 512, 16); }
inline Index norm_parts(Index rows) { return norm_cut(rows).count; }
/// parts: scratch f32 [norm_parts(T), 2, H]
void layer_norm_backward(Stream stream, const LayerNormBackward& args, const Tensor& parts);

}  // namespace megalith::ops::cuda
