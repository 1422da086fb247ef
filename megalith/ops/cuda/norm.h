#pragma once
#include "megalith/ops/cuda/elementwise.h"
#include "megalith/ops/norm.h"

namespace megalith::ops::cuda {

void layer_norm_forward(Stream stream, const LayerNormForward& args);
void residual_layer_norm(Stream stream, const ResidualLayerNorm& args);
/// Parts of the backward pass: 264 up to 8192 rows, else 528, two or four for each multiprocessor of an H200, of 8 rows
/// at least. Measured there (us a pass, bf16) with 264 / 528 / 1024 parts: 8192 x 1536 47 / 57 / 70, 16384 x 1024
/// 59 / 56 / 61, 32768 x 768 98 / 69 / 83. The same on any GPU, as results follow from the parts.
inline RowParts norm_cut(Index rows) { return cut_rows(rows, rows <= 8192 ? 264 : 528, 8); }
inline Index norm_parts(Index rows) { return norm_cut(rows).count; }
/// parts: scratch f32 [norm_parts(T), 2, H]
void layer_norm_backward(Stream stream, const LayerNormBackward& args, const Tensor& parts);

}  // namespace megalith::ops::cuda
