#include <algorithm>

#include "megalith/ops/argmax_kernels.h"
#include "megalith/ops/cuda/common.cuh"

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 512;

/// A logit and its column; -1: none.
struct Candidate {
  float logit;
  int column;
};

struct Likelier {
  __device__ Candidate operator()(const Candidate& a, const Candidate& b) const {
    if (a.column < 0 || b.column < 0) return a.column < 0 ? b : a;
    if (a.logit != b.logit) return a.logit > b.logit ? a : b;
    return a.column < b.column ? a : b;
  }
};

__device__ Candidate shuffle_xor(const Candidate& value, int mask) {
  return {__shfl_xor_sync(0xffffffff, value.logit, mask), __shfl_xor_sync(0xffffffff, value.column, mask)};
}

/// A block takes a row, a thread the columns i, i + 512, ...  Reads each logit once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    argmax_kernel(const T* logits, double* best, Index first_id, int columns, int real) {
  __shared__ Candidate shared[kMaxWarps];
  const Index row = blockIdx.x;
  const T* z = logits + row * columns;
  Candidate mine{-INFINITY, -1};
#pragma unroll 4
  for (int column = static_cast<int>(threadIdx.x); column < real; column += kThreads) {
    const auto logit = static_cast<float>(z[column]);
    if (logit > mine.logit || (mine.column < 0 && logit == mine.logit)) mine = {logit, column};
  }
  mine = block_reduce(mine, shared, Likelier{});
  if (threadIdx.x != 0) return;
  best[2 * row] = static_cast<double>(mine.logit);
  best[2 * row + 1] = mine.column < 0 ? -1.0 : static_cast<double>(first_id + mine.column);
}

/// A thread takes a row: 16 bytes per shard.
__global__ void __launch_bounds__(kThreads)
    argmax_of_shards_kernel(const double* best, std::int32_t* ids, Index rows, Index pairs) {
  const Index t = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (t >= rows) return;
  double most = best[2 * t], id = best[2 * t + 1];
  for (Index pair = t + rows; pair < pairs; pair += rows) {
    const double logit = best[2 * pair], other = best[2 * pair + 1];
    if (other < 0 || (id >= 0 && (logit < most || (logit == most && id < other)))) continue;
    most = logit;
    id = other;
  }
  ids[t] = static_cast<std::int32_t>(id);
}

/// One block counts all rows: a head has one per sample. Integers, so their order does not matter.
__global__ void __launch_bounds__(kThreads)
    count_matches_kernel(const std::int32_t* ids, const std::int32_t* targets, double* sum, Index rows) {
  __shared__ unsigned long long matches;
  if (threadIdx.x == 0) matches = 0;
  __syncthreads();
  unsigned long long mine = 0;
  for (Index t = threadIdx.x; t < rows; t += kThreads) mine += targets[t] >= 0 && ids[t] == targets[t] ? 1 : 0;
  atomicAdd(&matches, mine);
  __syncthreads();
  if (threadIdx.x == 0) *sum += static_cast<double>(matches);
}

}  // namespace

void argmax(Stream stream, const Argmax& args) {
  const Index rows = args.logits.dim(0), held = args.logits.dim(1);
  const Index real = std::clamp<Index>(args.vocab_size - args.first_id, 0, held);
  dispatch_element(args.logits.dtype(), [&]<class T>() {
    launch({stream, rows, kThreads}, argmax_kernel<T>, pointer<const T>(args.logits), pointer<double>(args.best),
           args.first_id, static_cast<int>(held), static_cast<int>(real));
  });
}

void argmax_of_shards(Stream stream, const ArgmaxOfShards& args) {
  const Index rows = args.ids.numel();
  launch({stream, ceil_div(rows, kThreads), kThreads}, argmax_of_shards_kernel, pointer<const double>(args.best),
         pointer<std::int32_t>(args.ids), rows, args.best.dim(0));
}

void count_matches(Stream stream, const CountMatches& args) {
  launch({stream, 1, kThreads}, count_matches_kernel, pointer<const std::int32_t>(args.ids),
         pointer<const std::int32_t>(args.targets), pointer<double>(args.sum), args.ids.numel());
}

}  // namespace megalith::ops::cuda
