#include <type_traits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cuda/gemm.h"
#include "megalith/ops/cuda/scaled_grouped_tiles.cuh"
#include "megalith/ops/cuda/tensor_maps.h"
#include "megalith/ops/scaled_grouped_matmul_kernels.h"
#include "megalith/tensor/cuda/shared_limit.h"

namespace megalith::ops::cuda {
namespace {

using namespace scaled_tiles;

template <class T>
void allow_shared_memory_for() {
  for (const void* kernel : {reinterpret_cast<const void*>(scaled_grouped_kernel<T, Kind::rows>),
                             reinterpret_cast<const void*>(scaled_grouped_kernel<T, Kind::rows_turned>),
                             reinterpret_cast<const void*>(scaled_grouped_kernel<T, Kind::weight_grad>)})
    megalith::cuda::allow_shared_memory(kernel, sizeof(SharedMemory));
}

/// The facts about an Exec's GPU that the kernels need, queried once: products may be captured into graphs.
struct ScaledGroupedGpu {
  explicit ScaledGroupedGpu(Exec&) {
    if constexpr (MEGALITH_HAS_SM90A == 0) return;
    multiprocessors = gpu_attribute(cudaDevAttrMultiProcessorCount);
    is_there =
        gpu_attribute(cudaDevAttrComputeCapabilityMajor) == 9 && MEGALITH_DRIVER(cuTensorMapEncodeTiled) != nullptr;
    if (!is_there) return;
    allow_shared_memory_for<float>();
    allow_shared_memory_for<__nv_bfloat16>();
    allow_shared_memory_for<__half>();
  }
  bool is_there = false;
  int multiprocessors = 0;
};

/// A map of codes [rows, depth] in boxes of 128 x 128.
CUtensorMap map_of_codes(const Tensor& codes) {
  return tensor_map<2>(codes, {codes.dim(1), codes.dim(0)}, {codes.dim(1)}, {kTile, kTile});
}

ScaledArgs arguments(const Operand& a, const Operand& b, const Tensor& out, const GroupRows& groups) {
  ScaledArgs args{};
  args.a = map_of_codes(a.values);
  args.b = map_of_codes(b.values);
  args.out = map_by_rows(out, kChunkRows);
  args.a_scales = pointer<const float>(a.scales);
  args.b_scales = pointer<const float>(b.scales);
  args.a_stride = a.scales.dim(1);
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
    scaled_grouped_kernel<T, kKind>
        <<<static_cast<unsigned>(blocks), kBlockThreads, sizeof(SharedMemory), megalith::cuda::native(stream)>>>(args);
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
  all.adds = args.write == Write::accumulate;
  launch_scaled<Kind::weight_grad>(ex, stream, all, args.dw.dtype(), args.sm_margin);
}

}  // namespace megalith::ops::cuda
