#include <cuda_runtime_api.h>

#include "megalith/ops/cuda/gelu.cuh"
#include "megalith/ops/cuda/gemm.h"
#include "megalith/ops/cuda/grouped_product.h"
#include "megalith/ops/cuda/silu.cuh"
#include "megalith/ops/cuda/warp_rows.cuh"
#include "megalith/ops/grouped_matmul_kernels.h"

// The activation of experts after and before a loop of GEMMs. A warp takes a row, if it is one of a group.

namespace megalith::ops::cuda {
namespace {

/// In device memory.
struct Groups {
  const std::int32_t *begin, *rows;
  int count;

  /// Whether a group has the row. Halves the groups until the last that begins at or before it is left.
  __device__ bool has(Index row) const {
    int low = 0;
    for (int size = count; size > 1;) {
      const int half = size / 2;
      if (begin[low + half] <= row) low += half;
      size -= half;
    }
    return row >= begin[low] && row - begin[low] < rows[low];
  }
};

Groups groups_of(const GroupRows& groups) {
  return {pointer<const std::int32_t>(groups.begin), pointer<const std::int32_t>(groups.rows),
          static_cast<int>(groups.count())};
}

/// silu(z) = z s and its derivative.
struct Silu {
  float value, slope;
  __device__ explicit Silu(float z) {
    const float s = silu_gate(z);
    value = z * s;
    slope = s * (1.0f + z * (1.0f - s));
  }
};

/// N units of a row: h of their kWidth N numbers of z.
template <int kWidth, int N>
__device__ Values<float, N> activated(const Values<float, kWidth * N>& z) {
  Values<float, N> h;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (kWidth == 2) {
      h[i] = Silu(z[2 * i]).value * z[2 * i + 1];
    } else {
      h[i] = z[i] * gelu_gate(z[i]);
    }
  }
  return h;
}

/// Moves 1 + kWidth elements per unit.
template <int kWidth, int N, class T>
__global__ void __launch_bounds__(kRowWarps* kWarp)
    activate_kernel(Groups groups, const T* z, T* h, Index count, Index units) {
  const Index row = row_of_warp();
  if (row >= count || !groups.has(row)) return;
  for (Index unit = threadIdx.x % kWarp * Index{N}; unit < units; unit += kWarp * N) {
    const Index at = row * units + unit;
    store_pack(h, at, pack<T>(activated<kWidth, N>(unpack(load_pack<kWidth * N>(z, kWidth * at)))));
  }
}

template <class T>
struct ActivateBackward {
  Groups groups;
  const T* z;
  const float* p;
  T *dz, *ph;  // ph holds dh before
  float* dp;
  Index count, units;
};

/// Moves 2 + 2 kWidth elements per unit.
template <int kWidth, int N, class T>
__global__ void __launch_bounds__(kRowWarps* kWarp) activate_backward_kernel(const ActivateBackward<T> args) {
  const Index row = row_of_warp();
  if (row >= args.count || !args.groups.has(row)) return;
  const float p = args.p[row];
  float sum = 0;
  for (Index unit = threadIdx.x % kWarp * Index{N}; unit < args.units; unit += kWarp * N) {
    const Index at = row * args.units + unit;
    Values<float, kWidth* N> z = unpack(load_pack<kWidth * N>(args.z, kWidth * at));
    const Values<float, N> dh = unpack(load_pack<N>(args.ph, at));
    // dp takes h as the forward pass rounded it.
    const Pack<T, N> rounded = pack<T>(activated<kWidth, N>(z));
    Values<float, N> h = unpack(rounded);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum = __fmaf_rn(dh[i], h[i], sum);
      h[i] *= p;
      const float weighted = p * dh[i];
      if constexpr (kWidth == 2) {
        const Silu gate(z[2 * i]);
        z[2 * i] = weighted * z[2 * i + 1] * gate.slope;
        z[2 * i + 1] = weighted * gate.value;
      } else {
        z[i] = weighted * gelu_slope(z[i]);
      }
    }
    store_pack(args.dz, kWidth * at, pack<T>(z));
    store_pack(args.ph, at, pack<T>(h));
  }
  sum = warp_reduce(sum, Plus{});
  if (threadIdx.x % kWarp == 0) args.dp[row] = sum;
}

/// Calls run.template operator()<kWidth, N>() for z [M, kWidth units], with the widest access that the rows allow.
template <class T, class Run>
void with_activation(const Tensor& z, Index units, std::initializer_list<const void*> addresses, const Run& run) {
  const bool is_gated = z.dim(1) != units, is_wide = units % kPack<T> == 0 && are_aligned(addresses);
  constexpr int kHalf = kPack<T> / 2;
  if (is_gated) return is_wide ? run.template operator()<2, kHalf>() : run.template operator()<2, 1>();
  return is_wide ? run.template operator()<1, kPack<T>>() : run.template operator()<1, 1>();
}

static_assert(kGroupedKernelRows == kGroupedTileRows);

bool is_for_kernel(const GroupRows& groups) { return groups.alignment == kGroupedKernelRows; }
TileGroups tile_groups(const GroupRows& groups) { return {.begin = groups.begin, .rows = groups.rows}; }
TiledActivation activation_of(const Tensor& z, const Tensor& h) {
  return z.dim(1) == h.dim(1) ? TiledActivation::gelu : TiledActivation::gated;
}
constexpr int kNoMargin = 0;

}  // namespace

bool may_have_grouped_kernel() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    static_cast<void>(cudaGetLastError());
    return true;
  }
  return MEGALITH_HAS_SM90A != 0 && gpu_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
}

bool grouped_kernel(Exec& ex, Stream stream, const GroupedProduct& product) {
  const GroupRows& groups = product.groups;
  if (!is_for_kernel(groups)) return false;
  switch (product.kind) {
    case GroupedProduct::Kind::forward:
      return grouped_product(ex, stream, TiledForward{.x = product.rows, .w = product.weights, .y = product.others},
                             tile_groups(groups), kNoMargin);
    case GroupedProduct::Kind::input_grad:
      return grouped_product(ex, stream, TiledInputGrad{.dy = product.rows, .w = product.weights, .dx = product.others},
                             tile_groups(groups), kNoMargin);
    case GroupedProduct::Kind::weight_grad:
      return grouped_product(ex, stream,
                             TiledWeightGrad{.dy = product.rows,
                                             .x = product.others,
                                             .dw = product.weights,
                                             .write = product.write,
                                             .squares = product.squares},
                             tile_groups(groups), margin_of(ex, product.sm_margin));
  }
  return false;
}

bool grouped_kernel(Exec& ex, Stream stream, const GroupedActivated& args) {
  if (!is_for_kernel(args.groups)) return false;
  return grouped_product(
      ex, stream,
      TiledUp{.x = args.x, .w = args.w, .z = args.z, .h = args.h, .activation = activation_of(args.z, args.h)},
      tile_groups(args.groups), margin_of(ex, args.sm_margin));
}

bool grouped_kernel(Exec& ex, Stream stream, const GroupedActivatedInputGrad& args, const Tensor& parts) {
  if (!is_for_kernel(args.groups)) return false;
  return grouped_product(ex, stream,
                         TiledDownInputGrad{.dy = args.dy,
                                            .w = args.w,
                                            .z = args.z,
                                            .p = args.p,
                                            .dz = args.dz,
                                            .ph = args.ph,
                                            .dp = args.dp,
                                            .parts = parts,
                                            .activation = activation_of(args.z, args.ph)},
                         tile_groups(args.groups), margin_of(ex, args.sm_margin));
}

void activate_groups(Stream stream, const GroupedActivated& args) {
  const Index rows = args.h.dim(0), units = args.h.dim(1);
  dispatch_element(args.z.dtype(), [&]<class T>() {
    with_activation<T>(args.z, units, {args.z.raw(), args.h.raw()}, [&]<int kWidth, int N>() {
      launch(rows_launch(stream, rows), activate_kernel<kWidth, N, T>, groups_of(args.groups), pointer<const T>(args.z),
             pointer<T>(args.h), rows, units);
    });
  });
}

void activate_groups_backward(Stream stream, const GroupedActivatedInputGrad& args) {
  const Index units = args.ph.dim(1);
  dispatch_element(args.z.dtype(), [&]<class T>() {
    const ActivateBackward<T> all{.groups = groups_of(args.groups),
                                  .z = pointer<const T>(args.z),
                                  .p = pointer<const float>(args.p),
                                  .dz = pointer<T>(args.dz),
                                  .ph = pointer<T>(args.ph),
                                  .dp = pointer<float>(args.dp),
                                  .count = args.ph.dim(0),
                                  .units = units};
    with_activation<T>(args.z, units, {args.z.raw(), args.dz.raw(), args.ph.raw()}, [&]<int kWidth, int N>() {
      launch(rows_launch(stream, all.count), activate_backward_kernel<kWidth, N, T>, all);
    });
  });
}

}  // namespace megalith::ops::cuda
