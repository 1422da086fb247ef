#pragma once
#include "megalith/ops/adamw.h"

namespace megalith::ops::cpu {

inline constexpr Index kSquaresBlock = Index{1} << 20;  // elements of one partial sum of squares

template <class T>
void adamw(const AdamW& args);
/// parts: scratch f64 [ceil(numel / kSquaresBlock)]
template <class T>
void sum_of_squares(const Tensor& x, const Tensor& sum_squares, const Tensor& parts);

}  // namespace megalith::ops::cpu
