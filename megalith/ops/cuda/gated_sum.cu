#include "megalith/ops/cuda/warp_rows.cuh"
#include "megalith/ops/gated_sum_kernels.h"

namespace megalith::ops::cuda {
namespace {

__device__ float sigmoid_of_gate(const float* gate, Index row) {
  return gate == nullptr ? 1.0f : 1.0f / (1.0f + expf(-gate[row]));
}

/// A warp computes a row. Moves 3 elements per element.
template <int N, class T>
__global__ void __launch_bounds__(kRowWarps* kWarp)
    gated_sum_kernel(const T* routed, const T* shared, const float* gate, T* y, Index rows, Index hidden) {
  const Index row = row_of_warp();
  if (row >= rows) return;
  const float factor = sigmoid_of_gate(gate, row);
  for (Index i = threadIdx.x % kWarp * N; i < hidden; i += kWarp * N) {
    Values<float, N> sum = unpack(load_pack<N>(routed, row * hidden + i));
    const Values<float, N> other = unpack(load_pack<N>(shared, row * hidden + i));
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] = __fmaf_rn(factor, other[k], sum[k]);
    store_pack(y, row * hidden + i, pack<T>(sum));
  }
}

/// The same. The dot product of a row is summed over the lanes.
template <int N, class T>
__global__ void __launch_bounds__(kRowWarps* kWarp)
    gated_sum_backward_kernel(const T* dy, const T* shared, const float* gate, T* d_shared, float* d_gate, Index rows,
                              Index hidden) {
  const Index row = row_of_warp();
  if (row >= rows) return;
  const float factor = sigmoid_of_gate(gate, row);
  float dot = 0;
  for (Index i = threadIdx.x % kWarp * N; i < hidden; i += kWarp * N) {
    Values<float, N> d = unpack(load_pack<N>(dy, row * hidden + i));
    const Values<float, N> value = unpack(load_pack<N>(shared, row * hidden + i));
#pragma unroll
    for (int k = 0; k < N; ++k) {
      dot = __fmaf_rn(d[k], value[k], dot);
      d[k] *= factor;
    }
    store_pack(d_shared, row * hidden + i, pack<T>(d));
  }
  dot = warp_reduce(dot, Plus{});
  if (threadIdx.x % kWarp == 0) d_gate[row] = dot * factor * (1.0f - factor);
}

/// Calls run.operator()<N>() with the widest vectors that fit.
template <class T, class Run>
void with_width(Index hidden, std::initializer_list<const void*> tensors, const Run& run) {
  if (hidden % kPack<T> == 0 && are_aligned(tensors)) return run.template operator()<kPack<T>>();
  run.template operator()<1>();
}

}  // namespace

void gated_sum(Stream stream, const GatedSum& args) {
  const Index rows = args.y.dim(0), hidden = args.y.dim(1);
  dispatch_element(args.y.dtype(), [&]<class T>() {
    with_width<T>(hidden, {args.routed.raw(), args.shared.raw(), args.y.raw()}, [&]<int N>() {
      launch(rows_launch(stream, rows), gated_sum_kernel<N, T>, pointer<const T>(args.routed),
             pointer<const T>(args.shared), pointer<const float>(args.gate), pointer<T>(args.y), rows, hidden);
    });
  });
}

void gated_sum_backward(Stream stream, const GatedSumBackward& args) {
  const Index rows = args.dy.dim(0), hidden = args.dy.dim(1);
  dispatch_element(args.dy.dtype(), [&]<class T>() {
    with_width<T>(hidden, {args.dy.raw(), args.shared.raw(), args.d_shared.raw()}, [&]<int N>() {
      launch(rows_launch(stream, rows), gated_sum_backward_kernel<N, T>, pointer<const T>(args.dy),
             pointer<const T>(args.shared), pointer<const float>(args.gate), pointer<T>(args.d_shared),
             pointer<float>(args.d_gate), rows, hidden);
    });
  });
}

}  // namespace megalith::ops::cuda
