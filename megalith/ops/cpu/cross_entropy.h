#pragma once
#include "megalith/ops/cross_entropy.h"

namespace megalith::ops::cpu {

/// statistics: scratch [3, T]
template <class T>
void cross_entropy(const CrossEntropy& args, const Tensor& statistics);

template <class T>
void logits_max(const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size);
template <class T>
void logits_sum_exp(const LogitsSumExp& args);
/// Throws InputError for a target outside [-1, vocab_size).
template <class T>
void loss_from_sums(const LossFromSums& args);
template <class T>
void logits_backward(const LogitsBackward& args);

}  // namespace megalith::ops::cpu
