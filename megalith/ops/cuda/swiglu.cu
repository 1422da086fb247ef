#include "megalith/ops/cuda/silu.cuh"
#include "megalith/ops/swiglu_kernels.h"

// All units are alike, so the kernels are flat over the pairs (gate, up). A thread moves kUnroll vectors of 16 bytes of
// pairs, each a block's width after the last. Those of y and dy are half as wide. Neighbours in a warp access
// neighbours in memory.

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;

/// N units of one thread: their places among all units, step by step.
template <int N>
__device__ Index first_unit(int step) {
  return ((blockIdx.x * Index{kUnroll} + step) * kThreads + threadIdx.x) * N;
}

/// Moves 3 elements per unit.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(const T* gate_up, T* y, Index units) {
  Pack<T, 2 * N> pairs[kUnroll];
#pragma unroll
  for (int step = 0; step < kUnroll; ++step) {
    const Index unit = first_unit<N>(step);
    pairs[step] = load_pack<2 * N>(gate_up, 2 * (unit < units ? unit : 0));
  }
#pragma unroll
  for (int step = 0; step < kUnroll; ++step) {
    const Index unit = first_unit<N>(step);
    if (unit >= units) break;
    const Values<float, 2 * N> pair = unpack(pairs[step]);
    Values<float, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = pair[2 * i] * silu_gate(pair[2 * i]) * pair[2 * i + 1];
    store_pack(y, unit, pack<T>(out));
  }
}

/// Moves 5 elements per unit.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(const T* gate_up, const T* dy, T* dgate_up, Index units) {
  Pack<T, 2 * N> pairs[kUnroll];
  Pack<T, N> gradients[kUnroll];
#pragma unroll
  for (int step = 0; step < kUnroll; ++step) {
    const Index unit = first_unit<N>(step), place = unit < units ? unit : 0;
    pairs[step] = load_pack<2 * N>(gate_up, 2 * place);
    gradients[step] = load_pack<N>(dy, place);
  }
#pragma unroll
  for (int step = 0; step < kUnroll; ++step) {
    const Index unit = first_unit<N>(step);
    if (unit >= units) break;
    const Values<float, N> d = unpack(gradients[step]);
    Values<float, 2 * N> pair = unpack(pairs[step]);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float gate = pair[2 * i], up = pair[2 * i + 1], s = silu_gate(gate);
      pair[2 * i] = d[i] * up * (s * (1.0f + gate * (1.0f - s)));
      pair[2 * i + 1] = d[i] * (gate * s);
    }
    store_pack(dgate_up, 2 * unit, pack<T>(pair));
  }
}

Index blocks_of(Index units, int width) { return ceil_div(units, Index{kThreads} * kUnroll * width); }

}  // namespace

void swiglu(Stream stream, const Swiglu& args) {
  const Index units = args.y.numel();
  dispatch_element(args.y.dtype(), [&]<class T>() {
    const auto run = [&]<int N>() {
      launch({stream, blocks_of(units, N), kThreads}, swiglu_kernel<N, T>, pointer<const T>(args.gate_up),
             pointer<T>(args.y), units);
    };
    constexpr int kWide = kPack<T> / 2;
    if (units % kWide == 0 && are_aligned({args.gate_up.raw(), args.y.raw()})) return run.template operator()<kWide>();
    run.template operator()<1>();
  });
}

void swiglu_backward(Stream stream, const SwigluBackward& args) {
  const Index units = args.dy.numel();
  dispatch_element(args.dy.dtype(), [&]<class T>() {
    const auto run = [&]<int N>() {
      launch({stream, blocks_of(units, N), kThreads}, swiglu_backward_kernel<N, T>, pointer<const T>(args.gate_up),
             pointer<const T>(args.dy), pointer<T>(args.dgate_up), units);
    };
    constexpr int kWide = kPack<T> / 2;
    if (units % kWide == 0 && are_aligned({args.gate_up.raw(), args.dy.raw(), args.dgate_up.raw()}))
      return run.template operator()<kWide>();
    run.template operator()<1>();
  });
}

}  // namespace megalith::ops::cuda
