#pragma once
#include "megalith/ops/qk_norm.h"

namespace megalith::ops::cpu {

template <class T>
void qk_head_norm(const QkHeadNorm& args);
/// parts: scratch [row_blocks(T), 2, D]
template <class T>
void qk_head_norm_backward(const QkHeadNormBackward& args, const Tensor& parts);
template <class T>
void qk_square_sums(const QkSquareSums& args);
template <class T>
void qk_norm(const QkNorm& args);
template <class T>
void qk_norm_backward_sums(const QkNormBackwardSums& args);
/// parts: scratch [row_blocks(T), (A + G) D]
template <class T>
void qk_norm_backward(const QkNormBackward& args, const Tensor& parts);

}  // namespace megalith::ops::cpu
