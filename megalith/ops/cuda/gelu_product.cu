#include <algorithm>
#include <array>

#include "megalith/ops/cuda/gelu_product.h"
#include "megalith/ops/cuda/gelu_tiles.cuh"
#include "megalith/ops/cuda/hopper_gpu.h"
#include "megalith/ops/row_parts.h"
#include "megalith/tensor/cuda/driver.h"
#include "megalith/tensor/cuda/shared_limit.h"

namespace megalith::ops::cuda {
namespace {

using namespace gelu_tiles;

/// The addresses of a GEMM. Forward: a = x, b = w [columns, depth], out = y. Backward: a = dy, b = w [depth, columns],
/// out = dz.
struct GeluProduct {
  const void *a, *b, *bias;
  void *z, *out;
  float* parts;
  Index rows, columns, depth;
};

/// A map of a row-major [rows, columns] in boxes of box_rows x 64.
template <class T>
CUtensorMap map_of(const void* address, Index rows, Index columns, int box_rows) {
  constexpr CUtensorMapDataType kType =
      std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const std::array<cuuint64_t, 2> sizes{static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const std::array<cuuint64_t, 1> strides{static_cast<cuuint64_t>(columns) * sizeof(T)};
  const std::array<cuuint32_t, 2> box{128 / sizeof(T), static_cast<cuuint32_t>(box_rows)}, steps{1, 1};
  CUtensorMap map{};
  megalith::cuda::check_driver(MEGALITH_DRIVER(cuTensorMapEncodeTiled)(
      &map, kType, 2, const_cast<void*>(address), sizes.data(), strides.data(), box.data(), steps.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

/// Runs before the first run on a GPU.
template <class T, Pass kPass, int kCluster>
void allow_shared_memory() {
  megalith::cuda::allow_shared_memory(gelu_product_kernel<T, kPass, kCluster>, sizeof(SharedMemory<kPass>));
}

template <class T, Pass kPass, int kCluster>
void run(Stream stream, const GeluProduct& product, int multiprocessors) {
  GeluProductArgs args{};
  args.a = map_of<T>(product.a, product.rows, product.depth, kTileRows);
  args.b = kPass == Pass::forward ? map_of<T>(product.b, product.columns, product.depth, kTileColumns / 2)
                                  : map_of<T>(product.b, product.depth, product.columns, kDepth / 2);
  args.z = map_of<T>(product.z, product.rows, product.columns, kChunkRows);
  args.out = map_of<T>(product.out, product.rows, product.columns, kChunkRows);
  args.bias = product.bias;
  args.parts = product.parts;
  args.rows = static_cast<int>(product.rows);
  args.columns = static_cast<int>(product.columns);
  args.depth = static_cast<int>(product.depth);

  const Index clusters = ceil_div(product.rows, kCluster * kTileRows) * ceil_div(product.columns, kTileColumns);
  const Index max_clusters = std::max(1, multiprocessors / kCluster);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(clusters, max_clusters) * kCluster));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = sizeof(SharedMemory<kPass>);
  config.stream = megalith::cuda::native(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  megalith::cuda::check(cudaLaunchKernelEx(&config, gelu_product_kernel<T, kPass, kCluster>, args));
}

/// The facts about an Exec's GPU that the kernels need. They are queried once, because products may be captured into
/// graphs.
struct GeluProductGpu : HopperGpu {
  explicit GeluProductGpu(Exec&) {
    if (!is_there) return;
    allow_shared_memory<__nv_bfloat16, Pass::forward, kClusterBlocks>();
    allow_shared_memory<__nv_bfloat16, Pass::backward, kClusterBlocks>();
    allow_shared_memory<__half, Pass::forward, kClusterBlocks>();
    allow_shared_memory<__half, Pass::backward, kClusterBlocks>();
  }
};

/// Rows and strides of the maps are multiples of 16 bytes; the kernel counts in int.
bool fits(const GeluProduct& product, DType dtype) {
  constexpr Index kMaxRows = Index{1} << 30;
  return (dtype == DType::bf16 || dtype == DType::f16) && product.rows > 0 && product.columns > 0 &&
         product.depth > 0 && product.columns % 8 == 0 && product.depth % 8 == 0 && product.rows < kMaxRows &&
         product.columns < kMaxRows && product.depth < kMaxRows &&
         gelu_product_parts(product.rows) * ceil_div(product.columns, kTileColumns) < kMaxRows &&
         are_aligned({product.a, product.b, product.bias, product.z, product.out});
}

template <Pass kPass>
bool run_if_possible(Exec& ex, Stream stream, const GeluProduct& product, DType dtype, int sm_margin) {
  if (!fits(product, dtype)) return false;
  const auto& gpu = ex.backend<GeluProductGpu>();
  if (!gpu.is_there) return false;
  const int multiprocessors = gpu.multiprocessors - sm_margin;
  if (dtype == DType::bf16) {
    run<__nv_bfloat16, kPass, kClusterBlocks>(stream, product, multiprocessors);
  } else {
    run<__half, kPass, kClusterBlocks>(stream, product, multiprocessors);
  }
  return true;
}

}  // namespace

void prepare_gelu_product(Exec& ex) { static_cast<void>(ex.backend<GeluProductGpu>()); }

bool gelu_product(Exec& ex, Stream stream, const MatmulGelu& args, int sm_margin) {
  return run_if_possible<Pass::forward>(ex, stream,
                                        {.a = args.x.raw(),
                                         .b = args.w.raw(),
                                         .bias = args.bias.raw(),
                                         .z = args.z.raw(),
                                         .out = args.y.raw(),
                                         .parts = nullptr,
                                         .rows = args.x.dim(0),
                                         .columns = args.w.dim(0),
                                         .depth = args.x.dim(1)},
                                        args.x.dtype(), sm_margin);
}

bool gelu_product_backward(Exec& ex, Stream stream, const MatmulGeluBackward& args, const Tensor& parts,
                           int sm_margin) {
  const Index rows = args.dy.dim(0), columns = args.w.dim(1);
  if (!run_if_possible<Pass::backward>(ex, stream,
                                       {.a = args.dy.raw(),
                                        .b = args.w.raw(),
                                        .bias = nullptr,
                                        .z = args.z.raw(),
                                        .out = args.dz.raw(),
                                        .parts = pointer<float>(parts),
                                        .rows = rows,
                                        .columns = columns,
                                        .depth = args.dy.dim(1)},
                                       args.dy.dtype(), sm_margin))
    return false;
  add_parts(stream, pointer<float>(parts), gelu_product_parts(rows), columns, {pointer<float>(args.bias_grad)});
  return true;
}

}  // namespace megalith::ops::cuda
