#pragma once
#include "megalith/ops/adamw.h"

namespace megalith::ops::cpu {

inline constexpr Index kSquaresBlock = Index{1} << 20;  // elements of one sum of squares

template <class T>
void adamw(const AdamW& args);
template <class T>
void sum_of_squares(const Tensor& x, const Tensor& sums);
void add_up(const Tensor& numbers, const Tensor& total);

}  // namespace megalith::ops::cpu
