#pragma once
#include "megalith/ops/adamw.h"

namespace megalith::ops::cuda {

/// value, m, v, grad f32; copy bf16, f16 or undefined.
void adamw(Stream stream, const AdamW& args);

inline constexpr Index kSquaresBlock = Index{1} << 14;  // elements of one sum of squares
/// x f32
void sum_of_squares(Stream stream, const Tensor& x, const Tensor& sums);
void add_up(Stream stream, const Tensor& numbers, const Tensor& total);

}  // namespace megalith::ops::cuda
