#include "megalith/ops/cuda/warp_rows.cuh"
#include "megalith/ops/rows_kernels.h"

namespace megalith::ops::cuda {
namespace {

// ---- The maps ----

// A stable counting sort. A warp counts the experts of its part of the pairs. One block turns the counts into first
// rows. Then each warp goes through its part once more, 32 pairs at a time. The place of a pair follows from the pairs
// before it, never from the order of threads.

constexpr int kThreads = 256;

/// Rows of the groups, which pairs then take, and those after them.
__global__ void clear_pairs_kernel(const std::int32_t* begin, const std::int32_t* rows_of, int experts, Index alignment,
                                   std::int32_t* pair_of, Index rows) {
  const Index row = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (row >= rows) return;
  const Index end = begin[experts - 1] + (rows_of[experts - 1] + alignment - 1) / alignment * alignment;
  pair_of[row] = row < end ? kZeroRow : kUnusedRow;
}

/// Pairs [begin, end) of a warp's part.
struct PartOfPairs {
  Index begin, end;
  __device__ PartOfPairs(Index pairs, Index of_part) : begin(blockIdx.x * of_part), end(min(pairs, begin + of_part)) {}
};

/// counts [parts, experts].  Reads 4 bytes per pair.
__global__ void __launch_bounds__(kWarp)
    count_pairs_kernel(const std::int32_t* expert_of, Index pairs, Index of_part, int experts, std::int32_t* counts) {
  extern __shared__ int counted[];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kWarp) counted[e] = 0;
  __syncwarp();
  const PartOfPairs part(pairs, of_part);
  for (Index pair = part.begin + threadIdx.x; pair < part.end; pair += kWarp) {
    const std::int32_t e = expert_of[pair];
    if (e >= 0 && e < experts) atomicAdd(counted + e, 1);
  }
  __syncwarp();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kWarp)
    counts[Index{blockIdx.x} * experts + e] = counted[e];
}

/// One block, a thread an expert: counts becomes the first row of each part's pairs of an expert.
__global__ void __launch_bounds__(kMaxThreads)
    first_rows_kernel(std::int32_t* counts, Index parts, int experts, int rows_per_expert, int alignment,
                      std::int32_t* begin, std::int32_t* rows_of) {
  __shared__ int up_to[kMaxThreads];
  const int e = static_cast<int>(threadIdx.x);
  int total = 0;
  if (e < experts) {
#pragma unroll 8
    for (Index part = 0; part < parts; ++part) total += counts[part * experts + e];
  }
  const int rows = rows_per_expert == 0 ? total : rows_per_expert;
  const int taken = e < experts ? (rows + alignment - 1) / alignment * alignment : 0;
  // Sums over the experts below and this one, by doubling steps.
  up_to[e] = taken;
  __syncthreads();
  for (int step = 1; step < kMaxThreads; step *= 2) {
    const int below = e >= step ? up_to[e - step] : 0;
    __syncthreads();
    up_to[e] += below;
    __syncthreads();
  }
  if (e >= experts) return;
  begin[e] = up_to[e] - taken;
  rows_of[e] = rows;
  int next = begin[e];
  for (Index part = 0; part < parts; ++part) {
    const int count = counts[part * experts + e];
    counts[part * experts + e] = next;
    next += count;
  }
}

/// Moves 12 bytes per pair.
__global__ void __launch_bounds__(kWarp)
    place_pairs_kernel(const std::int32_t* expert_of, Index pairs, Index of_part, int experts, Index rows_per_expert,
                       const std::int32_t* first_rows, const std::int32_t* begin, std::int32_t* row_of,
                       std::int32_t* pair_of) {
  extern __shared__ int next[];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kWarp)
    next[e] = first_rows[Index{blockIdx.x} * experts + e];
  __syncwarp();
  const PartOfPairs part(pairs, of_part);
  const unsigned lanes_before = (1u << threadIdx.x) - 1;
  for (Index first = part.begin; first < part.end; first += kWarp) {
    const Index pair = first + threadIdx.x;
    int e = pair < part.end ? expert_of[pair] : -1;
    if (e >= experts || e < 0) e = -1;
    const unsigned alike = __match_any_sync(0xffffffffu, e);
    const int before = __popc(alike & lanes_before);
    int row = -1;
    if (e >= 0) {
      row = next[e] + before;
      if (rows_per_expert > 0 && row >= begin[e] + rows_per_expert) row = -1;
    }
    __syncwarp();
    if (e >= 0 && before == 0) next[e] += __popc(alike);
    __syncwarp();
    if (pair >= part.end) continue;
    row_of[pair] = row;
    if (row >= 0) pair_of[row] = static_cast<std::int32_t>(pair);
  }
}

// ---- Rows ----

constexpr int kAhead = 4;  // vectors of 16 bytes in flight per thread

/// Calls body(vector, step) for the vectors of a row that a lane has, kAhead of them at a time: load(vector, step) for
/// all first. Vectors past the row's end are skipped.
template <class Load, class Use>
__device__ void for_row_vectors(int vectors, const Load& load, const Use& use) {
  for (int first = static_cast<int>(threadIdx.x) % kWarp; first < vectors; first += kWarp * kAhead) {
#pragma unroll
    for (int step = 0; step < kAhead; ++step) {
      if (first + step * kWarp < vectors) load(first + step * kWarp, step);
    }
#pragma unroll
    for (int step = 0; step < kAhead; ++step) {
      if (first + step * kWarp < vectors) use(first + step * kWarp, step);
    }
  }
}

/// A warp copies a row. Moves 2 elements.
template <int N, class T>
__global__ void __launch_bounds__(kRowWarps* kWarp)
    permute_rows_kernel(const T* x, const std::int32_t* pair_of, T* rows, Index count, Index hidden, Index top_k) {
  const Index row = row_of_warp();
  if (row >= count) return;
  const Index pair = pair_of[row], from = pair / top_k * hidden, to = row * hidden;
  if (pair == kUnusedRow) return;
  Pack<T, N> packs[kAhead] = {};
  for_row_vectors(
      static_cast<int>(hidden / N),
      [&](int vector, int step) {
        if (pair >= 0) packs[step] = load_pack<N>(x, from + vector * N);
      },
      [&](int vector, int step) { store_pack(rows, to + vector * N, packs[step]); });
}

/// A warp copies the row of a token to its K places, so that it is read once. The warps after those of tokens each find
/// the rows of zeros among 32 rows. Moves 1 + 1 / K elements.
template <int N, class T>
__global__ void __launch_bounds__(kRowWarps* kWarp)
    spread_rows_kernel(const T* x, const std::int32_t* row_of, const std::int32_t* pair_of, T* rows, Index tokens,
                       Index count, Index hidden, int top_k) {
  const Index warp = row_of_warp();
  const int vectors = static_cast<int>(hidden / N), lane = static_cast<int>(threadIdx.x) % kWarp;
  if (warp < tokens) {
    const std::int32_t* mine = row_of + warp * top_k;
    for (int first = lane; first < vectors; first += kWarp * kAhead) {
      Pack<T, N> packs[kAhead];
#pragma unroll
      for (int step = 0; step < kAhead; ++step)
        packs[step] = load_pack<N>(x, warp * hidden + min(first + step * kWarp, vectors - 1) * N);
      for (int k = 0; k < top_k; ++k) {
        const Index row = mine[k];
        if (row < 0) continue;
#pragma unroll
        for (int step = 0; step < kAhead; ++step) {
          const int vector = first + step * kWarp;
          if (vector < vectors) store_pack(rows, row * hidden + vector * N, packs[step]);
        }
      }
    }
    return;
  }
  const Index first = (warp - tokens) * kWarp;
  const bool is_zero = first + lane < count && pair_of[first + lane] == kZeroRow;
  for (unsigned left = __ballot_sync(0xffffffffu, is_zero); left != 0; left &= left - 1) {
    const Index row = first + __ffs(static_cast<int>(left)) - 1;
    for (int vector = lane; vector < vectors; vector += kWarp)
      store_pack(rows, row * hidden + vector * N, Pack<T, N>{});
  }
}

/// A warp computes a token's row. Reads its K rows and writes one.
template <int N, class T>
__global__ void __launch_bounds__(kRowWarps* kWarp)
    sum_rows_kernel(const T* rows, const std::int32_t* row_of, const float* weights, T* y, Index tokens, Index hidden,
                    int top_k) {
  const Index token = row_of_warp();
  if (token >= tokens) return;
  const std::int32_t* mine = row_of + token * top_k;
  const int vectors = static_cast<int>(hidden / N);
  for (int first = static_cast<int>(threadIdx.x) % kWarp; first < vectors; first += kWarp * kAhead) {
    Values<float, N> sums[kAhead] = {};
    for (int k = 0; k < top_k; ++k) {
      const Index row = mine[k];
      if (row < 0) continue;
      const float weight = weights == nullptr ? 1.0f : weights[token * top_k + k];
      Pack<T, N> packs[kAhead];
#pragma unroll
      for (int step = 0; step < kAhead; ++step)
        packs[step] = load_pack<N>(rows, row * hidden + min(first + step * kWarp, vectors - 1) * N);
#pragma unroll
      for (int step = 0; step < kAhead; ++step) {
        const Values<float, N> values = unpack(packs[step]);
#pragma unroll
        for (int i = 0; i < N; ++i) sums[step][i] = __fmaf_rn(weight, values[i], sums[step][i]);
      }
    }
#pragma unroll
    for (int step = 0; step < kAhead; ++step) {
      const int vector = first + step * kWarp;
      if (vector < vectors) store_pack(y, token * hidden + vector * N, pack<T>(sums[step]));
    }
  }
}

/// Rows of one number, a thread each: weights of rows.
template <class T>
__global__ void permute_numbers_kernel(const T* x, const std::int32_t* pair_of, T* rows, Index count, Index top_k) {
  const Index row = blockIdx.x * Index{kThreads} + threadIdx.x;
  if (row >= count) return;
  const Index pair = pair_of[row];
  if (pair != kUnusedRow) rows[row] = pair < 0 ? T(0.0f) : x[pair / top_k];
}

/// Calls run.template operator()<N>() with the widest access that the rows allow.
template <class T, class Run>
void with_width(Index hidden, bool aligned, const Run& run) {
  if (aligned && hidden % kPack<T> == 0) return run.template operator()<kPack<T>>();
  run.template operator()<1>();
}

}  // namespace

void build_rows(Stream stream, const BuildRows& args, const Tensor& scratch) {
  const Index pairs = args.experts.numel(), experts = args.groups.count(), rows = args.pair_of.numel();
  const Index parts = scratch.dim(0), of_part = pairs_of_part(pairs), shared = experts * Index{sizeof(int)};
  auto *counts = pointer<std::int32_t>(scratch), *pair_of = pointer<std::int32_t>(args.pair_of);
  const auto* expert_of = pointer<const std::int32_t>(args.experts);
  auto *begin = pointer<std::int32_t>(args.groups.begin), *rows_of = pointer<std::int32_t>(args.groups.rows);
  static_assert(kMaxGroups <= kMaxThreads);
  launch({stream, parts, kWarp, shared}, count_pairs_kernel, expert_of, pairs, of_part, static_cast<int>(experts),
         counts);
  launch({stream, 1, kMaxThreads}, first_rows_kernel, counts, parts, static_cast<int>(experts),
         static_cast<int>(args.rows_per_expert), static_cast<int>(args.groups.alignment), begin, rows_of);
  launch({stream, ceil_div(rows, kThreads), kThreads}, clear_pairs_kernel, static_cast<const std::int32_t*>(begin),
         static_cast<const std::int32_t*>(rows_of), static_cast<int>(experts), args.groups.alignment, pair_of, rows);
  launch({stream, parts, kWarp, shared}, place_pairs_kernel, expert_of, pairs, of_part, static_cast<int>(experts),
         args.rows_per_expert, pointer<const std::int32_t>(scratch), static_cast<const std::int32_t*>(begin),
         pointer<std::int32_t>(args.row_of), pair_of);
}

void permute_rows(Stream stream, const PermuteRows& args) {
  const Index count = args.rows.dim(0), hidden = args.x.dim(1);
  dispatch_element(args.x.dtype(), [&]<class T>() {
    if (hidden == 1)
      return launch({stream, ceil_div(count, kThreads), kThreads}, permute_numbers_kernel<T>, pointer<const T>(args.x),
                    pointer<const std::int32_t>(args.pair_of), pointer<T>(args.rows), count, args.top_k);
    with_width<T>(hidden, are_aligned({args.x.raw(), args.rows.raw()}), [&]<int N>() {
      if (args.row_of) {
        const Index tokens = args.x.dim(0);
        return launch(rows_launch(stream, tokens + ceil_div(count, kWarp)), spread_rows_kernel<N, T>,
                      pointer<const T>(args.x), pointer<const std::int32_t>(args.row_of),
                      pointer<const std::int32_t>(args.pair_of), pointer<T>(args.rows), tokens, count, hidden,
                      static_cast<int>(args.top_k));
      }
      launch(rows_launch(stream, count), permute_rows_kernel<N, T>, pointer<const T>(args.x),
             pointer<const std::int32_t>(args.pair_of), pointer<T>(args.rows), count, hidden, args.top_k);
    });
  });
}

void sum_rows(Stream stream, const SumRows& args) {
  const Index tokens = args.y.dim(0), hidden = args.y.dim(1);
  dispatch_element(args.y.dtype(), [&]<class T>() {
    with_width<T>(hidden, are_aligned({args.rows.raw(), args.y.raw()}), [&]<int N>() {
      launch(rows_launch(stream, tokens), sum_rows_kernel<N, T>, pointer<const T>(args.rows),
             pointer<const std::int32_t>(args.row_of), pointer<const float>(args.weights), pointer<T>(args.y), tokens,
             hidden, static_cast<int>(args.row_of.dim(1)));
    });
  });
}

}  // namespace megalith::ops::cuda
