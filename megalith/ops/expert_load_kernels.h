#pragma once
#include "megalith/ops/expert_load.h"

namespace megalith::ops {

// from: (Q, E) : (E, 1).  to of add_counts, counts, bias, shares: (E) : (1).  kept: (T, K) : (K, 1).  range: (2) : (1).

namespace cpu {
void add_counts(const Tensor& from, const Tensor& to);
void count_dropped(const Tensor& kept, const Tensor& to);
void update_experts(const UpdateExperts& args);
void expert_bias_range(const Tensor& bias, const Tensor& range);
void counts_of_shares(const Tensor& shares, const Tensor& counts, double total);
}  // namespace cpu

namespace cuda {
void add_counts(Stream stream, const Tensor& from, const Tensor& to);
void count_dropped(Stream stream, const Tensor& kept, const Tensor& to);
void update_experts(Stream stream, const UpdateExperts& args);
void expert_bias_range(Stream stream, const Tensor& bias, const Tensor& range);
void counts_of_shares(Stream stream, const Tensor& shares, const Tensor& counts, double total);
}  // namespace cuda

}  // namespace megalith::ops
