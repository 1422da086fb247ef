#include "megalith/ops/capacity_kernels.h"
#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/weight_order.h"

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;

struct Pairs {
  const std::int32_t* experts;
  const float* weights;  // null: by position
  std::int32_t* kept;
  int run, top_k, num_experts;
  Index capacity;
};

/// Numbers, in thread order, the threads of a block that have an element. `total` counts them over all tiles so far.
class Order {
 public:
  __device__ int next(bool has, int (&of_warps)[kThreads / kWarp]) {
    const unsigned mine = __ballot_sync(0xffffffffu, has);
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (threadIdx.x % kWarp == 0) of_warps[warp] = __popc(mine);
    __syncthreads();
    int number = total_ + __popc(mine & ((1u << threadIdx.x % kWarp) - 1));
    for (int other = 0; other < kThreads / kWarp; ++other) {
      if (other < warp) number += of_warps[other];
      total_ += of_warps[other];
    }
    __syncthreads();
    return number;
  }
  __device__ int total() const { return total_; }

 private:
  int total_ = 0;
};

/// A block takes one expert of one run, a thread one token at a time. The keys of the expert's weights are gathered in
/// the order of the tokens, then each is compared with the others. Reads the run's experts twice.
__global__ void __launch_bounds__(kThreads) drop_pairs_kernel(const Pairs pairs) {
  extern __shared__ std::int32_t keys[];
  __shared__ int of_warps[kThreads / kWarp];
  const int e = static_cast<int>(blockIdx.x % static_cast<unsigned>(pairs.num_experts));
  const Index first = Index{blockIdx.x / static_cast<unsigned>(pairs.num_experts)} * pairs.run * pairs.top_k;
  const auto pair_of = [&](int token) {  // -1: the token has not chosen the expert
    if (token >= pairs.run) return Index{-1};
    for (int k = 0; k < pairs.top_k; ++k) {
      if (pairs.experts[first + Index{token} * pairs.top_k + k] == e) return first + Index{token} * pairs.top_k + k;
    }
    return Index{-1};
  };
  Order gathering;
  for (int tile = 0; tile < pairs.run; tile += kThreads) {
    const Index pair = pair_of(tile + static_cast<int>(threadIdx.x));
    const int number = gathering.next(pair >= 0, of_warps);
    if (pair >= 0 && pairs.weights != nullptr) keys[number] = weight_order(pairs.weights[pair]);
  }
  if (gathering.total() <= pairs.capacity) return;
  __syncthreads();
  Order order;
  for (int tile = 0; tile < pairs.run; tile += kThreads) {
    const Index pair = pair_of(tile + static_cast<int>(threadIdx.x));
    const int number = order.next(pair >= 0, of_warps);
    if (pair < 0) continue;
    int rank = number;
    if (pairs.weights != nullptr) {
      rank = 0;
      const std::int32_t mine = keys[number];
      for (int other = 0; other < gathering.total(); ++other) {
        if (keys[other] > mine || (keys[other] == mine && other < number)) ++rank;
      }
    }
    if (rank >= pairs.capacity) pairs.kept[pair] = -1;
  }
}

__global__ void copy_experts_kernel(const std::int32_t* experts, std::int32_t* kept, Index count) {
  const Index pair = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (pair < count) kept[pair] = experts[pair];
}

}  // namespace

void drop_pairs(Stream stream, const DropPairs& args) {
  const Index count = args.experts.numel(), runs = args.experts.dim(0) / args.run;
  const bool by_weight = args.by == DropBy::probability;
  const Pairs pairs{.experts = pointer<const std::int32_t>(args.experts),
                    .weights = by_weight ? pointer<const float>(args.weights) : nullptr,
                    .kept = pointer<std::int32_t>(args.kept),
                    .run = static_cast<int>(args.run),
                    .top_k = static_cast<int>(args.experts.dim(1)),
                    .num_experts = static_cast<int>(args.num_experts),
                    .capacity = args.capacity};
  static_assert(kMaxCapacityRunOnGpu * 4 <= 40 * 1024, "beside of_warps in what a block has without asking for more");
  launch({stream, ceil_div(count, kThreads), kThreads}, copy_experts_kernel, pairs.experts, pairs.kept, count);
  launch({stream, runs * args.num_experts, kThreads, by_weight ? args.run * Index{sizeof(std::int32_t)} : 0},
         drop_pairs_kernel, pairs);
}

}  // namespace megalith::ops::cuda
