#include <algorithm>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cuda/scaled_product.h"
#include "megalith/ops/cuda/scaled_tiles.cuh"
#include "megalith/ops/cuda/tensor_maps.h"
#include "megalith/tensor/cuda/shared_limit.h"

namespace megalith::ops::cuda {
namespace {

using namespace scaled_tiles;

/// The tiles of a block of a cluster. Clusters that run side by side work on bands of kBand tiles' rows, whose operands
/// stay in the L2. Blocks of a cluster have equally many tiles, so some may lie below the last row.
template <class Form>
class DenseWalk {
 public:
  __device__ explicit DenseWalk(const ScaledArgs& args)
      : cluster_rows_((args.result_rows + kCluster * kTileRows - 1) / (kCluster * kTileRows)),
        width_((args.columns + Form::kColumns - 1) / Form::kColumns),
        steps_((args.depth + kDepth - 1) / kDepth),
        item_(static_cast<int>(blockIdx.x) / kCluster) {}

  __device__ ScaledTile next() {
    ScaledTile tile;
    if (item_ >= cluster_rows_ * width_) return tile;
    const int band = item_ / (kRows * width_), within = item_ % (kRows * width_),
              height = min(kRows, cluster_rows_ - band * kRows);
    item_ += static_cast<int>(gridDim.x) / kCluster;
    tile.group = 0;
    tile.row = tile.a_row =
        ((band * kRows + within % height) * kCluster + static_cast<int>(blockIdx.x) % kCluster) * kTileRows;
    tile.column = tile.b_row = within / height * Form::kColumns;
    tile.steps = steps_;
    return tile;
  }

 private:
  static constexpr int kCluster = Form::kCluster, kRows = kBand / kCluster;  // of a band, in clusters
  int cluster_rows_, width_, steps_, item_;
};

/// The forms by name.
template <class F>
decltype(auto) with_form(ScaledKernel kernel, const F& f) {
  switch (kernel) {
    case ScaledKernel::tiles_128:
      return f.template operator()<TileForm<128, 128, 1, 2, 2>>();
    case ScaledKernel::tiles_128_overlapped:
      return f.template operator()<TileForm<128, 128, 2, 2, 1>>();
    case ScaledKernel::tiles_192_overlapped:
      return f.template operator()<TileForm<192, 96, 2, 2, 1>>();
    case ScaledKernel::tiles_192_alone:
      return f.template operator()<TileForm<192, 192, 1, 1, 3>>();
    case ScaledKernel::tiles_192_deep:
      return f.template operator()<TileForm<192, 192, 1, 2, 1>>();
    case ScaledKernel::tiles_256:
      return f.template operator()<TileForm<256, 128, 1, 2, 1>>();
    default:
      return f.template operator()<TileForm<192, 192, 1, 2, 3>>();
  }
}

/// What a tile takes beside another form's, per column and by the bytes that it moves through shared memory: the tensor
/// cores read a and b there for each consumer, and the copies write them. Not measured yet.
struct FormCost {
  ScaledKernel kernel;
  int columns;
  double per_column;
};
constexpr FormCost kCosts[] = {{ScaledKernel::tiles_128_overlapped, 128, 1.22},
                               {ScaledKernel::tiles_192, 192, 1.06},
                               {ScaledKernel::tiles_256, 256, 1.09}};

/// The form with the least expected time: rounds of tiles on all SMs, times a tile's cost.
ScaledKernel cheapest_form(Index rows, Index columns, int multiprocessors) {
  ScaledKernel best = ScaledKernel::tiles_192;
  double least = std::numeric_limits<double>::max();
  for (const FormCost& form : kCosts) {
    const Index tiles = ceil_div(rows, 2 * kTileRows) * ceil_div(columns, form.columns),
                rounds = ceil_div(tiles, std::max(1, multiprocessors / 2));
    const double cost = static_cast<double>(rounds * form.columns) * form.per_column;
    if (cost >= least) continue;
    least = cost;
    best = form.kernel;
  }
  return best;
}

template <class T, class Form, ScaleBlocks kBlocksOfB>
constexpr auto kKernel = scaled_kernel<T, Form, DenseWalk<Form>, kBlocksOfB>;

/// The facts about an Exec's GPU that the kernels need, queried once.
struct ScaledProductGpu {
  explicit ScaledProductGpu(Exec&) {
    if constexpr (MEGALITH_HAS_SM90A == 0) return;
    multiprocessors = gpu_attribute(cudaDevAttrMultiProcessorCount);
    is_there =
        gpu_attribute(cudaDevAttrComputeCapabilityMajor) == 9 && MEGALITH_DRIVER(cuTensorMapEncodeTiled) != nullptr;
    if (!is_there) return;
    for (int i = static_cast<int>(ScaledKernel::own) + 1; i < kScaledKernels; ++i) {
      with_form(static_cast<ScaledKernel>(i), [&]<class Form>() {
        for (const auto kernel :
             {kKernel<float, Form, ScaleBlocks::squares>, kKernel<float, Form, ScaleBlocks::vectors>,
              kKernel<__nv_bfloat16, Form, ScaleBlocks::squares>, kKernel<__nv_bfloat16, Form, ScaleBlocks::vectors>})
          megalith::cuda::allow_shared_memory(kernel, sizeof(SharedMemory<Form>));
      });
    }
  }
  bool is_there = false;
  int multiprocessors = 0;
};

template <class T, class Form, ScaleBlocks kBlocksOfB>
void run(Stream stream, const ScaledMatmul& args, int multiprocessors) {
  ScaledArgs all{};
  all.a = map_of_codes(args.a.values, kTileRows);
  all.b = map_of_codes(args.b.values, Form::kColumns / Form::kCluster);
  all.out = map_by_rows(args.c, kChunkRows);
  all.a_scales = map_of_scales(args.a.scales, kTileRows);
  all.b_scales = pointer<const float>(args.b.scales);
  all.b_stride = args.b.scales.dim(1);
  all.result_rows = static_cast<int>(args.c.dim(0));
  all.columns = static_cast<int>(args.c.dim(1));
  all.depth = static_cast<int>(args.a.values.dim(1));
  all.adds = args.write == Write::accumulate;

  const Index clusters = ceil_div(args.c.dim(0), Form::kCluster * kTileRows) * ceil_div(args.c.dim(1), Form::kColumns);
  const Index max_clusters = std::max(1, multiprocessors / Form::kCluster);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {Form::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(clusters, max_clusters) * Form::kCluster));
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = sizeof(SharedMemory<Form>);
  config.stream = megalith::cuda::native(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  megalith::cuda::check(cudaLaunchKernelEx(&config, kKernel<T, Form, kBlocksOfB>, all));
}

}  // namespace

void prepare_scaled_product(Exec& ex) { static_cast<void>(ex.backend<ScaledProductGpu>()); }

std::string why_no_scaled_product(Exec& ex, const ScaledMatmul& args) {
  constexpr Index kMaxRows = Index{1} << 30;
  const Index m = args.c.dim(0), n = args.c.dim(1), k = args.a.values.dim(1);
  const auto text = [&](std::string_view rule) {
    return str("[scaled_matmul] a ", args.a.values.shape(), ", b ", args.b.values.shape(), ", c ",
               name_of(args.c.dtype()), ": megalith's FP8 GEMM ", rule);
  };
  if (!ex.backend<ScaledProductGpu>().is_there)
    return text("is built for Hopper GPUs (compute capability 9.0); use bf16 instead");
  if (k % 16 != 0 || n % 8 != 0 || m % 4 != 0) return text("needs K in multiples of 16, N of 8 and M of 4");
  if (m >= kMaxRows || n >= kMaxRows || k >= kMaxRows || ceil_div(m, kTileRows) * ceil_div(n, kTileRows) >= kMaxRows)
    return text("needs M, N, K and the number of tiles below 2^30");
  if (args.a.blocks == ScaleBlocks::squares) return text("needs a by vectors");
  if (args.c.dtype() == DType::f16) return text("has no result in f16");
  if (args.write == Write::accumulate && args.c.dtype() != DType::f32) return text("adds to results in f32 only");
  if (!are_aligned({args.a.values.raw(), args.a.scales.raw(), args.b.values.raw(), args.b.scales.raw(), args.c.raw()}))
    return text("needs addresses that are multiples of 16");
  return "";
}

void scaled_product(Exec& ex, Stream stream, const ScaledMatmul& args, int sm_margin) {
  const int multiprocessors = std::max(2, ex.backend<ScaledProductGpu>().multiprocessors - sm_margin);
  const ScaledKernel kernel =
      args.kernel > ScaledKernel::own ? args.kernel : cheapest_form(args.c.dim(0), args.c.dim(1), multiprocessors);
  with_form(kernel, [&]<class Form>() {
    const auto with_blocks = [&]<class T>() {
      if (args.b.blocks == ScaleBlocks::squares)
        run<T, Form, ScaleBlocks::squares>(stream, args, multiprocessors);
      else
        run<T, Form, ScaleBlocks::vectors>(stream, args, multiprocessors);
    };
    if (args.c.dtype() == DType::f32)
      with_blocks.template operator()<float>();
    else
      with_blocks.template operator()<__nv_bfloat16>();
  });
}

}  // namespace megalith::ops::cuda
