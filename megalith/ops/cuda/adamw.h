#pragma once
#include "megalith/ops/adamw.h"

namespace megalith::ops::cuda {

/// value, m, v, grad f32; copy bf16, f16 or undefined.
void adamw(Stream stream, const AdamW& args);

/// Elements of one partial sum of squares: the blocks of 2^20 of the contract, each cut into 16 to fill the GPU.
inline constexpr Index kSquaresPart = Index{1} << 16;
inline Index square_parts(Index numel) { return ceil_div(numel, kSquaresPart); }
/// x f32; parts: scratch f64 [square_parts(numel)]
void sum_of_squares(Stream stream, const Tensor& x, const Tensor& sum_squares, const Tensor& parts);

}  // namespace megalith::ops::cuda
