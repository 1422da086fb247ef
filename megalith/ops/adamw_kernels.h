#pragma once
#include "megalith/ops/adamw.h"

namespace megalith::ops {

// m, v, grad: (N) : (1).  Masters: as in masters_kernels.h.  decays, rounding.param_of: (ceil(N / kDecayGroup)) : (1).
// verdict: one StepVerdict. sum_of_squares: x (R, N) : (N, 1), sums (R, blocks) : (blocks, 1).  add_up: numbers (N) :
// (1), total (1).

namespace cpu {
inline constexpr Index kSquaresBlock = Index{1} << 20;  // elements of one sum of squares

void adamw(const AdamW& args);
void sum_of_squares(const Tensor& x, const Tensor& sums);
void add_up(const Tensor& numbers, const Tensor& total);
}  // namespace cpu

namespace cuda {
/// masters, grad f32; m, v f32 or bf16.
void adamw(Stream stream, const AdamW& args);

inline constexpr Index kSquaresBlock = Index{1} << 14;  // elements of one sum of squares
/// x f32
void sum_of_squares(Stream stream, const Tensor& x, const Tensor& sums);
void add_up(Stream stream, const Tensor& numbers, const Tensor& total);
}  // namespace cuda

}  // namespace megalith::ops
