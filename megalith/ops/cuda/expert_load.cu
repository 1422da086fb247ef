#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/expert_load_kernels.h"
#include "megalith/ops/step_end.h"

// A few thousand numbers at most: one thread for each, and sums of integers in any order.

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void add_counts_kernel(const std::int64_t* from, std::int64_t* to, Index runs, Index experts) {
  const Index e = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (e >= experts) return;
  std::int64_t sum = to[e];
  for (Index run = 0; run < runs; ++run) sum += from[run * experts + e];
  to[e] = sum;
}

__global__ void __launch_bounds__(kMaxThreads)
    count_dropped_kernel(const std::int32_t* pairs, Index count, std::int64_t* to) {
  __shared__ unsigned long long dropped;
  if (threadIdx.x == 0) dropped = 0;
  __syncthreads();
  unsigned long long mine = 0;
  for (Index pair = threadIdx.x; pair < count; pair += kMaxThreads) mine += pairs[pair] == -1 ? 1 : 0;
  atomicAdd(&dropped, mine);
  __syncthreads();
  if (threadIdx.x == 0) *to += static_cast<std::int64_t>(dropped);
}

__global__ void __launch_bounds__(kMaxThreads)
    update_experts_kernel(const std::int64_t* counts, const StepVerdict* verdict, float* bias, float* shares,
                          float rate, Index experts) {
  __shared__ unsigned long long sum_of_all;
  if (verdict->apply == 0) return;
  if (threadIdx.x == 0) sum_of_all = 0;
  __syncthreads();
  for (Index e = threadIdx.x; e < experts; e += kMaxThreads)
    atomicAdd(&sum_of_all, static_cast<unsigned long long>(counts[e]));
  __syncthreads();
  const auto sum = static_cast<std::int64_t>(sum_of_all);
  for (Index e = threadIdx.x; e < experts; e += kMaxThreads) {
    const std::int64_t lack = sum - counts[e] * experts;
    if (bias != nullptr) bias[e] += rate * static_cast<float>((lack > 0) - (lack < 0));
    if (shares != nullptr)
      shares[e] = sum == 0 ? 0.0f : static_cast<float>(static_cast<double>(counts[e]) / static_cast<double>(sum));
  }
}

__global__ void expert_bias_range_kernel(const float* bias, double* range, Index experts) {
  float least = bias[0], greatest = bias[0];
  for (Index e = 1; e < experts; ++e) {
    least = fminf(least, bias[e]);
    greatest = fmaxf(greatest, bias[e]);
  }
  range[0] = least;
  range[1] = greatest;
}

__global__ void counts_of_shares_kernel(const float* shares, std::int64_t* counts, double total, Index experts) {
  const Index e = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (e < experts) counts[e] = llround(static_cast<double>(shares[e]) * total);
}

}  // namespace

void add_counts(Stream stream, const Tensor& from, const Tensor& to) {
  launch({stream, ceil_div(to.numel(), kThreads), kThreads}, add_counts_kernel, pointer<const std::int64_t>(from),
         pointer<std::int64_t>(to), from.dim(0), from.dim(1));
}

void count_dropped(Stream stream, const Tensor& kept, const Tensor& to) {
  launch({stream, 1, kMaxThreads}, count_dropped_kernel, pointer<const std::int32_t>(kept), kept.numel(),
         pointer<std::int64_t>(to));
}

void update_experts(Stream stream, const UpdateExperts& args) {
  launch({stream, 1, kMaxThreads}, update_experts_kernel, pointer<const std::int64_t>(args.counts),
         pointer<const StepVerdict>(args.verdict), pointer<float>(args.bias), pointer<float>(args.shares),
         static_cast<float>(args.rate), args.counts.numel());
}

void expert_bias_range(Stream stream, const Tensor& bias, const Tensor& range) {
  launch({stream, 1, 1}, expert_bias_range_kernel, pointer<const float>(bias), pointer<double>(range), bias.numel());
}

void counts_of_shares(Stream stream, const Tensor& shares, const Tensor& counts, double total) {
  launch({stream, ceil_div(shares.numel(), kThreads), kThreads}, counts_of_shares_kernel, pointer<const float>(shares),
         pointer<std::int64_t>(counts), total, shares.numel());
}

}  // namespace megalith::ops::cuda
