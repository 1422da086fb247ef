#pragma once
#include "megalith/ops/expert_load.h"

namespace megalith::ops::cpu {

void add_counts(const Tensor& from, const Tensor& to);
void count_dropped(const Tensor& kept, const Tensor& to);
template <class T>
void update_experts(const UpdateExperts& args);
template <class T>
void expert_bias_range(const Tensor& bias, const Tensor& range);
template <class T>
void counts_of_shares(const Tensor& shares, const Tensor& counts, double total);

}  // namespace megalith::ops::cpu
