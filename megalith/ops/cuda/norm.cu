#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/norm_kernels.h"
#include "megalith/ops/row_parts.h"

// A block owns whole rows, a thread kVectors vectors of each. A row is read once, and stays in registers from the sums
// over it to their use. Several rows are in flight and summed at once.

namespace megalith::ops::cuda {
namespace {

/// A thread's vectors of one row: number v lies blockDim.x vectors after number v - 1.
template <class T, int N, int kVectors>
struct Slice {
  Pack<T, N> at[kVectors];
};
template <int N, int kVectors>
struct Span {
  Index hidden;

  __device__ int column(int v) const { return static_cast<int>(v * blockDim.x + threadIdx.x) * N; }
  __device__ bool has(int v) const { return column(v) < hidden; }
  /// Vectors past the row's end hold some other part of the row, and must be left out of sums.
  template <class T>
  __device__ Slice<T, N, kVectors> load(const T* tensor, Index row) const {
    Slice<T, N, kVectors> slice;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) slice.at[v] = load_pack<N>(tensor, row * hidden + (has(v) ? column(v) : 0));
    return slice;
  }
  template <class T>
  __device__ void store(T* tensor, Index row, const Slice<T, N, kVectors>& slice) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (has(v)) store_pack(tensor, row * hidden + column(v), slice.at[v]);
    }
  }
};

/// Layer norms subtract the mean and add beta. RMS norms do neither, and their mean counts as 0.
enum class Norm { layer, rms };

// ---- Forward ----

/// The rows to normalise, read from memory.
template <class T>
struct PlainRows {
  static constexpr int kTensors = 1;
  const T* x;

  template <int N, int kVectors>
  __device__ void load(Span<N, kVectors> span, Index row, Slice<T, N, kVectors>* raw) const {
    raw[0] = span.load(x, row);
  }
  template <int N, int kVectors>
  __device__ Slice<T, N, kVectors> finish(Span<N, kVectors>, Index, const Slice<T, N, kVectors>* raw) const {
    return raw[0];
  }
};

/// residual + dropout(x + bias), which is also stored. It is rounded before it is normalised, because backward reads it
/// rounded.
template <class T>
struct ResidualRows {
  static constexpr int kTensors = 2;
  const T *x, *residual;
  const T* bias;  // may be null
  T* sum;
  DropoutKeys dropout;

  template <int N, int kVectors>
  __device__ void load(Span<N, kVectors> span, Index row, Slice<T, N, kVectors>* raw) const {
    raw[0] = span.load(x, row);
    raw[1] = span.load(residual, row);
  }
  template <int N, int kVectors>
  __device__ Slice<T, N, kVectors> finish(Span<N, kVectors> span, Index row, const Slice<T, N, kVectors>* raw) const {
    Slice<T, N, kVectors> result = raw[0];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!span.has(v)) break;
      Values<float, N> values = unpack(raw[0].at[v]);
      if (bias != nullptr) values = Plus{}(values, unpack(load_pack<N>(bias, span.column(v))));
      dropout.apply(values, row * span.hidden + span.column(v));
      result.at[v] = pack<T>(Plus{}(unpack(raw[1].at[v]), values));
    }
    span.store(sum, row, result);
    return result;
  }
};

/// beta and mean are null for RMS norms.
template <class T>
struct ForwardOutputs {
  const T *gamma, *beta;
  T* y;
  float *mean, *rstd;
  float eps;
};

/// The tiers of threads differ in the registers that a thread may have.
template <class T, int N, int kVectors, int kThreads, int kBytes>
constexpr int rows_in_flight() {
  return std::max(1, kBytes * 512 / kThreads / (kVectors * N * static_cast<int>(sizeof(T))));
}

/// A block takes kRows rows: their mean, their squared deviations, y. Moves 2 elements of T per element, 4 with a
/// residual, and 8 bytes per row. It reaches 63 % of a copy's rate, with a residual 87 %: 32768 x 768 on an H200, 37
/// and 54 us. Roundings are explicit, so that y has the same bits whatever its rows come from.
template <Norm kNorm, class T, int N, int kVectors, int kThreads, class Source>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    forward_kernel(const Source source, const ForwardOutputs<T> out, Index rows, Index hidden) {
  constexpr int kRows = rows_in_flight<T, N, kVectors, kThreads, 64>();
  using Sums = Values<float, kRows>;
  __shared__ Sums shared[2][kMaxWarps];
  const Span<N, kVectors> span{hidden};
  const Index first = blockIdx.x * Index{kRows};

  Slice<T, N, kVectors> raw[kRows][Source::kTensors], x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) source.load(span, min(first + r, rows - 1), raw[r]);
  Sums sums{};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x[r] = source.finish(span, min(first + r, rows - 1), raw[r]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Values<float, N> values = unpack(x[r].at[v]);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[r] += span.has(v) ? values[i] : 0.0f;
    }
  }
  const auto gamma = span.load(out.gamma, 0), beta = span.load(kNorm == Norm::layer ? out.beta : out.gamma, 0);
  const float inverse_hidden = 1.0f / static_cast<float>(static_cast<int>(hidden));
  Sums mean{};
  if constexpr (kNorm == Norm::layer) mean = block_reduce(sums, shared[0], Plus{});
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    mean[r] = __fmul_rn(mean[r], inverse_hidden);
    sums[r] = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Values<float, N> values = unpack(x[r].at[v]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float deviation = values[i] - mean[r];
        if (span.has(v)) sums[r] = __fmaf_rn(deviation, deviation, sums[r]);
      }
    }
  }
  const Sums squares = block_reduce(sums, shared[1], Plus{});
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r >= rows) break;
    const float rstd = rsqrtf(__fmaf_rn(squares[r], inverse_hidden, out.eps));
    Slice<T, N, kVectors> y;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      Values<float, N> values = unpack(x[r].at[v]);
      const Values<float, N> weight = unpack(gamma.at[v]), shift = unpack(beta.at[v]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float xhat = __fmul_rn(values[i] - mean[r], rstd);
        values[i] = kNorm == Norm::layer ? __fmaf_rn(xhat, weight[i], shift[i]) : __fmul_rn(xhat, weight[i]);
      }
      y.at[v] = pack<T>(values);
    }
    span.store(out.y, first + r, y);
    if (threadIdx.x == 0) {
      if constexpr (kNorm == Norm::layer) out.mean[first + r] = mean[r];
      out.rstd[first + r] = rstd;
    }
  }
}

// ---- Backward ----

/// What a third tensor is: a gradient that flows past the norm and is added to dx, or a part of y's gradient.
enum class Third { residual, more_dy };

/// The mean is null for RMS norms.
template <class T>
struct BackwardTensors {
  const T *dy, *x, *third;  // without a third: dy, not used
  const T* gamma;
  const float *mean, *rstd;
  T* dx;
  float* parts;
  bool has_residual;
};

/// kRows rows in flight. Rows past the last repeat the last.
template <Norm kNorm, class T, int N, int kVectors, int kRows>
struct BackwardRows {
  Slice<T, N, kVectors> dy[kRows], x[kRows], third[kRows];
  float mean[kRows], rstd[kRows];

  __device__ BackwardRows(const BackwardTensors<T>& in, Span<N, kVectors> span, Index first, Index end) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Index row = min(first + r, end - 1);
      dy[r] = span.load(in.dy, row);
      x[r] = span.load(in.x, row);
      third[r] = span.load(in.third, row);
      mean[r] = kNorm == Norm::layer ? in.mean[row] : 0.0f;
      rstd[r] = in.rstd[row];
    }
  }
};

/// Rounded to T.
template <class T, int N>
__device__ Values<float, N> sum_of(const Pack<T, N>& x, const Pack<T, N>& y) {
  return unpack(pack<T>(Plus{}(unpack(x), unpack(y))));
}

/// The gradient of y of a vector.
template <Third kThird, class Rows>
__device__ auto gradient_of(const Rows& rows, int r, int v) {
  if constexpr (kThird == Third::more_dy)
    return sum_of(rows.dy[r].at[v], rows.third[r].at[v]);
  else
    return unpack(rows.dy[r].at[v]);
}

/// dx = rstd (g - mean(g) - xhat mean(g xhat)) + residual, g = dy gamma. A block takes one part of the rows, kRows at a
/// time, while the next ones are being loaded. It sums dgamma and dbeta over the part in registers, and the stored dx
/// where requested. It writes the sums as one part. Moves 3 elements of T per element, 4 with a residual, and 8 bytes
/// per part, column and sum.
///
/// Measured on an H200, bf16 with a residual, the sum of the parts included, without and with dx's sums:
///   32768 x 768 66 and 71 us (71 and 67 % of a copy's rate), 8192 x 1536 49 and 48 us (49 %; 24 us are the bytes).
/// The latter has few rows per block, each after a block reduction. Half the registers and no rows ahead was slower (57
/// us).
///
/// Roundings are explicit. Left to the compiler, the first of kRows rows got other roundings than the second, whose
/// arithmetic is conditional. So a row's gradient depended on its place.
template <Norm kNorm, Third kThird, class T, int N, int kVectors, int kThreads, bool kSumsDx>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const BackwardTensors<T> tensors, Index rows, Index hidden, Index rows_per_part) {
  constexpr int kRows = rows_in_flight<T, N, kVectors, kThreads, 32>();
  constexpr int kMeans = kNorm == Norm::layer ? 2 : 1;  // means of a row: g's for a layer norm, and g xhat's
  using Rows = BackwardRows<kNorm, T, N, kVectors, kRows>;
  using Sums = Values<float, kMeans * kRows>;
  __shared__ Sums shared[2][kMaxWarps];
  const Span<N, kVectors> span{hidden};
  const Index begin = blockIdx.x * rows_per_part, end = min(rows, begin + rows_per_part);
  const float inverse_hidden = 1.0f / static_cast<float>(static_cast<int>(hidden));

  const auto gamma = span.load(tensors.gamma, 0);
  Values<float, N> gamma_sum[kVectors]{}, beta_sum[kVectors]{}, dx_sum[kVectors]{};
  Rows current(tensors, span, begin, end);
  int buffer = 0;
  for (Index row = begin; row < end; row += kRows, buffer ^= 1) {
    const Rows next(tensors, span, row + kRows, end);
    Sums sums{};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r >= end) break;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!span.has(v)) break;
        const Values<float, N> dy = gradient_of<kThird>(current, r, v), x = unpack(current.x[r].at[v]);
        const Values<float, N> weight = unpack(gamma.at[v]);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float dy_xhat = __fmul_rn(dy[i], (x[i] - current.mean[r]) * current.rstd[r]);
          gamma_sum[v][i] = __fadd_rn(gamma_sum[v][i], dy_xhat);
          if constexpr (kNorm == Norm::layer) {
            beta_sum[v][i] += dy[i];
            sums[kMeans * r] = __fmaf_rn(dy[i], weight[i], sums[kMeans * r]);
          }
          float& g_xhat_sum = sums[kMeans * r + kMeans - 1];
          g_xhat_sum = __fmaf_rn(dy_xhat, weight[i], g_xhat_sum);
        }
      }
    }
    const Sums means = block_reduce(sums, shared[buffer], Plus{});
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r >= end) break;
      const float g_mean = kNorm == Norm::layer ? means[kMeans * r] * inverse_hidden : 0.0f,
                  g_xhat_mean = means[kMeans * r + kMeans - 1] * inverse_hidden;
      Slice<T, N, kVectors> dx;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        Values<float, N> dy = gradient_of<kThird>(current, r, v);
        const Values<float, N> x = unpack(current.x[r].at[v]), residual = unpack(current.third[r].at[v]);
        const Values<float, N> weight = unpack(gamma.at[v]);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float xhat = (x[i] - current.mean[r]) * current.rstd[r];
          const float g = kNorm == Norm::layer ? __fmaf_rn(dy[i], weight[i], -g_mean) : __fmul_rn(dy[i], weight[i]);
          const float centred = __fmaf_rn(-xhat, g_xhat_mean, g);
          const float gradient = __fmul_rn(centred, current.rstd[r]);
          dy[i] = kThird == Third::residual && tensors.has_residual ? __fadd_rn(residual[i], gradient) : gradient;
        }
        dx.at[v] = pack<T>(dy);
        if constexpr (kSumsDx) dx_sum[v] = Plus{}(dx_sum[v], unpack(dx.at[v]));
      }
      span.store(tensors.dx, row + r, dx);
    }
    current = next;
  }
  constexpr int kGrads = kNorm == Norm::layer ? 2 : 1;
  float* part = tensors.parts + blockIdx.x * (kSumsDx ? kGrads + 1 : kGrads) * hidden;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!span.has(v)) break;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const Index column = span.column(v) + i;
      part[column] = gamma_sum[v][i];
      if constexpr (kNorm == Norm::layer) part[hidden + column] = beta_sum[v][i];
      if constexpr (kSumsDx) part[kGrads * hidden + column] = dx_sum[v][i];
    }
  }
}

// ---- Launches ----

/// Calls run.template operator()<N, kVectors, kThreads>() with the widest access that the row allows, and at most
/// kColumns columns per thread.
template <class T, class Run>
void dispatch_width(Index hidden, bool aligned, const Run& run) {
  constexpr int kWide = kPack<T>, kColumns = static_cast<int>(kMaxNormColumnsOnGpu) / kMaxThreads;
  if (hidden > kMaxNormColumnsOnGpu)
    throw BackendError(str("[norm] columns = ", hidden, ": must be at most ", kMaxNormColumnsOnGpu,
                           " on a GPU; use a smaller hidden size"));
  if (!aligned || hidden % kWide != 0) return run.template operator()<1, kColumns, 1024>();
  if (hidden <= 8 * 512) return run.template operator()<kWide, 8 / kWide, 512>();
  if (hidden <= 8 * 1024) return run.template operator()<kWide, 8 / kWide, 1024>();
  run.template operator()<kWide, kColumns / kWide, 1024>();
}

dim3 threads_for(Index hidden, int columns_per_thread) {
  return dim3(static_cast<unsigned>(round_up(ceil_div(hidden, columns_per_thread), kWarp)));
}

template <Norm kNorm, class T, class Source>
void forward(Stream stream, const Source& source, const ForwardOutputs<T>& out, Index rows, Index hidden,
             bool aligned) {
  dispatch_width<T>(hidden, aligned, [&]<int N, int kVectors, int kThreads>() {
    constexpr int kRows = rows_in_flight<T, N, kVectors, kThreads, 64>();
    launch({stream, ceil_div(rows, kRows), threads_for(hidden, N * kVectors)},
           forward_kernel<kNorm, T, N, kVectors, kThreads, Source>, source, out, rows, hidden);
  });
}

/// Calls run.template operator()<Norm>(). Only layer norms have a mean.
template <class Run>
void dispatch_norm(const Tensor& mean, const Run& run) {
  if (mean) return run.template operator()<Norm::layer>();
  run.template operator()<Norm::rms>();
}

template <class T, class Args>
ForwardOutputs<T> outputs_of(const Args& args) {
  return {.gamma = pointer<const T>(args.gamma),
          .beta = pointer<const T>(args.beta),
          .y = pointer<T>(args.y),
          .mean = pointer<float>(args.mean),
          .rstd = pointer<float>(args.rstd),
          .eps = static_cast<float>(args.eps)};
}

/// Everything but the sums of the parts. Returns true when the parts have dx's sums.
template <Norm kNorm, Third kThird>
bool run_backward(Stream stream, const NormBackward& args, const Tensor& parts) {
  const Index rows = args.x.dim(0), hidden = args.x.dim(1);
  const RowParts cut = cut_rows(rows);
  const Tensor& given = kThird == Third::more_dy ? args.more_dy : args.residual;
  const Tensor& third = given ? given : args.dy;
  const bool aligned = are_aligned({args.dy.raw(), args.x.raw(), args.gamma.raw(), third.raw(), args.dx.raw()});
  bool sums_dx = false;
  dispatch_element(args.x.dtype(), [&]<class T>() {
    const BackwardTensors<T> tensors{.dy = pointer<const T>(args.dy),
                                     .x = pointer<const T>(args.x),
                                     .third = pointer<const T>(third),
                                     .gamma = pointer<const T>(args.gamma),
                                     .mean = pointer<const float>(args.mean),
                                     .rstd = pointer<const float>(args.rstd),
                                     .dx = pointer<T>(args.dx),
                                     .parts = pointer<float>(parts),
                                     .has_residual = static_cast<bool>(args.residual)};
    dispatch_width<T>(hidden, aligned, [&]<int N, int kVectors, int kThreads>() {
      const auto run = [&](auto* kernel) {
        launch({stream, cut.count, threads_for(hidden, N * kVectors)}, kernel, tensors, rows, hidden, cut.rows);
      };
      // With more columns per thread a third sum costs more registers than a pass of its own. 8192 x 12288 took 825 us
      // on an H200, without it 644.
      if constexpr (N * kVectors <= 8) sums_dx = static_cast<bool>(args.bias_grad);
      if (sums_dx)
        run(backward_kernel<kNorm, kThird, T, N, kVectors, kThreads, N * kVectors <= 8>);
      else
        run(backward_kernel<kNorm, kThird, T, N, kVectors, kThreads, false>);
    });
  });
  return sums_dx;
}

}  // namespace

void norm_forward(Stream stream, const NormForward& args) {
  const bool aligned = are_aligned({args.x.raw(), args.gamma.raw(), args.beta.raw(), args.y.raw()});
  dispatch_norm(args.mean, [&]<Norm kNorm>() {
    dispatch_element(args.x.dtype(), [&]<class T>() {
      forward<kNorm>(stream, PlainRows<T>{pointer<const T>(args.x)}, outputs_of<T>(args), args.x.dim(0), args.x.dim(1),
                     aligned);
    });
  });
}

void residual_norm(Stream stream, const ResidualNorm& args) {
  const bool aligned = are_aligned({args.x.raw(), args.bias.raw(), args.residual.raw(), args.gamma.raw(),
                                    args.beta.raw(), args.sum.raw(), args.y.raw()});
  const Index rows = args.x.dim(0), hidden = args.x.dim(1);
  dispatch_norm(args.mean, [&]<Norm kNorm>() {
    dispatch_element(args.x.dtype(), [&]<class T>() {
      const ResidualRows<T> source{.x = pointer<const T>(args.x),
                                   .residual = pointer<const T>(args.residual),
                                   .bias = pointer<const T>(args.bias),
                                   .sum = pointer<T>(args.sum),
                                   .dropout = DropoutKeys(args.dropout, hidden)};
      forward<kNorm>(stream, source, outputs_of<T>(args), rows, hidden, aligned);
    });
  });
}

void norm_backward(Stream stream, const NormBackward& args, const Tensor& parts) {
  const Index count = row_parts(args.x.dim(0)), hidden = args.x.dim(1);
  bool sums_dx = false;
  dispatch_norm(args.mean, [&]<Norm kNorm>() {
    sums_dx = args.more_dy ? run_backward<kNorm, Third::more_dy>(stream, args, parts)
                           : run_backward<kNorm, Third::residual>(stream, args, parts);
  });
  add_parts(stream, pointer<float>(parts), count, hidden,
            {pointer<float>(args.gamma_grad), pointer<float>(args.beta_grad),
             sums_dx ? pointer<float>(args.bias_grad) : nullptr});
  if (args.bias_grad && !sums_dx) bias_backward(stream, args.dx, args.bias_grad, parts);
}

}  // namespace megalith::ops::cuda
