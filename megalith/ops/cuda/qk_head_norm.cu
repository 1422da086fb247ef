#include <bit>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/cuda/qkv_heads.cuh"
#include "megalith/ops/qk_head_norm_kernels.h"
#include "megalith/ops/row_parts.h"

// A team of lanes of one warp owns a head, and keeps it in registers from the sum over it to its use. Roundings are
// explicit: left to the compiler, a row's could depend on its place among those of a thread (norm.cu).

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// How lanes access a head's columns: 16 bytes at a time, or one by one where 16 bytes may cross a boundary. Either way
/// a lane has the same columns, so the sums are the same.
enum class Access { wide, single };

/// Number v of a lane's vectors lies `lanes` vectors after number v - 1. A head has at most 256 columns.
template <class T>
constexpr int kVectors = static_cast<int>(kMaxHeadDimOnGpu) / (kWarp * kPack<T>);
/// Heads of a thread that are in flight: 64 bytes of each tensor.
template <class T>
constexpr int kInFlight = 4 / kVectors<T>;

/// A lane's part of one head.
template <class T>
struct Slice {
  Pack<T, kPack<T>> at[kVectors<T>];
};

/// A lane of a team. Columns past the head's end are loaded as zeros and not stored.
template <class T, Access kAccess>
struct Lane {
  static constexpr int N = kPack<T>;
  int lane, lanes, head_dim;

  __device__ int column(int v) const { return (v * lanes + lane) * N; }
  __device__ Slice<T> load(const T* tensor, Index head_start) const {
    Slice<T> slice{};
#pragma unroll
    for (int v = 0; v < kVectors<T>; ++v) {
      const int first = column(v);
      if constexpr (kAccess == Access::wide) {
        if (first < head_dim) slice.at[v] = load_pack<N>(tensor, head_start + first);
      } else {
        T numbers[N];
#pragma unroll
        for (int i = 0; i < N; ++i)
          numbers[i] = first + i < head_dim ? tensor[head_start + first + i] : convert<T>(0.0f);
        memcpy(&slice.at[v].word, numbers, sizeof numbers);
      }
    }
    return slice;
  }
  __device__ void store(T* tensor, Index head_start, const Slice<T>& slice) const {
#pragma unroll
    for (int v = 0; v < kVectors<T>; ++v) {
      const int first = column(v);
      if constexpr (kAccess == Access::wide) {
        if (first < head_dim) store_pack(tensor, head_start + first, slice.at[v]);
      } else {
        T numbers[N];
        memcpy(numbers, &slice.at[v].word, sizeof numbers);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (first + i < head_dim) tensor[head_start + first + i] = numbers[i];
        }
      }
    }
  }
  /// Reduces over the team; all lanes get the same bits. All lanes of the warp must call it.
  template <class V>
  __device__ V sum(V value) const {
    for (int mask = lanes / 2; mask > 0; mask /= 2) value = Plus{}(value, shuffle_xor(value, mask));
    return value;
  }
};

template <class T>
struct HeadForward {
  const T *qkv, *gamma_q, *gamma_k;
  T* out;
  float* rstd;
  float eps;
};

/// A team normalises one head of kInFlight rows, or copies it when it is a v. Moves 2 elements of T per element and 4
/// bytes per head.
template <class T, Access kAccess>
__global__ void __launch_bounds__(kThreads)
    head_norm_kernel(const HeadForward<T> tensors, const HeadLayout layout, int lanes) {
  constexpr int kRows = kInFlight<T>, N = kPack<T>;
  const unsigned thread = blockIdx.x * kThreads + threadIdx.x, team = thread / static_cast<unsigned>(lanes);
  const int of_team = static_cast<int>(thread % static_cast<unsigned>(lanes));
  const Lane<T, kAccess> lane{of_team, lanes, static_cast<int>(layout.head_dim)};
  const QkvHead head(layout, team % layout.heads);
  const Index first = Index{team / layout.heads} * kRows;
  const Index start = Index{head.number} * layout.head_dim;
  Slice<T> x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    x[r] = lane.load(tensors.qkv, min(first + r, layout.rows - 1) * layout.columns + start);
  const Slice<T> gamma = lane.load(head.is_k ? tensors.gamma_k : tensors.gamma_q, 0);
  Values<float, kRows> squares{};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int v = 0; v < kVectors<T>; ++v) {
      const Values<float, N> values = unpack(x[r].at[v]);
#pragma unroll
      for (int i = 0; i < N; ++i) squares[r] = __fmaf_rn(values[i], values[i], squares[r]);
    }
  }
  squares = lane.sum(squares);
  const float inverse_columns = 1.0f / static_cast<float>(layout.head_dim);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const Index row = first + r;
    if (row >= layout.rows) break;
    const float rstd = rsqrtf(__fmaf_rn(squares[r], inverse_columns, tensors.eps));
    if (!head.is_v) {
#pragma unroll
      for (int v = 0; v < kVectors<T>; ++v) {
        Values<float, N> values = unpack(x[r].at[v]);
        const Values<float, N> weight = unpack(gamma.at[v]);
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] = __fmul_rn(__fmul_rn(values[i], rstd), weight[i]);
        x[r].at[v] = pack<T>(values);
      }
      if (of_team == 0) tensors.rstd[row * layout.normed + head.normed()] = rstd;
    }
    lane.store(tensors.out, row * layout.columns + start, x[r]);
  }
}

template <class T>
struct HeadBackward {
  const T *dout, *qkv, *gamma_q, *gamma_k;
  const float* rstd;
  T* dqkv;
  float* parts;
};

/// Sums what each lane has for its columns over the teams of a block, in their order; sum [head_dim].
template <class T>
__device__ __forceinline__ void add_teams(const Values<float, kPack<T>> (&values)[kVectors<T>], int lanes,
                                          const HeadLayout& layout, float* sum) {
  constexpr int N = kPack<T>;
  __shared__ float shared[kThreads * N];
  const int thread = static_cast<int>(threadIdx.x), width = lanes * N;
#pragma unroll
  for (int v = 0; v < kVectors<T>; ++v) {
    __syncthreads();  // the earlier contents have been read
#pragma unroll
    for (int i = 0; i < N; ++i) shared[thread * N + i] = values[v][i];
    __syncthreads();
    const int column = v * width + thread;
    if (thread >= width || column >= static_cast<int>(layout.head_dim)) continue;
    float total = 0;
    for (int at = thread; at < kThreads * N; at += width) total += shared[at];
    sum[column] = total;
  }
}

/// A block takes one part of the rows. Its teams process their heads, a few at a time. They store dqkv and sum the
/// gammas' gradients in registers. The sums over the teams are one part of each. Moves 3 elements of T per element.
template <class T, Access kAccess>
__global__ void __launch_bounds__(kThreads, 2)
    head_norm_backward_kernel(const HeadBackward<T> tensors, const HeadLayout layout, int lanes, Index rows_per_part) {
  constexpr int kHeads = kInFlight<T> / 2, N = kPack<T>;
  const unsigned width = static_cast<unsigned>(lanes), team = threadIdx.x / width, teams = kThreads / width;
  const Lane<T, kAccess> lane{static_cast<int>(threadIdx.x % width), lanes, static_cast<int>(layout.head_dim)};
  const Index begin = blockIdx.x * rows_per_part;
  const unsigned items = static_cast<unsigned>(min(layout.rows - begin, rows_per_part)) * layout.heads;
  const float inverse_columns = 1.0f / static_cast<float>(layout.head_dim);
  const Slice<T> gamma_q = lane.load(tensors.gamma_q, 0), gamma_k = lane.load(tensors.gamma_k, 0);
  Values<float, N> q_sum[kVectors<T>]{}, k_sum[kVectors<T>]{};
  for (unsigned first = 0; first < items; first += teams * kHeads) {
    Slice<T> dy[kHeads], x[kHeads];
    Index start[kHeads];
    float rstd[kHeads];
    bool is_there[kHeads], is_q[kHeads], is_k[kHeads];
    Values<float, kHeads> means{};
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {  // heads past the last repeat the last
      const unsigned next = first + static_cast<unsigned>(h) * teams + team, item = min(next, items - 1);
      const QkvHead head(layout, item % layout.heads);
      is_there[h] = next < items;
      const Index row = begin + item / layout.heads;
      start[h] = row * layout.columns + Index{head.number} * layout.head_dim;
      is_k[h] = head.is_k;
      is_q[h] = !head.is_k && !head.is_v;
      dy[h] = lane.load(tensors.dout, start[h]);
      x[h] = lane.load(tensors.qkv, start[h]);
      rstd[h] = head.is_v ? 0.0f : tensors.rstd[row * layout.normed + head.normed()];
    }
    // As an expression, the choice would be between addresses, and both gammas would go to local memory.
    const auto gamma_of = [&](int h, int v) {
      Pack<T, N> gamma = gamma_q.at[v];
      if (is_k[h]) gamma = gamma_k.at[v];
      return gamma;
    };
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int v = 0; v < kVectors<T>; ++v) {
        const Values<float, N> d = unpack(dy[h].at[v]), values = unpack(x[h].at[v]);
        const Values<float, N> weight = unpack(gamma_of(h, v));
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float dy_xhat = __fmul_rn(d[i], __fmul_rn(values[i], rstd[h]));
          q_sum[v][i] = __fadd_rn(q_sum[v][i], is_there[h] && is_q[h] ? dy_xhat : 0.0f);
          k_sum[v][i] = __fadd_rn(k_sum[v][i], is_there[h] && is_k[h] ? dy_xhat : 0.0f);
          means[h] = __fmaf_rn(dy_xhat, weight[i], means[h]);
        }
      }
    }
    means = lane.sum(means);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (!is_there[h]) continue;
      const float mean = __fmul_rn(means[h], inverse_columns);
#pragma unroll
      for (int v = 0; v < kVectors<T>; ++v) {
        Values<float, N> d = unpack(dy[h].at[v]);
        const Values<float, N> values = unpack(x[h].at[v]);
        const Values<float, N> weight = unpack(gamma_of(h, v));
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float g = __fmul_rn(d[i], weight[i]), xhat = __fmul_rn(values[i], rstd[h]);
          d[i] = __fmul_rn(__fmaf_rn(-xhat, mean, g), rstd[h]);
        }
        if (is_q[h] || is_k[h]) dy[h].at[v] = pack<T>(d);
      }
      lane.store(tensors.dqkv, start[h], dy[h]);
    }
  }
  float* part = tensors.parts + blockIdx.x * Index{2} * layout.head_dim;
  add_teams<T>(q_sum, lanes, layout, part);
  add_teams<T>(k_sum, lanes, layout, part + layout.head_dim);
}

// ---- Launches ----

void expect_head_dim(Index head_dim, std::string_view op) {
  if (head_dim <= kMaxHeadDimOnGpu) return;
  throw BackendError(str("[", op, "] head_dim = ", head_dim, ": must be at most ", kMaxHeadDimOnGpu, " on a GPU"));
}

/// Calls run.template operator()<T, Access>(lanes), with the lanes of a team.
template <class Run>
void dispatch_heads(DType dtype, Index head_dim, bool aligned, const Run& run) {
  dispatch_element(dtype, [&]<class T>() {
    const auto vectors = static_cast<unsigned>(ceil_div(head_dim, kPack<T>));
    const int lanes = static_cast<int>(std::min(std::bit_ceil(vectors), static_cast<unsigned>(kWarp)));
    if (aligned && head_dim % kPack<T> == 0) return run.template operator()<T, Access::wide>(lanes);
    run.template operator()<T, Access::single>(lanes);
  });
}

}  // namespace

void qk_head_norm(Stream stream, const QkHeadNorm& args) {
  const HeadLayout layout(qkv_layout(args));
  expect_head_dim(layout.head_dim, "qk_head_norm");
  const bool aligned = are_aligned({args.qkv.raw(), args.gamma_q.raw(), args.gamma_k.raw(), args.out.raw()});
  dispatch_heads(args.qkv.dtype(), layout.head_dim, aligned, [&]<class T, Access kAccess>(int lanes) {
    const HeadForward<T> tensors{.qkv = pointer<const T>(args.qkv),
                                 .gamma_q = pointer<const T>(args.gamma_q),
                                 .gamma_k = pointer<const T>(args.gamma_k),
                                 .out = pointer<T>(args.out),
                                 .rstd = pointer<float>(args.rstd),
                                 .eps = static_cast<float>(args.eps)};
    const Index teams = ceil_div(layout.rows, kInFlight<T>) * layout.heads;
    launch({stream, ceil_div(teams * lanes, kThreads), kThreads}, head_norm_kernel<T, kAccess>, tensors, layout, lanes);
  });
}

void qk_head_norm_backward(Stream stream, const QkHeadNormBackward& args, const Tensor& parts) {
  const HeadLayout layout(qkv_layout(args));
  expect_head_dim(layout.head_dim, "qk_head_norm_backward");
  const RowParts cut = cut_rows(layout.rows);
  const bool aligned =
      are_aligned({args.dout.raw(), args.qkv.raw(), args.gamma_q.raw(), args.gamma_k.raw(), args.dqkv.raw()});
  dispatch_heads(args.qkv.dtype(), layout.head_dim, aligned, [&]<class T, Access kAccess>(int lanes) {
    const HeadBackward<T> tensors{.dout = pointer<const T>(args.dout),
                                  .qkv = pointer<const T>(args.qkv),
                                  .gamma_q = pointer<const T>(args.gamma_q),
                                  .gamma_k = pointer<const T>(args.gamma_k),
                                  .rstd = pointer<const float>(args.rstd),
                                  .dqkv = pointer<T>(args.dqkv),
                                  .parts = pointer<float>(parts)};
    launch({stream, cut.count, kThreads}, head_norm_backward_kernel<T, kAccess>, tensors, layout, lanes, cut.rows);
  });
  add_parts(stream, pointer<const float>(parts), cut.count, layout.head_dim,
            {pointer<float>(args.gamma_q_grad), pointer<float>(args.gamma_k_grad)});
}

}  // namespace megalith::ops::cuda
