#include <climits>

#include "megalith/ops/cuda/warp_rows.cuh"
#include "megalith/ops/router_kernels.h"

// A warp takes a token, with a row of shared memory for its numbers of each expert. Every expert belongs to one lane,
// which alone writes its numbers. So nothing depends on the order of the lanes.

namespace megalith::ops::cuda {
namespace {

/// The candidate for the best expert or group: the greater key, of equal keys the lower number. No number: none yet.
struct Best {
  float key = 0;
  int number = INT_MAX;

  __device__ bool is_none() const { return number == INT_MAX; }
};
struct Better {
  __device__ Best operator()(const Best& a, const Best& b) const {
    if (b.is_none()) return a;
    if (a.is_none()) return b;
    if (a.key != b.key) return a.key > b.key ? a : b;
    return a.number < b.number ? a : b;
  }
};

__device__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ bool owns(int number) { return number % kWarp == lane(); }

struct ForwardPointers {
  const float *logits, *bias;  // bias may be null
  float* probabilities;
  std::int32_t* experts;
  float* weights;
  unsigned long long* counts;
};

__device__ bool is_expert(int e, int num_experts) { return e >= 0 && e < num_experts; }

/// 1 / (1 + e^-z)
__device__ float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

/// The best groups, one bit each. A lane scores the groups `lane` and `lane + 32`.
__device__ std::uint64_t best_groups(const RouterRules& rules, const float* keys, int num_experts, bool two_best) {
  const int groups = static_cast<int>(rules.num_groups), size = num_experts / groups;
  float scores[kMaxRouterGroups / kWarp];
#pragma unroll
  for (int i = 0; i < kMaxRouterGroups / kWarp; ++i) {
    const int group = lane() + i * kWarp;
    float best = -INFINITY, second = -INFINITY;
    for (int e = group * size; group < groups && e < (group + 1) * size; ++e) {
      second = fmaxf(second, fminf(best, keys[e]));
      best = fmaxf(best, keys[e]);
    }
    scores[i] = two_best && size > 1 ? best + second : best;
  }
  std::uint64_t chosen = 0;
  for (Index n = 0; n < rules.group_top_k; ++n) {
    Best mine;
#pragma unroll
    for (int i = 0; i < kMaxRouterGroups / kWarp; ++i) {
      const int group = lane() + i * kWarp;
      if (group < groups && (chosen >> group & 1u) == 0) mine = Better{}(mine, Best{scores[i], group});
    }
    chosen |= std::uint64_t{1} << warp_reduce(mine, Better{}).number;
  }
  return chosen;
}

/// experts [top_k] of one token. `keys`, which this overwrites, is NaN for an expert that is not to be chosen.
__device__ void choose(Index top_k, float* keys, int num_experts, std::int32_t* experts) {
  for (Index k = 0; k < top_k; ++k) {
    Best mine;
    for (int e = lane(); e < num_experts; e += kWarp) {
      if (keys[e] == keys[e]) mine = Better{}(mine, Best{keys[e], e});
    }
    const int best = warp_reduce(mine, Better{}).number;
    if (lane() == 0) experts[k] = best;
    if (owns(best)) keys[best] = NAN;
  }
}

/// The raw score c of the k-th chosen expert, before it is normalised and scaled. It is 0 for an invalid expert.
struct RawWeights {
  const float *logits, *p;  // the token's
  const std::int32_t* experts;
  int num_experts;
  bool over_chosen;
  float max = 0, sum = 1;  // statistics of the softmax over the chosen logits

  __device__ RawWeights(const RouterRules& rules, const float* of_logits, const float* of_p, const std::int32_t* chosen,
                        int count)
      : logits(of_logits),
        p(of_p),
        experts(chosen),
        num_experts(count),
        over_chosen(rules.score == RouterScore::softmax && rules.order == ScoreOrder::after_top_k) {
    if (!over_chosen) return;
    const int top_k = static_cast<int>(rules.top_k);
    max = reduce_row(
        top_k, -INFINITY, [&](int k) { return logit(k); }, Max{});
    sum = sum_row(top_k, [&](int k) { return expf(logit(k) - max); });
  }
  __device__ float logit(int k) const { return is_expert(experts[k], num_experts) ? logits[experts[k]] : -INFINITY; }
  __device__ float operator()(int k) const {
    if (!is_expert(experts[k], num_experts)) return 0;
    return over_chosen ? expf(logit(k) - max) / sum : p[experts[k]];
  }
};

constexpr float kGuard = 1e-20f;

/// Reads the logits and writes p once, 8 bytes per expert.
__global__ void __launch_bounds__(kRowWarps* kWarp)
    router_kernel(const ForwardPointers to, const RouterRules rules, const TokenRuns runs, RouterChoice choice,
                  Index tokens, int num_experts) {
  extern __shared__ float shared[];
  const Index token = row_of_warp();
  if (token >= tokens) return;
  float* keys = shared + threadIdx.x / kWarp * num_experts;
  const float* logits = to.logits + token * num_experts;
  float* p = to.probabilities + token * num_experts;
  std::int32_t* experts = to.experts + token * rules.top_k;
  const bool softmax = rules.score == RouterScore::softmax, biased = to.bias != nullptr;
  const SoftmaxOfRow of_all(softmax ? num_experts : 0, [&](int e) { return logits[e]; });
  for (int e = lane(); e < num_experts; e += kWarp) {
    const float score = softmax ? of_all.of(logits[e]) : sigmoid(logits[e]);
    p[e] = score;
    const float key = biased ? score + to.bias[e] : softmax ? logits[e] : score;
    keys[e] = key == key ? key : INFINITY;
  }
  __syncwarp();
  if (choice == RouterChoice::by_score) {
    if (rules.group_top_k < rules.num_groups) {
      const std::uint64_t groups = best_groups(rules, keys, num_experts, biased || !softmax);
      const int group_size = num_experts / static_cast<int>(rules.num_groups);
      __syncwarp();
      for (int e = lane(); e < num_experts; e += kWarp) {
        if ((groups >> e / group_size & 1u) == 0) keys[e] = NAN;
      }
    }
    choose(rules.top_k, keys, num_experts, experts);
    __syncwarp();
  }
  const RawWeights raw(rules, logits, p, experts, num_experts);
  const int top_k = static_cast<int>(rules.top_k);
  const float scale = static_cast<float>(rules.scale);
  const float sum = rules.normalize == NormalizeTopK::yes ? sum_row(top_k, raw) + kGuard : 1.0f;
  for (int k = lane(); k < top_k; k += kWarp) {
    to.weights[token * top_k + k] = scale * (raw(k) / sum);
    if (is_expert(experts[k], num_experts)) atomicAdd(to.counts + runs.of(token) * num_experts + experts[k], 1ull);
  }
}

__global__ void clear_kernel(unsigned long long* counts, Index count) {
  const Index i = blockIdx.x * Index{blockDim.x} + threadIdx.x;
  if (i < count) counts[i] = 0;
}

struct BackwardPointers {
  const float *logits, *probabilities;
  const std::int32_t* experts;
  const float *d_weights, *d_probabilities;  // the latter may be null
  float* d_logits;
};

/// Moves 8 bytes per expert, 12 with d_probabilities.
__global__ void __launch_bounds__(kRowWarps* kWarp)
    router_backward_kernel(const BackwardPointers from, const RouterRules rules, Index tokens, int num_experts) {
  extern __shared__ float shared[];
  const Index token = row_of_warp();
  if (token >= tokens) return;
  float* d = shared + threadIdx.x / kWarp * num_experts;  // each lane reads and writes only its own experts'
  const int top_k = static_cast<int>(rules.top_k);
  const float *p = from.probabilities + token * num_experts, *dw = from.d_weights + token * top_k;
  const std::int32_t* experts = from.experts + token * top_k;
  const RawWeights raw(rules, from.logits + token * num_experts, p, experts, num_experts);
  const bool normalizes = rules.normalize == NormalizeTopK::yes;
  const float sum = normalizes ? sum_row(top_k, raw) + kGuard : 1.0f;
  const float mean = normalizes ? sum_row(top_k, [&](int k) { return dw[k] * raw(k); }) / sum : 0.0f;
  const float scale = static_cast<float>(rules.scale);
  const auto d_raw = [&](int k) { return scale * ((dw[k] - mean) / sum); };
  for (int e = lane(); e < num_experts; e += kWarp)
    d[e] = from.d_probabilities == nullptr ? 0.0f : from.d_probabilities[token * num_experts + e];
  if (!raw.over_chosen) {
    for (int k = 0; k < top_k; ++k) {
      if (is_expert(experts[k], num_experts) && owns(experts[k])) d[experts[k]] += d_raw(k);
    }
  }
  const bool softmax = rules.score == RouterScore::softmax;
  const float d_mean = sum_row(softmax ? num_experts : 0, [&](int e) { return p[e] * d[e]; });
  for (int e = lane(); e < num_experts; e += kWarp)
    d[e] = softmax ? p[e] * (d[e] - d_mean) : d[e] * (p[e] * (1 - p[e]));
  if (raw.over_chosen) {
    const float raw_mean = sum_row(top_k, [&](int k) { return raw(k) * d_raw(k); });
    for (int k = 0; k < top_k; ++k) {
      if (is_expert(experts[k], num_experts) && owns(experts[k])) d[experts[k]] += raw(k) * (d_raw(k) - raw_mean);
    }
  }
  for (int e = lane(); e < num_experts; e += kWarp) from.d_logits[token * num_experts + e] = d[e];
}

__global__ void skew_kernel(float* logits, double skew, Index count, int num_experts) {
  const Index i = blockIdx.x * Index{blockDim.x} + threadIdx.x;
  if (i >= count) return;
  logits[i] -= static_cast<float>(skew * log1p(static_cast<double>(i % num_experts)));
}

Index shared_bytes(Index num_experts) { return kRowWarps * num_experts * Index{sizeof(float)}; }
static_assert(kRowWarps * kMaxRouterExperts * 4 <= 48 * 1024, "what a block has without asking for more");

}  // namespace

void skew_logits(Stream stream, const Tensor& logits, double skew) {
  constexpr int kThreads = 256;
  launch({stream, ceil_div(logits.numel(), kThreads), kThreads}, skew_kernel, pointer<float>(logits), skew,
         logits.numel(), static_cast<int>(logits.dim(1)));
}

void router_forward(Stream stream, const RouterForward& args) {
  const Index tokens = args.logits.dim(0), num_experts = args.logits.dim(1), count = args.counts.numel();
  auto* const counts = pointer<unsigned long long>(args.counts);
  constexpr int kThreads = 256;
  launch({stream, ceil_div(count, kThreads), kThreads}, clear_kernel, counts, count);
  const ForwardPointers to{.logits = pointer<const float>(args.logits),
                           .bias = pointer<const float>(args.bias),
                           .probabilities = pointer<float>(args.probabilities),
                           .experts = pointer<std::int32_t>(args.experts),
                           .weights = pointer<float>(args.weights),
                           .counts = counts};
  launch(rows_launch(stream, tokens, shared_bytes(num_experts)), router_kernel, to, args.rules, args.runs, args.choice,
         tokens, static_cast<int>(num_experts));
}

void router_backward(Stream stream, const RouterBackward& args) {
  const Index tokens = args.logits.dim(0), num_experts = args.logits.dim(1);
  const BackwardPointers from{.logits = pointer<const float>(args.logits),
                              .probabilities = pointer<const float>(args.probabilities),
                              .experts = pointer<const std::int32_t>(args.experts),
                              .d_weights = pointer<const float>(args.d_weights),
                              .d_probabilities = pointer<const float>(args.d_probabilities),
                              .d_logits = pointer<float>(args.d_logits)};
  launch(rows_launch(stream, tokens, shared_bytes(num_experts)), router_backward_kernel, from, args.rules, tokens,
         static_cast<int>(num_experts));
}

}  // namespace megalith::ops::cuda
