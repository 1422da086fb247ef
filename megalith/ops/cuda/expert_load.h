#pragma once
#include "megalith/ops/expert_load.h"

namespace megalith::ops::cuda {

void add_counts(Stream stream, const Tensor& from, const Tensor& to);
void count_dropped(Stream stream, const Tensor& kept, const Tensor& to);
void update_experts(Stream stream, const UpdateExperts& args);
void expert_bias_range(Stream stream, const Tensor& bias, const Tensor& range);
void counts_of_shares(Stream stream, const Tensor& shares, const Tensor& counts, double total);

}  // namespace megalith::ops::cuda
