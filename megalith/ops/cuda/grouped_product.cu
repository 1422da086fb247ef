#include <array>

#include "megalith/ops/cuda/grouped_product.h"
#include "megalith/ops/cuda/grouped_tiles.cuh"
#include "megalith/ops/cuda/hopper_gpu.h"
#include "megalith/ops/cuda/tensor_maps.h"
#include "megalith/tensor/cuda/shared_limit.h"
#include "megalith/tensor/memory.h"

namespace megalith::ops::cuda {
namespace {

using namespace grouped_tiles;

static_assert(kTileColumns == kTiledDpUnits);
static_assert(kTileRows == 128 && kTileColumns == 256, "as tiled_squares() counts");

template <Kind... kKinds>
void allow_shared_memory_of() {
  for (const void* kernel : {reinterpret_cast<const void*>(grouped_product_kernel<__nv_bfloat16, kKinds>)...,
                             reinterpret_cast<const void*>(grouped_product_kernel<__half, kKinds>)...})
    megalith::cuda::allow_shared_memory(kernel, sizeof(SharedMemory));
}

/// The facts about an Exec's GPU that the kernels need. They are queried once, because products may be captured into
/// graphs.
struct GroupedGpu : HopperGpu {
  /// Calls count their items in turns, because those of several streams may run at once.
  static constexpr Index kCounters = 64, kCounterBytes = 128;

  explicit GroupedGpu(Exec&) {
    if (!is_there) return;
    counters = Buffer(kCounters * kCounterBytes, Device::cuda);
    allow_shared_memory_of<Kind::forward, Kind::up_gated, Kind::up_gelu, Kind::input_grad, Kind::down_gated,
                           Kind::down_gelu, Kind::weight_grad, Kind::weight_grad_f32>();
  }

  std::uint32_t* next_counter() {
    turn = (turn + 1) % kCounters;
    return reinterpret_cast<std::uint32_t*>(counters.data() + turn * kCounterBytes);
  }
  Buffer counters;
  Index turn = 0;
};

constexpr Index kMaxOfInt = Index{1} << 30;

/// A map of weights of gated units [groups, units, 2, depth] in boxes of 64 units. A box has the gates of 8 units, then
/// their ups, then the next 8 units.
CUtensorMap map_of_gated(const Tensor& weights) {
  const Index groups = weights.dim(0), rows = weights.dim(1), depth = weights.dim(2);
  return tensor_map<5>(weights, {depth, 8, 2, rows / 16, groups}, {2 * depth, depth, 16 * depth, rows * depth},
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
  if (groups.rows) {
    args.begin = pointer<const std::int32_t>(groups.begin) + groups.first;
    args.rows = pointer<const std::int32_t>(groups.rows) + groups.first;
    args.first_group = static_cast<int>(groups.first);
    args.groups = static_cast<int>(groups.count < 0 ? groups.begin.dim(0) - groups.first : groups.count);
  } else {
    args.groups = 1;
  }
  args.all_rows = static_cast<int>(operands.a->dim(0));
  args.result_rows = static_cast<int>(operands.result_rows);
  args.columns = static_cast<int>(operands.columns);
  args.depth = static_cast<int>(operands.depth);
  return args;
}

struct GroupedLaunch {
  Stream stream;
  DType dtype;
  int multiprocessors;
  std::uint32_t* items;
};

template <Kind kKind>
void launch_grouped(const GroupedLaunch& how, GroupedArgs args) {
  args.items = how.items;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::max(1, how.multiprocessors / kClusterBlocks) * kClusterBlocks));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = sizeof(SharedMemory);
  config.stream = megalith::cuda::native(how.stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  const auto kernel =
      how.dtype == DType::bf16 ? grouped_product_kernel<__nv_bfloat16, kKind> : grouped_product_kernel<__half, kKind>;
  megalith::cuda::check(cudaLaunchKernelEx(&config, kernel, args));
}

/// Calls run(GroupedLaunch) where the kernels can run with such tensors. Rows of all are multiples of 16 bytes.
template <class Run>
bool run_grouped(Exec& ex, Stream stream, int sm_margin, std::initializer_list<const Tensor*> tensors, const Run& run) {
  const DType dtype = (*tensors.begin())->dtype();
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
  auto& gpu = ex.backend<GroupedGpu>();
  run(GroupedLaunch{stream, dtype, gpu.multiprocessors - sm_margin, gpu.next_counter()});
  return true;
}

/// dp of the rows of tiles: a thread per row adds its parts in order. Blocks are whole tiles of rows.
__global__ void __launch_bounds__(kTileRows)
    add_dp_kernel(const float* parts, int count, const std::int32_t* begin, const std::int32_t* rows, int groups,
                  int all_rows, float* dp) {
  const int row = static_cast<int>(blockIdx.x * kTileRows + threadIdx.x), first = row - static_cast<int>(threadIdx.x);
  __shared__ int end;
  if (threadIdx.x == 0) end = 0;
  __syncthreads();
  for (int group = static_cast<int>(threadIdx.x); group < groups; group += kTileRows) {
    const ClampedGroup of = clamped_group(begin, rows, group, all_rows);
    if (of.begin <= first && first < of.begin + of.rows) end = of.begin + of.rows;
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
  return run_grouped(ex, stream, sm_margin, {&args.x, &args.w, &args.y}, [&](const GroupedLaunch& how) {
    const GroupedOperands operands{
        .a = &args.x, .b = &args.w, .out = &args.y, .columns = args.w.dim(1), .depth = args.w.dim(2)};
    launch_grouped<Kind::forward>(how, arguments<Kind::forward>(operands, groups));
  });
}

bool grouped_product(Exec& ex, Stream stream, const TiledUp& args, const TileGroups& groups, int sm_margin) {
  return run_grouped(ex, stream, sm_margin, {&args.x, &args.w, &args.z, &args.h}, [&](const GroupedLaunch& how) {
    const GroupedOperands operands{
        .a = &args.x, .b = &args.w, .out = &args.h, .columns = args.w.dim(1), .depth = args.w.dim(2)};
    const auto run = [&]<Kind kKind>() {
      GroupedArgs kernel_args = arguments<kKind>(operands, groups);
      kernel_args.has_more = static_cast<bool>(args.z);
      if (args.z) kernel_args.more = map_by_rows(args.z, kChunkRows);
      launch_grouped<kKind>(how, kernel_args);
    };
    if (args.activation == TiledActivation::gated) return run.template operator()<Kind::up_gated>();
    run.template operator()<Kind::up_gelu>();
  });
}

bool grouped_product(Exec& ex, Stream stream, const TiledInputGrad& args, const TileGroups& groups, int sm_margin) {
  return run_grouped(ex, stream, sm_margin, {&args.dy, &args.w, &args.dx}, [&](const GroupedLaunch& how) {
    const GroupedOperands operands{
        .a = &args.dy, .b = &args.w, .out = &args.dx, .columns = args.w.dim(2), .depth = args.w.dim(1)};
    launch_grouped<Kind::input_grad>(how, arguments<Kind::input_grad>(operands, groups));
  });
}

bool grouped_product(Exec& ex, Stream stream, const TiledDownInputGrad& args, const TileGroups& groups, int sm_margin) {
  return run_grouped(
      ex, stream, sm_margin, {&args.dy, &args.w, &args.z, &args.dz, &args.ph}, [&](const GroupedLaunch& how) {
        const Index units = args.w.dim(2), all_rows = args.z.dim(0);
        const GroupedOperands operands{
            .a = &args.dy, .b = &args.w, .out = &args.dz, .columns = units, .depth = args.w.dim(1)};
        const auto run = [&]<Kind kKind>() {
          GroupedArgs kernel_args = arguments<kKind>(operands, groups);
          kernel_args.has_more = static_cast<bool>(args.ph);
          if (args.ph) kernel_args.more = map_by_rows(args.ph, kChunkRows);
          kernel_args.z = map_by_rows(args.z, kTileRows);
          kernel_args.p = args.p ? pointer<const float>(args.p) : nullptr;
          kernel_args.parts = args.dp ? pointer<float>(args.parts) : nullptr;
          launch_grouped<kKind>(how, kernel_args);
          if (!args.dp) return;
          launch({stream, ceil_div(all_rows, kTileRows), kTileRows}, add_dp_kernel, pointer<const float>(args.parts),
                 static_cast<int>(tiled_dp_parts(units)), kernel_args.begin, kernel_args.rows, kernel_args.groups,
                 static_cast<int>(all_rows), pointer<float>(args.dp));
        };
        if (args.activation == TiledActivation::gated) return run.template operator()<Kind::down_gated>();
        run.template operator()<Kind::down_gelu>();
      });
}

bool grouped_product(Exec& ex, Stream stream, const TiledWeightGrad& args, const TileGroups& groups, int sm_margin) {
  const bool is_wide = args.dw.dtype() == DType::f32, adds = args.write == Write::accumulate;
  if (adds && !is_wide) return false;
  if (args.squares && (adds || !is_wide)) return false;
  return run_grouped(ex, stream, sm_margin, {&args.dy, &args.x, &args.dw}, [&](const GroupedLaunch& how) {
    const GroupedOperands operands{.a = &args.dy,
                                   .b = &args.x,
                                   .out = &args.dw,
                                   .columns = args.dw.dim(2),
                                   .depth = 0,
                                   .result_rows = args.dw.dim(1)};
    const auto run = [&]<Kind kKind>() {
      GroupedArgs kernel_args = arguments<kKind>(operands, groups);
      kernel_args.adds = adds;
      kernel_args.squares = args.squares ? pointer<double>(args.squares) : nullptr;
      launch_grouped<kKind>(how, kernel_args);
    };
    if (is_wide) return run.template operator()<Kind::weight_grad_f32>();
    run.template operator()<Kind::weight_grad>();
  });
}

}  // namespace megalith::ops::cuda
