#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/ops/cuda/clamped_group.cuh"
#include "megalith/ops/cuda/gemm.h"
#include "megalith/ops/cuda/hopper_gpu.h"
#include "megalith/ops/cuda/scaled_tiles.cuh"
#include "megalith/ops/cuda/tensor_maps.h"
#include "megalith/ops/scaled_grouped_matmul_kernels.h"
#include "megalith/tensor/cuda/shared_limit.h"

namespace megalith::ops::cuda {
namespace {

using namespace scaled_tiles;

enum class Kind { rows, rows_turned, weight_grad };

using GroupedForm = TileForm<128, 1, 2>;
inline constexpr int kTile = 128;  // rows and columns
static_assert(GroupedForm::kColumns == kTile && kTileRows == kTile);

/// The tiles of a block, every gridDim.x-th of all. The tiles of a group follow each other, in bands of kBand rows.
template <Kind kKind>
class GroupedWalk {
 public:
  __device__ explicit GroupedWalk(const ScaledArgs& args) : args_(args), item_(static_cast<int>(blockIdx.x)) { load(); }

  __device__ ScaledTile next() {
    while (group_ < args_.groups && item_ >= before_ + items_) {
      before_ += items_;
      ++group_;
      load();
    }
    ScaledTile tile;
    if (group_ >= args_.groups) return tile;
    const int item = item_ - before_, width = args_.columns / kTile, band = item / (kBand * width),
              height = min(kBand, height_ - band * kBand), within = item % (kBand * width);
    item_ += static_cast<int>(gridDim.x);
    tile.row = (band * kBand + within % height) * kTile;
    tile.column = within / height * kTile;
    if constexpr (kKind == Kind::weight_grad) {
      tile.group = group_;
      tile.a_row = tile.row;
      tile.b_row = tile.column;
      tile.a_block = tile.b_block = begin_ / kDepth;
      tile.steps = (rows_ + kDepth - 1) / kDepth;
    } else {
      tile.group = 0;
      tile.row += begin_;
      tile.a_row = tile.row;
      tile.b_row = kKind == Kind::rows ? group_ * args_.columns + tile.column : tile.column;
      tile.b_block = kKind == Kind::rows ? 0 : group_ * (args_.depth / kDepth);
      tile.steps = args_.depth / kDepth;
    }
    return tile;
  }

 private:
  __device__ void load() {
    if (group_ >= args_.groups) return;
    const ClampedGroup group = clamped_group(args_.begin, args_.rows, group_, args_.all_rows);
    begin_ = group.begin;
    rows_ = group.rows;
    height_ = ((kKind == Kind::weight_grad ? args_.result_rows : rows_) + kTile - 1) / kTile;
    if (kKind == Kind::weight_grad && rows_ == 0 && args_.adds) height_ = 0;
    items_ = height_ * (args_.columns / kTile);
  }

  const ScaledArgs& args_;
  int item_, group_ = 0, before_ = 0;                  // tiles of the groups before
  int begin_ = 0, rows_ = 0, height_ = 0, items_ = 0;  // of the group; its rows of tiles and its tiles
};

template <class T, Kind kKind>
constexpr auto kKernel = scaled_kernel<T, GroupedForm, GroupedWalk<kKind>,
                                       kKind == Kind::weight_grad ? ScaleBlocks::vectors : ScaleBlocks::squares>;

template <class T>
void allow_shared_memory_for() {
  for (const auto kernel : {kKernel<T, Kind::rows>, kKernel<T, Kind::rows_turned>, kKernel<T, Kind::weight_grad>})
    megalith::cuda::allow_shared_memory(kernel, sizeof(SharedMemory<GroupedForm>));
}

/// The facts about an Exec's GPU that the kernels need, queried once: products may be captured into graphs.
struct ScaledGroupedGpu : HopperGpu {
  explicit ScaledGroupedGpu(Exec&) {
    if (!is_there) return;
    allow_shared_memory_for<float>();
    allow_shared_memory_for<__nv_bfloat16>();
    allow_shared_memory_for<__half>();
  }
};

ScaledArgs arguments(const Operand& a, const Operand& b, const Tensor& out, const GroupRows& groups) {
  ScaledArgs args{};
  args.a = map_of_codes(a.values, kTile);
  args.b = map_of_codes(b.values, kTile);
  args.out = map_by_rows(out, kChunkRows);
  args.a_scales = map_of_scales(a.scales, kTile);
  args.b_scales = pointer<const float>(b.scales);
  args.b_stride = b.scales.dim(1);
  args.begin = pointer<const std::int32_t>(groups.begin);
  args.rows = pointer<const std::int32_t>(groups.rows);
  args.groups = static_cast<int>(groups.count());
  return args;
}

template <Kind kKind>
void launch_scaled(Exec& ex, Stream stream, const ScaledArgs& args, DType dtype, SmMargin margin) {
  if (const std::string why = why_no_scaled_grouped_matmul(ex); !why.empty()) throw BackendError(why);
  const int blocks = std::max(1, ex.backend<ScaledGroupedGpu>().multiprocessors - margin_of(ex, margin));
  const auto run = [&]<class T>() {
    kKernel<T, kKind><<<static_cast<unsigned>(blocks), kBlockThreads, sizeof(SharedMemory<GroupedForm>),
                        megalith::cuda::native(stream)>>>(args);
    megalith::cuda::check(cudaGetLastError());
  };
  if (dtype == DType::f32) return run.template operator()<float>();
  if (dtype == DType::bf16) return run.template operator()<__nv_bfloat16>();
  run.template operator()<__half>();
}

}  // namespace

std::string why_no_scaled_grouped_matmul(Exec& ex) {
  if (ex.backend<ScaledGroupedGpu>().is_there) return "";
  return "[scaled_grouped_matmul] the FP8 GEMMs of experts are built for Hopper GPUs (compute capability 9.0)";
}

void scaled_grouped_matmul(Exec& ex, Stream stream, const ScaledGroupedMatmul& args) {
  if (args.c.numel() == 0) return;
  ScaledArgs all = arguments(args.a, args.b, args.c, args.groups);
  all.columns = static_cast<int>(args.c.dim(1));
  all.depth = static_cast<int>(args.a.values.dim(1));
  all.all_rows = static_cast<int>(args.c.dim(0));
  if (args.turned)
    launch_scaled<Kind::rows_turned>(ex, stream, all, args.c.dtype(), SmMargin::none);
  else
    launch_scaled<Kind::rows>(ex, stream, all, args.c.dtype(), SmMargin::none);
}

void scaled_grouped_weight_grad(Exec& ex, Stream stream, const ScaledGroupedWeightGrad& args) {
  if (args.dw.numel() == 0) return;
  ScaledArgs all = arguments(args.dy, args.x, args.dw, args.groups);
  all.result_rows = static_cast<int>(args.dw.dim(1));
  all.columns = static_cast<int>(args.dw.dim(2));
  all.all_rows = static_cast<int>(args.x.values.dim(1));
  all.adds = args.write == Write::accumulate;
  launch_scaled<Kind::weight_grad>(ex, stream, all, args.dw.dtype(), args.sm_margin);
}

}  // namespace megalith::ops::cuda
