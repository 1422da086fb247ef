#pragma once
#include "megalith/ops/cross_entropy.h"

namespace megalith::ops {

// logits: (T, V/tp) : (V/tp, 1).  targets, loss, row_max: (T) : (1).  loss_sum: (1).
// sums: (2, T) : (T, 1), of exponentials and of targets.  statistics, scratch: (3, T) : (T, 1), row_max and sums.

namespace cpu {
void cross_entropy(const CrossEntropy& args, const Tensor& statistics);

void logits_max(const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size);
void logits_sum_exp(const LogitsSumExp& args);
/// Throws InputError for a target outside [-1, vocab_size).
void loss_from_sums(const LossFromSums& args);
void logits_backward(const LogitsBackward& args);
}  // namespace cpu

namespace cuda {
/// Allows the kernels the shared memory that any call may take. It runs before the first step, because graphs hold
/// kernels.
void prepare_cross_entropy();
void cross_entropy(Stream stream, const CrossEntropy& args);
void logits_max(Stream stream, const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size);
void logits_sum_exp(Stream stream, const LogitsSumExp& args);
void loss_from_sums(Stream stream, const LossFromSums& args);
void logits_backward(Stream stream, const LogitsBackward& args);
}  // namespace cuda

}  // namespace megalith::ops
