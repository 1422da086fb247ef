#include <algorithm>
#include <utility>

#include "megalith/base/str.h"
#include "megalith/ops/cuda/hopper_gpu.h"
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

/// The forms by name. A result in f32 is a weight gradient, whose tiles are long: there a deeper ring of stages is
/// worth more than chunks to store from.
template <class T, class F>
decltype(auto) with_form(ScaledKernel form, const F& f) {
  if (form == ScaledKernel::tiles_128) return f.template operator()<TileForm<128, 2, 2>>();
  return f.template operator()<TileForm<192, 2, sizeof(T) == 4 ? 1 : 3>>();
}

/// The share of the SMs' time that has results, if all tiles, of `columns` columns and of clusters of two, take equally
/// long.
double utilisation(const GemmProblem& problem, Index columns, int multiprocessors) {
  const Index clusters = std::max(1, multiprocessors / 2), rows = 2 * kTileRows,
              tiles = ceil_div(problem.m, rows) * ceil_div(problem.n, columns), rounds = ceil_div(tiles, clusters);
  return static_cast<double>(problem.m) / static_cast<double>(rows) * static_cast<double>(problem.n) /
         static_cast<double>(columns) / static_cast<double>(rounds * clusters);
}

/// Rates at full utilisation in units of cuBLASLt's, whose tiles are 128 x 128. H200 at its power limit, 36 GEMMs of
/// Llama 1B, 8B and GPT-2 1.2B, where each form that is first here ran right after cuBLASLt: by squares 1.055 in the
/// mean of 14, and 0.88 to 1.15 for weight gradients.
double rate_of(ScaledKernel form, const GemmProblem& problem) {
  if (problem.b_scales == ScaleBlocks::squares) return form == ScaledKernel::tiles_192 ? 1.05 : 0.98;
  return form == ScaledKernel::tiles_192 ? 0.96 : 0.93;
}
double expected_rate(ScaledKernel form, const GemmProblem& problem, int multiprocessors) {
  return rate_of(form, problem) * utilisation(problem, form == ScaledKernel::tiles_192 ? 192 : 128, multiprocessors);
}

template <class T, class Form, ScaleBlocks kBlocksOfB>
constexpr auto kKernel = scaled_kernel<T, Form, DenseWalk<Form>, kBlocksOfB>;

template <class T>
void allow_shared_memory_for(ScaledKernel form) {
  with_form<T>(form, [&]<class Form>() {
    for (const auto kernel : {kKernel<T, Form, ScaleBlocks::squares>, kKernel<T, Form, ScaleBlocks::vectors>})
      megalith::cuda::allow_shared_memory(kernel, sizeof(SharedMemory<Form>));
  });
}

/// The facts about an Exec's GPU that the kernels need, queried once.
struct ScaledProductGpu : HopperGpu {
  explicit ScaledProductGpu(Exec&) {
    if (!is_there) return;
    for (const ScaledKernel form : {ScaledKernel::tiles_128, ScaledKernel::tiles_192}) {
      allow_shared_memory_for<float>(form);
      allow_shared_memory_for<__nv_bfloat16>(form);
    }
  }
  /// Those that a GEMM may take.
  int left_by(const GemmProblem& problem) const { return std::max(2, multiprocessors - problem.sm_margin); }
};

template <class T, class Form, ScaleBlocks kBlocksOfB>
void run(Stream stream, const GemmProblem& problem, const GemmOperands& operands, int multiprocessors) {
  const auto tensor = [](const void* address, const Shape& shape, DType dtype) {
    return Tensor(const_cast<void*>(address), shape, dtype);
  };
  const Index m = problem.m, n = problem.n, k = problem.k;
  ScaledArgs all{};
  all.a = map_of_codes(tensor(operands.a, {m, k}, DType::u8), kTileRows);
  all.b = map_of_codes(tensor(operands.b, {n, k}, DType::u8), Form::kColumns / Form::kCluster);
  all.out = map_by_rows(tensor(operands.c, {m, n}, problem.out), kChunkRows);
  all.a_scales =
      map_of_scales(tensor(operands.a_scales, scales_shape(ScaleBlocks::vectors, m, k), DType::f32), kTileRows);
  all.b_scales = static_cast<const float*>(operands.b_scales);
  all.b_stride = scales_shape(kBlocksOfB, n, k)[1];
  all.result_rows = static_cast<int>(m);
  all.columns = static_cast<int>(n);
  all.depth = static_cast<int>(k);
  all.adds = problem.write == Write::accumulate;
  all.bias = problem.epilogue == GemmEpilogue::bias ? operands.vector : nullptr;

  const Index clusters = ceil_div(m, Form::kCluster * kTileRows) * ceil_div(n, Form::kColumns);
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

std::string why_no_scaled_product(Exec& ex, const GemmProblem& problem) {
  constexpr Index kMaxRows = Index{1} << 30;
  const auto [m, n, k] = std::array{problem.m, problem.n, problem.k};
  const auto text = [&](std::string_view rule) {
    return str("[scaled_matmul] M ", m, ", N ", n, ", K ", k, ", c ", name_of(problem.out), ": megalith's FP8 GEMM ",
               rule);
  };
  if (!ex.backend<ScaledProductGpu>().is_there)
    return text("is built for Hopper GPUs (compute capability 9.0); use bf16 instead");
  if (k % 16 != 0 || n % 8 != 0 || m % 4 != 0) return text("needs K in multiples of 16, N of 8 and M of 4");
  if (m >= kMaxRows || n >= kMaxRows || k >= kMaxRows || ceil_div(m, kTileRows) * ceil_div(n, kTileRows) >= kMaxRows)
    return text("needs M, N, K and the number of tiles below 2^30");
  if (problem.a_scales == ScaleBlocks::squares) return text("needs a by vectors");
  if (problem.out == DType::f16) return text("has no result in f16");
  if (problem.write == Write::accumulate && problem.out != DType::f32) return text("adds to results in f32 only");
  if (problem.epilogue == GemmEpilogue::bias && problem.out != DType::bf16) return text("has a bias for bf16 only");
  if (problem.alignment < 16) return text("needs addresses that are multiples of 16");
  return "";
}

std::array<ScaledKernel, 2> scaled_forms(Exec& ex, const GemmProblem& problem) {
  const int multiprocessors = ex.backend<ScaledProductGpu>().left_by(problem);
  std::array forms{ScaledKernel::tiles_192, ScaledKernel::tiles_128};
  if (expected_rate(forms[1], problem, multiprocessors) > expected_rate(forms[0], problem, multiprocessors))
    std::swap(forms[0], forms[1]);
  return forms;
}

bool is_scaled_product_faster(Exec& ex, const GemmProblem& problem) {
  const int multiprocessors = ex.backend<ScaledProductGpu>().left_by(problem);
  return expected_rate(scaled_forms(ex, problem).front(), problem, multiprocessors) >
         utilisation(problem, 128, multiprocessors);
}

void scaled_product(Exec& ex, Stream stream, ScaledKernel form, const GemmProblem& problem,
                    const GemmOperands& operands) {
  const int multiprocessors = ex.backend<ScaledProductGpu>().left_by(problem);
  const auto run_into = [&]<class T>() {
    with_form<T>(form, [&]<class Form>() {
      if (problem.b_scales == ScaleBlocks::squares)
        run<T, Form, ScaleBlocks::squares>(stream, problem, operands, multiprocessors);
      else
        run<T, Form, ScaleBlocks::vectors>(stream, problem, operands, multiprocessors);
    });
  };
  if (problem.out == DType::f32)
    run_into.template operator()<float>();
  else
    run_into.template operator()<__nv_bfloat16>();
}

}  // namespace megalith::ops::cuda
