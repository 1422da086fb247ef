#pragma once
#include "megalith/ops/cross_entropy.h"

namespace megalith::ops::cuda {

/// Allows the kernels the shared memory that any call may take. It runs before the first step, because graphs hold
/// kernels.
void prepare_cross_entropy();
void cross_entropy(Stream stream, const CrossEntropy& args);
void logits_max(Stream stream, const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size);
void logits_sum_exp(Stream stream, const LogitsSumExp& args);
void loss_from_sums(Stream stream, const LossFromSums& args);
void logits_backward(Stream stream, const LogitsBackward& args);

}  // namespace megalith::ops::cuda
