#include "megalith/ops/cuda/qkv_heads.cuh"
#include "megalith/ops/qk_norm_kernels.h"
#include "megalith/ops/row_parts.h"

// QK norms over all heads. One block makes the sums of a row, and the rest is computed column by column. Roundings are
// explicit: left to the compiler, a row's could depend on its place among those of a thread (norm.cu).

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// N neighbouring columns of a row, all of one head.
struct Place {
  Index column, weight;  // column in the row; weight in gamma_q or gamma_k
  int kind;              // 0: a q, 1: a k, 2: a v, which has no weights
  __device__ Place(const HeadLayout& layout, const QkvHead& head, unsigned of_head)
      : column(Index{head.number} * layout.head_dim + of_head),
        weight(head.is_v ? 0 : Index{head.of_kind(layout)} * layout.head_dim + of_head),
        kind(head.is_v   ? 2
             : head.is_k ? 1
                         : 0) {}
};
/// Vector `at` of a row.
template <int N>
__device__ Place place_of(const HeadLayout& layout, unsigned at) {
  const unsigned vectors = layout.head_dim / N;
  return {layout, QkvHead(layout, at / vectors), at % vectors * N};
}
/// Vector `at` among those of a row's q heads and k.
template <int N>
__device__ Place normed_place_of(const HeadLayout& layout, unsigned at) {
  const unsigned vectors = layout.head_dim / N, head = at / vectors;
  return {layout, QkvHead(layout, head + head / (layout.of_group - 1)), at % vectors * N};
}

/// `kind` as in Place, and not 2.
struct Statistics {
  template <class Args>
  Statistics(const Args& args, Index head_dim)
      : square_sums(pointer<const float>(args.square_sums)),
        inverse_count{1.0f / static_cast<float>(args.total_num_heads * head_dim),
                      1.0f / static_cast<float>(args.total_num_kv_heads * head_dim)},
        eps(static_cast<float>(args.eps)) {}
  __device__ float rstd(Index row, int kind) const {
    return rsqrtf(__fmaf_rn(square_sums[row * 2 + kind], kind == 0 ? inverse_count[0] : inverse_count[1], eps));
  }
  __device__ float mean(const float* sums, Index row, int kind) const {
    return __fmul_rn(sums[row * 2 + kind], kind == 0 ? inverse_count[0] : inverse_count[1]);
  }

  const float* square_sums;
  float inverse_count[2];
  float eps;
};

template <class T>
struct Gammas {
  template <class Args>
  explicit Gammas(const Args& args) : q(pointer<const T>(args.gamma_q)), k(pointer<const T>(args.gamma_k)) {}
  template <int N>
  __device__ Values<float, N> at(const Place& place) const {
    return unpack(load_pack<N>(place.kind == 1 ? k : q, place.weight));
  }
  const T *q, *k;
};

template <class T>
struct Squares {
  const T* qkv;
  template <int N>
  __device__ float term(Index row_start, const Place& place) const {
    const Values<float, N> x = unpack(load_pack<N>(qkv, row_start + place.column));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum = __fmaf_rn(x[i], x[i], sum);
    return sum;
  }
  __device__ float finish(float sum, Index, int) const { return sum; }
};
/// g xhat, times rstd at the end.
template <class T>
struct Products {
  const T *dout, *qkv;
  Gammas<T> gammas;
  Statistics statistics;
  template <int N>
  __device__ float term(Index row_start, const Place& place) const {
    const Values<float, N> dy = unpack(load_pack<N>(dout, row_start + place.column)),
                           x = unpack(load_pack<N>(qkv, row_start + place.column)),
                           weight = gammas.template at<N>(place);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum = __fmaf_rn(__fmul_rn(dy[i], weight[i]), x[i], sum);
    return sum;
  }
  __device__ float finish(float sum, Index row, int kind) const { return sum * statistics.rstd(row, kind); }
};

/// A block sums the terms of one row's q, and of its k. Reads q and k, and for products those of both tensors.
template <int N, class Terms>
__global__ void __launch_bounds__(kThreads) row_sums_kernel(const Terms terms, const HeadLayout layout, float* sums) {
  using Sums = Values<float, 2>;
  __shared__ Sums shared[kMaxWarps];
  const Index row = blockIdx.x;
  const unsigned vectors = layout.normed * (layout.head_dim / N);
  Sums mine{};
#pragma unroll 4
  for (unsigned at = threadIdx.x; at < vectors; at += kThreads) {
    const Place place = normed_place_of<N>(layout, at);
    const float term = terms.template term<N>(row * layout.columns, place);
    mine[0] += place.kind == 0 ? term : 0.0f;
    mine[1] += place.kind == 1 ? term : 0.0f;
  }
  mine = block_reduce(mine, shared, Plus{});
  if (threadIdx.x < 2) {
    const int kind = static_cast<int>(threadIdx.x);
    sums[row * 2 + kind] = terms.finish(kind == 0 ? mine[0] : mine[1], row, kind);
  }
}

/// Rows of a thread that are in flight.
constexpr int kRows = 4;

/// A thread normalises N columns of kRows rows. Moves 2 elements of T per element.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const T* qkv, const Gammas<T> gammas, const Statistics statistics, T* out, const HeadLayout layout) {
  const unsigned thread = blockIdx.x * kThreads + threadIdx.x, vectors = layout.heads * (layout.head_dim / N);
  const Index first = Index{thread / vectors} * kRows;
  if (first >= layout.rows) return;
  const Place place = place_of<N>(layout, thread % vectors);
  Pack<T, N> x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    x[r] = load_pack<N>(qkv, min(first + r, layout.rows - 1) * layout.columns + place.column);
  const Values<float, N> weight = gammas.template at<N>(place);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const Index row = first + r;
    if (row >= layout.rows) break;
    if (place.kind != 2) {
      const float rstd = statistics.rstd(row, place.kind);
      Values<float, N> values = unpack(x[r]);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = __fmul_rn(__fmul_rn(values[i], rstd), weight[i]);
      x[r] = pack<T>(values);
    }
    store_pack(out, row * layout.columns + place.column, x[r]);
  }
}

template <class T>
struct Backward {
  const T *dout, *qkv;
  Gammas<T> gammas;
  Statistics statistics;
  const float* g_xhat_sums;
  T* dqkv;
  float *q_parts, *k_parts;
  Index q_columns, k_columns;
};

/// A block takes one of `tiles` parts of the columns and one part of the rows, a thread N columns, kRows rows at a
/// time. It writes the sums as one part. Moves 3 elements of T per element, and 4 bytes per part and column of q and k.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    norm_backward_kernel(const Backward<T> tensors, const HeadLayout layout, unsigned tiles, Index rows_per_part) {
  const unsigned part = blockIdx.x / tiles, at = blockIdx.x % tiles * blockDim.x + threadIdx.x;
  if (at >= layout.heads * (layout.head_dim / N)) return;
  const Place place = place_of<N>(layout, at);
  const Index begin = part * rows_per_part, end = min(layout.rows, begin + rows_per_part);
  const Values<float, N> weight = tensors.gammas.template at<N>(place);
  Values<float, N> sum{};
  for (Index first = begin; first < end; first += kRows) {
    Pack<T, N> dy[kRows], x[kRows];
    float rstd[kRows], mean[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Index row = min(first + r, end - 1), element = row * layout.columns + place.column;
      dy[r] = load_pack<N>(tensors.dout, element);
      x[r] = load_pack<N>(tensors.qkv, element);
      const int kind = place.kind == 1 ? 1 : 0;
      rstd[r] = tensors.statistics.rstd(row, kind);
      mean[r] = tensors.statistics.mean(tensors.g_xhat_sums, row, kind);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= end) break;
      if (place.kind != 2) {
        Values<float, N> d = unpack(dy[r]);
        const Values<float, N> values = unpack(x[r]);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float xhat = __fmul_rn(values[i], rstd[r]);
          sum[i] = __fmaf_rn(d[i], xhat, sum[i]);
          d[i] = __fmul_rn(__fmaf_rn(-xhat, mean[r], __fmul_rn(d[i], weight[i])), rstd[r]);
        }
        dy[r] = pack<T>(d);
      }
      store_pack(tensors.dqkv, (first + r) * layout.columns + place.column, dy[r]);
    }
  }
  if (place.kind == 2) return;
  float* sums =
      place.kind == 0 ? tensors.q_parts + part * tensors.q_columns : tensors.k_parts + part * tensors.k_columns;
#pragma unroll
  for (int i = 0; i < N; ++i) sums[place.weight + i] = sum[i];
}

// ---- Launches ----

/// Calls run.template operator()<N, T>() with the widest access.
template <class Run>
void dispatch_columns(DType dtype, Index head_dim, bool aligned, const Run& run) {
  dispatch_element(dtype, [&]<class T>() {
    if (aligned && head_dim % kPack<T> == 0) return run.template operator()<kPack<T>, T>();
    run.template operator()<1, T>();
  });
}

}  // namespace

void qk_square_sums(Stream stream, const QkSquareSums& args) {
  const HeadLayout layout(qkv_layout(args));
  dispatch_columns(args.qkv.dtype(), layout.head_dim, are_aligned({args.qkv.raw()}), [&]<int N, class T>() {
    launch({stream, layout.rows, kThreads}, row_sums_kernel<N, Squares<T>>, Squares<T>{pointer<const T>(args.qkv)},
           layout, pointer<float>(args.square_sums));
  });
}

void qk_norm(Stream stream, const QkNorm& args) {
  const HeadLayout layout(qkv_layout(args));
  const bool aligned = are_aligned({args.qkv.raw(), args.gamma_q.raw(), args.gamma_k.raw(), args.out.raw()});
  dispatch_columns(args.qkv.dtype(), layout.head_dim, aligned, [&]<int N, class T>() {
    const Index vectors = ceil_div(layout.rows, kRows) * (layout.columns / N);
    launch({stream, ceil_div(vectors, kThreads), kThreads}, norm_kernel<N, T>, pointer<const T>(args.qkv),
           Gammas<T>(args), Statistics(args, layout.head_dim), pointer<T>(args.out), layout);
  });
}

void qk_norm_backward_sums(Stream stream, const QkNormBackwardSums& args) {
  const HeadLayout layout(qkv_layout(args));
  const bool aligned = are_aligned({args.dout.raw(), args.qkv.raw(), args.gamma_q.raw(), args.gamma_k.raw()});
  dispatch_columns(args.qkv.dtype(), layout.head_dim, aligned, [&]<int N, class T>() {
    const Products<T> products{pointer<const T>(args.dout), pointer<const T>(args.qkv), Gammas<T>(args),
                               Statistics(args, layout.head_dim)};
    launch({stream, layout.rows, kThreads}, row_sums_kernel<N, Products<T>>, products, layout,
           pointer<float>(args.g_xhat_sums));
  });
}

void qk_norm_backward(Stream stream, const QkNormBackward& args, const Tensor& parts) {
  const HeadLayout layout(qkv_layout(args));
  const RowParts cut = cut_rows(layout.rows);
  const Index q_columns = args.gamma_q.dim(0), k_columns = args.gamma_k.dim(0);
  auto *const q_parts = pointer<float>(parts), *const k_parts = q_parts + cut.count * q_columns;
  const bool aligned =
      are_aligned({args.dout.raw(), args.qkv.raw(), args.gamma_q.raw(), args.gamma_k.raw(), args.dqkv.raw()});
  dispatch_columns(args.qkv.dtype(), layout.head_dim, aligned, [&]<int N, class T>() {
    const Backward<T> tensors{.dout = pointer<const T>(args.dout),
                              .qkv = pointer<const T>(args.qkv),
                              .gammas = Gammas<T>(args),
                              .statistics = Statistics(args, layout.head_dim),
                              .g_xhat_sums = pointer<const float>(args.g_xhat_sums),
                              .dqkv = pointer<T>(args.dqkv),
                              .q_parts = q_parts,
                              .k_parts = k_parts,
                              .q_columns = q_columns,
                              .k_columns = k_columns};
    const Index vectors = layout.columns / N, tiles = ceil_div(vectors, kThreads);
    const auto threads = static_cast<unsigned>(round_up(ceil_div(vectors, tiles), kWarp));
    launch({stream, cut.count * tiles, dim3(threads)}, norm_backward_kernel<N, T>, tensors, layout,
           static_cast<unsigned>(tiles), cut.rows);
  });
  add_parts(stream, q_parts, cut.count, q_columns, {pointer<float>(args.gamma_q_grad)});
  add_parts(stream, k_parts, cut.count, k_columns, {pointer<float>(args.gamma_k_grad)});
}

}  // namespace megalith::ops::cuda
