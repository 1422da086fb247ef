#include "megalith/ops/attention_decode_kernels.h"
#include "megalith/ops/cuda/warp_rows.cuh"
#include "megalith/ops/qkv_layout.h"

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

/// The rows and the cache of a call.
template <class T>
struct Cache {
  T *keys, *values;
  const T* qkv;
  const std::int32_t* positions;
  Index columns, capacity;
  unsigned rows, tokens_of_sequence;
  unsigned kv_heads, q_per_kv, head_dim;

  template <class Args>
  explicit Cache(const Args& args)
      : keys(pointer<T>(args.keys)),
        values(pointer<T>(args.values)),
        qkv(pointer<const T>(args.qkv)),
        positions(pointer<const std::int32_t>(args.positions)),
        columns(args.qkv.dim(1)),
        capacity(args.keys.dim(2)),
        rows(static_cast<unsigned>(args.qkv.dim(0))),
        tokens_of_sequence(static_cast<unsigned>(args.qkv.dim(0) / std::max(args.keys.dim(0), Index{1}))),
        kv_heads(static_cast<unsigned>(args.keys.dim(1))),
        q_per_kv(static_cast<unsigned>(args.num_heads / args.keys.dim(1))),
        head_dim(static_cast<unsigned>(args.keys.dim(3))) {}

  __device__ bool has(int position) const { return position >= 0 && position < capacity; }
  /// The head at `place` of a group: its q heads, its k, its v.
  __device__ const T* head(unsigned row, unsigned group, unsigned place) const {
    return qkv + row * columns + (group * (q_per_kv + 2) + place) * head_dim;
  }
  /// Element of position 0.
  __device__ Index cached(unsigned row, unsigned group) const {
    return (Index{row / tokens_of_sequence} * kv_heads + group) * capacity * head_dim;
  }
};

/// A thread copies one number of k and of v.
template <class T>
__global__ void __launch_bounds__(kThreads) cache_append_kernel(const Cache<T> cache) {
  const Index at = blockIdx.x * Index{kThreads} + threadIdx.x;
  const auto d = static_cast<unsigned>(at % cache.head_dim);
  const auto group = static_cast<unsigned>(at / cache.head_dim % cache.kv_heads);
  const Index row_number = at / cache.head_dim / cache.kv_heads;
  if (row_number >= cache.rows) return;
  const auto row = static_cast<unsigned>(row_number);
  const int position = __ldg(cache.positions + row);
  if (!cache.has(position)) return;
  const Index to = cache.cached(row, group) + position * Index{cache.head_dim} + d;
  cache.keys[to] = cache.head(row, group, cache.q_per_kv)[d];
  cache.values[to] = cache.head(row, group, cache.q_per_kv + 1)[d];
}

/// A partial softmax: its maximum, its sum, and the weighted sum of values, kPerLane numbers per lane.
template <int kPerLane>
struct Running {
  float max = -INFINITY, sum = 0;
  Values<float, kPerLane> out = {};

  /// Merges this one with another, over other keys.
  __device__ void add(float other_max, float other_sum, const Values<float, kPerLane>& other) {
    const float most = fmaxf(max, other_max);
    if (most == -INFINITY) return;
    const float mine = expf(max - most), theirs = expf(other_max - most);
    sum = sum * mine + other_sum * theirs;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) out[i] = out[i] * mine + other.at[i] * theirs;
    max = most;
  }
};

/// A block per token and q head, a warp per every kWarps-th key. Lane l has the numbers l, l + 32, ... of a head. The
/// warps' results are merged in their order, so that the bits follow from the positions alone.
template <int kPerLane, class T>
__global__ void __launch_bounds__(kThreads) attention_decode_kernel(const Cache<T> cache, T* out, float scale) {
  __shared__ float maxima[kWarps], sums[kWarps], parts[kWarps][kPerLane * kWarp];
  const unsigned heads = cache.kv_heads * cache.q_per_kv, row = blockIdx.x / heads, head = blockIdx.x % heads;
  const unsigned group = head / cache.q_per_kv, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int position = __ldg(cache.positions + row);
  const int keys = cache.has(position) ? position + 1 : 0;
  const T* const q_row = cache.head(row, group, head % cache.q_per_kv);
  const T* const k = cache.keys + cache.cached(row, group);
  const T* const v = cache.values + cache.cached(row, group);
  const auto load = [&](const T* from) {
    Values<float, kPerLane> x;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const unsigned d = lane + i * kWarp;
      x[i] = d < cache.head_dim ? convert<float>(from[d]) : 0.0f;
    }
    return x;
  };
  const Values<float, kPerLane> q = load(q_row);
  Running<kPerLane> running;
  for (int key = static_cast<int>(warp); key < keys; key += kWarps) {
    const Index at = key * Index{cache.head_dim};
    const Values<float, kPerLane> of_key = load(k + at), of_value = load(v + at);
    float product = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) product = fmaf(q[i], of_key[i], product);
    running.add(warp_reduce(product, Plus{}) * scale, 1, of_value);
  }
  if (lane == 0) {
    maxima[warp] = running.max;
    sums[warp] = running.sum;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) parts[warp][lane + i * kWarp] = running.out[i];
  __syncthreads();
  if (warp > 0) return;
  for (int other = 1; other < kWarps; ++other) {
    Values<float, kPerLane> part;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) part[i] = parts[other][lane + i * kWarp];
    running.add(maxima[other], sums[other], part);
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const unsigned d = lane + i * kWarp;
    if (d < cache.head_dim)
      out[Index{blockIdx.x} * cache.head_dim + d] = convert<T>(keys > 0 ? running.out[i] / running.sum : 0.0f);
  }
}

}  // namespace

void cache_append(Stream stream, const CacheAppend& args) {
  const Index numbers = args.qkv.dim(0) * args.keys.dim(1) * args.keys.dim(3);
  dispatch_element(args.qkv.dtype(), [&]<class T>() {
    launch({stream, ceil_div(numbers, kThreads), kThreads}, cache_append_kernel<T>, Cache<T>(args));
  });
}

void attention_decode(Stream stream, const AttentionDecode& args) {
  const Index head_dim = args.keys.dim(3);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  dispatch_element(args.qkv.dtype(), [&]<class T>() {
    const auto run = [&]<int kPerLane>() {
      launch({stream, args.qkv.dim(0) * args.num_heads, kThreads}, attention_decode_kernel<kPerLane, T>, Cache<T>(args),
             pointer<T>(args.out), scale);
    };
    if (head_dim <= 64) return run.template operator()<2>();
    if (head_dim <= 128) return run.template operator()<4>();
    run.template operator()<8>();
  });
}

}  // namespace megalith::ops::cuda
