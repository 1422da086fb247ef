#include <array>

#include "megalith/ops/cuda/grouped_product.h"
#include "megalith/ops/cuda/grouped_tiles.cuh"
#include "megalith/tensor/cuda/driver.h"
#include "megalith/tensor/cuda/shared_limit.h"

namespace megalith::ops::cuda {
namespace {

using namespace grouped_tiles;

static_assert(kTileColumns == kTiledDpUnits);

template <Kind... kKinds>
void allow_shared_memory_of() {
  for (const void* kernel : {reinterpret_cast<const void*>(grouped_product_kernel<__nv_bfloat16, kKinds>)...,
                             reinterpret_cast<const void*>(grouped_product_kernel<__half, kKinds>)...})
    megalith::cuda::allow_shared_memory(kernel, sizeof(SharedMemory));
}

/// The facts about an Exec's GPU that the kernels need. They are queried once, because products may be captured into
/// graphs.
struct GroupedGpu {
  explicit GroupedGpu(Exec&) {
    if constexpr (MEGALITH_HAS_SM90A == 0) return;
    multiprocessors = gpu_attribute(cudaDevAttrMultiProcessorCount);
    is_there =
        gpu_attribute(cudaDevAttrComputeCapabilityMajor) == 9 && MEGALITH_DRIVER(cuTensorMapEncodeTiled) != nullptr;
    if (!is_there) return;
    allow_shared_memory_of<Kind::forward, Kind::up_gated, Kind::up_gelu, Kind::input_grad, Kind::down_gated,
                           Kind::down_gelu, Kind::weight_grad, Kind::weight_grad_f32>();
  }

  bool is_there = false;
  int multiprocessors = 0;
};

constexpr Index kMaxOfInt = Index{1} << 30;

CUtensorMapDataType map_type(DType dtype) {
  return dtype == DType::f32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
         : dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

/// A map of an array whose dimensions are `sizes`, the innermost first, in such boxes. steps: the elements from one
/// index to the next, of all dimensions but the innermost.
template <std::size_t kRank>
CUtensorMap grouped_map(const Tensor& tensor, const std::array<Index, kRank>& sizes,
                        const std::array<Index, kRank - 1>& steps, const std::array<int, kRank>& box,
                        CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  std::array<cuuint64_t, kRank> counts{};
  std::array<cuuint64_t, kRank - 1> strides{};
  std::array<cuuint32_t, kRank> boxes{}, ones{};
  for (std::size_t i = 0; i < kRank; ++i) {
    counts[i] = static_cast<cuuint64_t>(sizes[i]);
    boxes[i] = static_cast<cuuint32_t>(box[i]);
    ones[i] = 1;
    if (i + 1 < kRank) strides[i] = static_cast<cuuint64_t>(steps[i] * size_of(tensor.dtype()));
  }
  CUtensorMap map{};
  megalith::cuda::check_driver(MEGALITH_DRIVER(cuTensorMapEncodeTiled)(
      &map, map_type(tensor.dtype()), kRank, tensor.raw(), counts.data(), strides.data(), boxes.data(), ones.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

/// A map of [rows, columns], or of weights [groups, rows, columns], in boxes of box_rows rows of 128 bytes.
CUtensorMap map_by_rows(const Tensor& tensor, int box_rows) {
  const int rank = tensor.shape().rank();
  const Index rows = tensor.dim(rank - 2), columns = tensor.dim(rank - 1), groups = rank == 3 ? tensor.dim(0) : 1;
  const int box_columns = kChunkRowBytes / static_cast<int>(size_of(tensor.dtype()));
  return grouped_map<3>(tensor, {columns, rows, groups}, {columns, rows * columns}, {box_columns, box_rows, 1});
}

/// A map of weights of gated units [groups, units, 2, depth] in boxes of 64 units. A box has the gates of 8 units, then
/// their ups, then the next 8 units.
CUtensorMap map_of_gated(const Tensor& weights) {
  const Index groups = weights.dim(0), rows = weights.dim(1), depth = weights.dim(2);
  return grouped_map<5>(weights, {depth, 8, 2, rows / 16, groups}, {2 * depth, depth, 16 * depth, rows * depth},
                        {kDepth, 8, 2, kTileColumns / 2 / 16, 1});
}

/// What the kinds have in common.
struct GroupedOperands {
  const Tensor *a, *b, *out;
  Index columns, depth, result_rows = 0;
};

template <Kind kKind>
GroupedArgs arguments(const GroupedOperands& operands, const TileGroups& groups) {
  GroupedArgs args{};
  args.a = map_by_rows(*operands.a, 64);
  if constexpr (kKind == Kind::up_gated) {
    args.b = map_of_gated(*operands.b);
  } else {
    args.b = map_by_rows(*operands.b, is_forward(kKind) ? kTileColumns / 2 : kDepth);
  }
  args.out = map_by_rows(*operands.out, kChunkRows);
  args.begin = pointer<const std::int32_t>(groups.begin) + groups.first;
  args.rows = pointer<const std::int32_t>(groups.rows) + groups.first;
  args.first_group = static_cast<int>(groups.first);
  args.groups = static_cast<int>(groups.count < 0 ? groups.begin.dim(0) - groups.first : groups.count);
  args.result_rows = static_cast<int>(operands.result_rows);
  args.columns = static_cast<int>(operands.columns);
  args.depth = static_cast<int>(operands.depth);
  return args;
}

template <Kind kKind>
void launch_grouped(Stream stream, DType dtype, const GroupedArgs& args, int multiprocessors) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::max(1, multiprocessors / kClusterBlocks) * kClusterBlocks));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = sizeof(SharedMemory);
  config.stream = megalith::cuda::native(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  const auto kernel =
      dtype == DType::bf16 ? grouped_product_kernel<__nv_bfloat16, kKind> : grouped_product_kernel<__half, kKind>;
  megalith::cuda::check(cudaLaunchKernelEx(&config, kernel, args));
}

/// Calls run(multiprocessors) where the kernels can run with such tensors. Rows of all are multiples of 16 bytes.
template <class Run>
bool run_grouped(Exec& ex, std::initializer_list<const Tensor*> tensors, DType dtype, int sm_margin, const Run& run) {
  Index rows = 0, columns = 0;
  for (const Tensor* tensor : tensors) {
    if (!*tensor) continue;
    const int rank = tensor->shape().rank();
    if (!is_aligned(tensor->raw()) || tensor->dim(rank - 1) % 8 != 0) return false;
    rows = std::max(rows, tensor->dim(rank - 2));
    columns = std::max(columns, tensor->dim(rank - 1));
    if (tensor->numel() == 0) return false;
  }
  if (rows >= kMaxOfInt || !can_run_grouped_product(ex, dtype, 8, columns)) return false;
  run(ex.backend<GroupedGpu>().multiprocessors - sm_margin);
  return true;
}

/// dp of the rows of tiles: a thread per row adds its parts in order. Blocks are whole tiles of rows.
__global__ void __launch_bounds__(kTileRows) add_dp_kernel(const float* parts, int count, const std::int32_t* begin,
                                                           const std::int32_t* rows, int groups, float* dp) {
  const int row = static_cast<int>(blockIdx.x * kTileRows + threadIdx.x), first = row - static_cast<int>(threadIdx.x);
  __shared__ int end;
  if (threadIdx.x == 0) end = 0;
  __syncthreads();
  for (int group = static_cast<int>(threadIdx.x); group < groups; group += kTileRows) {
    if (begin[group] <= first && first < begin[group] + rows[group]) end = begin[group] + rows[group];
  }
  __syncthreads();
  if (row >= end) return;
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += parts[static_cast<std::int64_t>(row) * count + i];
  dp[row] = sum;
}

}  // namespace

void prepare_grouped_product(Exec& ex) { static_cast<void>(ex.backend<GroupedGpu>()); }

bool can_run_grouped_product(Exec& ex, DType dtype, Index rows_of_weight, Index columns_of_weight) {
  return (dtype == DType::bf16 || dtype == DType::f16) && rows_of_weight > 0 && columns_of_weight > 0 &&
         rows_of_weight % 8 == 0 && columns_of_weight % 8 == 0 && rows_of_weight < kMaxOfInt &&
         columns_of_weight < kMaxOfInt && ex.backend<GroupedGpu>().is_there;
}

bool grouped_product(Exec& ex, Stream stream, const TiledForward& args, const TileGroups& groups, int sm_margin) {
  return run_grouped(ex, {&args.x, &args.w, &args.y}, args.x.dtype(), sm_margin, [&](int multiprocessors) {
    const GroupedOperands operands{
        .a = &args.x, .b = &args.w, .out = &args.y, .columns = args.w.dim(1), .depth = args.w.dim(2)};
    launch_grouped<Kind::forward>(stream, args.x.dtype(), arguments<Kind::forward>(operands, groups), multiprocessors);
  });
}

bool grouped_product(Exec& ex, Stream stream, const TiledUp& args, const TileGroups& groups, int sm_margin) {
  return run_grouped(ex, {&args.x, &args.w, &args.z, &args.h}, args.x.dtype(), sm_margin, [&](int multiprocessors) {
    const GroupedOperands operands{
        .a = &args.x, .b = &args.w, .out = &args.h, .columns = args.w.dim(1), .depth = args.w.dim(2)};
    const auto run = [&]<Kind kKind>() {
      GroupedArgs kernel_args = arguments<kKind>(operands, groups);
      kernel_args.has_more = static_cast<bool>(args.z);
      if (args.z) kernel_args.more = map_by_rows(args.z, kChunkRows);
      launch_grouped<kKind>(stream, args.x.dtype(), kernel_args, multiprocessors);
    };
    if (args.activation == TiledActivation::gated) return run.template operator()<Kind::up_gated>();
    run.template operator()<Kind::up_gelu>();
  });
}

bool grouped_product(Exec& ex, Stream stream, const TiledInputGrad& args, const TileGroups& groups, int sm_margin) {
  return run_grouped(ex, {&args.dy, &args.w, &args.dx}, args.dy.dtype(), sm_margin, [&](int multiprocessors) {
    const GroupedOperands operands{
        .a = &args.dy, .b = &args.w, .out = &args.dx, .columns = args.w.dim(2), .depth = args.w.dim(1)};
    launch_grouped<Kind::input_grad>(stream, args.dy.dtype(), arguments<Kind::input_grad>(operands, groups),
                                     multiprocessors);
  });
}

bool grouped_product(Exec& ex, Stream stream, const TiledDownInputGrad& args, const TileGroups& groups, int sm_margin) {
  return run_grouped(
      ex, {&args.dy, &args.w, &args.z, &args.dz, &args.ph}, args.dy.dtype(), sm_margin, [&](int multiprocessors) {
        const Index units = args.w.dim(2), all_rows = args.z.dim(0);
        const GroupedOperands operands{
            .a = &args.dy, .b = &args.w, .out = &args.dz, .columns = units, .depth = args.w.dim(1)};
        const auto run = [&]<Kind kKind>() {
          GroupedArgs kernel_args = arguments<kKind>(operands, groups);
          kernel_args.has_more = static_cast<bool>(args.ph);
          if (args.ph) kernel_args.more = map_by_rows(args.ph, kChunkRows);
          const Index z_columns = args.z.dim(1);
          kernel_args.z_tile = grouped_map<3>(args.z, {z_columns, all_rows, 1}, {z_columns, all_rows * z_columns},
                                              {kTileColumns, kTileRows, 1}, CU_TENSOR_MAP_SWIZZLE_NONE);
          kernel_args.z = args.z.raw();
          kernel_args.z_columns = static_cast<int>(z_columns);
          kernel_args.p = args.p ? pointer<const float>(args.p) : nullptr;
          kernel_args.parts = args.dp ? pointer<float>(args.parts) : nullptr;
          launch_grouped<kKind>(stream, args.dy.dtype(), kernel_args, multiprocessors);
          if (!args.dp) return;
          launch({stream, ceil_div(all_rows, kTileRows), kTileRows}, add_dp_kernel, pointer<const float>(args.parts),
                 static_cast<int>(tiled_dp_parts(units)), kernel_args.begin, kernel_args.rows, kernel_args.groups,
                 pointer<float>(args.dp));
        };
        if (args.activation == TiledActivation::gated) return run.template operator()<Kind::down_gated>();
        run.template operator()<Kind::down_gelu>();
      });
}

bool grouped_product(Exec& ex, Stream stream, const TiledWeightGrad& args, const TileGroups& groups, int sm_margin) {
  const bool is_wide = args.dw.dtype() == DType::f32, adds = args.write == Write::accumulate;
  if (adds && !is_wide) return false;
  return run_grouped(ex, {&args.dy, &args.x, &args.dw}, args.dy.dtype(), sm_margin, [&](int multiprocessors) {
    const GroupedOperands operands{.a = &args.dy,
                                   .b = &args.x,
                                   .out = &args.dw,
                                   .columns = args.dw.dim(2),
                                   .depth = 0,
                                   .result_rows = args.dw.dim(1)};
    const auto run = [&]<Kind kKind>() {
      GroupedArgs kernel_args = arguments<kKind>(operands, groups);
      kernel_args.adds = adds;
      launch_grouped<kKind>(stream, args.dy.dtype(), kernel_args, multiprocessors);
    };
    if (is_wide) return run.template operator()<Kind::weight_grad_f32>();
    run.template operator()<Kind::weight_grad>();
  });
}

}  // namespace megalith::ops::cuda
