// Times CUTLASS's grouped GEMMs of one expert layer, a yardstick for `megalith bench grouped`. No target builds it. The
// headers are those of CUTLASS 4.2, which the wheel `nvidia-cutlass` has under cutlass_library/source:
//   nvcc -std=c++17 -O3 -DNDEBUG -arch=sm_90a --expt-relaxed-constexpr -I SOURCE/include -I SOURCE/tools/util/include
//     bench/cutlass_grouped.cu -lcuda -o cutlass_grouped
//   cutlass_grouped N K ROWS...     (ROWS: the rows of each group)
// Products as `bench grouped`: forward y [rows, N] = x w^T and dgrad dx [rows, K] = dy w in bf16, wgrad dw [N, K] +=
// dy^T x in f32, groups one after the other without padding. Each product has two schedules: cooperative (128 x 256 x
// 64) and pingpong (64 x 256 x 64), clusters of two. A line holds product, schedule, us a run, TFLOP/s, and the largest
// error of 4,096 elements relative to the sum of absolute products.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include <cuda_bf16.h>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>

namespace {

using Problem = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
using Bf16 = cutlass::bfloat16_t;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(cudaGetLastError()));
  std::exit(70);
}

template <class T>
T* device_array(std::size_t count) {
  void* data = nullptr;
  require(cudaMalloc(&data, count * sizeof(T)) == cudaSuccess, "cudaMalloc");
  return static_cast<T*>(data);
}

template <class T>
T* on_device(const std::vector<T>& values) {
  T* data = device_array<T>(values.size());
  require(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess, "copy");
  return data;
}

/// Numbers of a normal distribution (Box and Muller), a function of seed and place.
__global__ void fill_normal(Bf16* values, std::size_t count, std::uint32_t seed) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::uint64_t h = (i + 1) * 0x9E3779B97F4A7C15ULL + seed;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ULL;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBULL;
    h ^= h >> 31;
    const float a = (static_cast<float>(h >> 40) + 1) / 16777217.0f, b = static_cast<float>(h & 0xFFFFFF) / 16777216.0f;
    values[i] = static_cast<Bf16>(sqrtf(-2 * logf(a)) * cospif(2 * b));
  }
}

Bf16* normal(std::size_t count, std::uint32_t seed) {
  Bf16* values = device_array<Bf16>(count);
  fill_normal<<<1056, 256>>>(values, count, seed);
  return values;
}

/// A product of a group: d [m, n] = a [m, k] b [k, n]; element (i, l) of a is a[i * ai + l * al], and so on.
struct Group {
  const Bf16 *a, *b;
  void* d;
  int m, n, k;
  long long ai, al, bl, bj;
};

/// errors[s]: |d - a b| / sum |a b| of sample s.
template <class Out>
__global__ void check(const Group* groups, int count, float* errors) {
  const int s = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const Group g = groups[s % count];
  errors[s] = 0;
  if (g.m == 0 || g.k == 0) return;
  const int i = static_cast<int>((s * 7919LL) % g.m), j = static_cast<int>((s * 104729LL) % g.n);
  double sum = 0, sizes = 0;
  for (int l = 0; l < g.k; ++l) {
    const double product = double(float(g.a[i * g.ai + l * g.al])) * double(float(g.b[l * g.bl + j * g.bj]));
    sum += product;
    sizes += fabs(product);
  }
  const Out d = static_cast<const Out*>(g.d)[static_cast<long long>(i) * g.n + j];
  errors[s] = static_cast<float>(fabs(static_cast<double>(static_cast<float>(d)) - sum) / sizes);
}

struct Cooperative {
  using Schedule = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative;
  using Tile = cute::Shape<cute::_128, cute::_256, cute::_64>;
  static constexpr const char* name = "cooperative";
};
struct Pingpong {
  using Schedule = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong;
  using Tile = cute::Shape<cute::_64, cute::_256, cute::_64>;
  static constexpr const char* name = "pingpong";
};

template <class A, class B, class Out, class Way>
struct Kernel {
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  static constexpr int align = 8, align_out = 16 / static_cast<int>(sizeof(Out));
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Way::Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float,
      std::conditional_t<std::is_same_v<Out, float>, Out, void>, RowMajor*, align_out, Out, RowMajor*, align_out,
      typename Way::Epilogue>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Bf16, A*, align, Bf16, B*, align, float, typename Way::Tile,
      Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      typename Way::Schedule>::CollectiveOp;
  using Gemm =
      cutlass::gemm::device::GemmUniversalAdapter<cutlass::gemm::kernel::GemmUniversal<Problem, Mainloop, Epilogue>>;
};

constexpr float kWarmMs = 700;  // a GPU's clock falls until it is at its power limit

double median_us(const std::vector<float>& ms) {
  std::vector<float> sorted = ms;
  std::sort(sorted.begin(), sorted.end());
  return 1e3 * sorted[sorted.size() / 2];
}

/// Times one product of all groups. Out f32 is added to what is there, else overwritten.
template <class A, class B, class Out, class Way>
void run(const char* product, const std::vector<Group>& groups) {
  using Gemm = typename Kernel<A, B, Out, Way>::Gemm;
  using K = typename Gemm::GemmKernel;
  constexpr bool adds = std::is_same_v<Out, float>;
  const int count = static_cast<int>(groups.size());
  std::vector<cute::Shape<int, int, int>> shapes;
  std::vector<const Bf16*> a, b;
  std::vector<const Out*> c;
  std::vector<Out*> d;
  std::vector<typename K::InternalStrideA> sa;
  std::vector<typename K::InternalStrideB> sb;
  std::vector<typename K::InternalStrideC> sc;
  std::vector<typename K::InternalStrideD> sd;
  double flops = 0;
  for (const Group& g : groups) {
    shapes.push_back({g.m, g.n, g.k});
    a.push_back(g.a);
    b.push_back(g.b);
    c.push_back(static_cast<const Out*>(g.d));
    d.push_back(static_cast<Out*>(g.d));
    sa.push_back(cutlass::make_cute_packed_stride(typename K::InternalStrideA{}, {g.m, g.k, 1}));
    sb.push_back(cutlass::make_cute_packed_stride(typename K::InternalStrideB{}, {g.n, g.k, 1}));
    sc.push_back(cutlass::make_cute_packed_stride(typename K::InternalStrideC{}, {g.m, g.n, 1}));
    sd.push_back(cutlass::make_cute_packed_stride(typename K::InternalStrideD{}, {g.m, g.n, 1}));
    flops += 2.0 * g.m * g.n * g.k;
  }
  using ElementC = typename Gemm::ElementC;
  std::vector<const ElementC*> cs(count, nullptr);
  if constexpr (adds) std::copy(c.begin(), c.end(), cs.begin());
  typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGrouped,
                                     {count, on_device(shapes), nullptr},
                                     {on_device(a), on_device(sa), on_device(b), on_device(sb)},
                                     {{}, on_device(cs), on_device(sc), on_device(d), on_device(sd)},
                                     cutlass::KernelHardwareInfo::make_kernel_hardware_info<K>(0)};
  arguments.epilogue.thread.alpha = 1;
  arguments.epilogue.thread.beta = adds ? 1 : 0;
  Gemm gemm;
  std::uint8_t* workspace = device_array<std::uint8_t>(Gemm::get_workspace_size(arguments) + 1);
  require(gemm.can_implement(arguments) == cutlass::Status::kSuccess, "can_implement");
  require(gemm.initialize(arguments, workspace) == cutlass::Status::kSuccess, "initialize");

  for (const Group& g : groups)
    require(cudaMemset(g.d, 0, sizeof(Out) * g.m * static_cast<std::size_t>(g.n)) == cudaSuccess, "fill");
  require(gemm.run() == cutlass::Status::kSuccess && cudaDeviceSynchronize() == cudaSuccess, "run");
  constexpr int samples = 4096;
  float* errors = device_array<float>(samples);
  check<Out><<<samples / 128, 128>>>(on_device(groups), count, errors);
  std::vector<float> host(samples);
  require(cudaMemcpy(host.data(), errors, samples * sizeof(float), cudaMemcpyDeviceToHost) == cudaSuccess, "check");

  // As `bench grouped`: 20 times the mean of ten runs, on a GPU that is warm.
  std::vector<float> ms(20);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  const auto time_of = [&](int runs) {
    cudaEventRecord(begin);
    for (int i = 0; i < runs; ++i) gemm.run();
    cudaEventRecord(end);
    require(cudaEventSynchronize(end) == cudaSuccess, "time");
    float taken = 0;
    cudaEventElapsedTime(&taken, begin, end);
    return taken / static_cast<float>(runs);
  };
  for (float warm = 0; warm < kWarmMs;) warm += 10 * time_of(10);
  for (float& time : ms) time = time_of(10);
  const double us = median_us(ms);
  std::printf("%-8s %-12s %9.1f us %7.1f TFLOP/s   error %.1e\n", product, Way::name, us, flops / us * 1e-6,
              *std::max_element(host.begin(), host.end()));
}

template <class A, class B, class Out>
void run_both(const char* product, const std::vector<Group>& groups) {
  run<A, B, Out, Cooperative>(product, groups);
  run<A, B, Out, Pingpong>(product, groups);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "cutlass_grouped N K ROWS...\n");
    return 64;
  }
  const int n = std::atoi(argv[1]), k = std::atoi(argv[2]);
  std::vector<int> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  const std::size_t rows = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), groups = sizes.size();
  const Bf16 *x = normal(rows * k, 1), *dy = normal(rows * n, 2), *w = normal(groups * n * k, 3);
  Bf16 *y = device_array<Bf16>(rows * n), *dx = device_array<Bf16>(rows * k);
  float* dw = device_array<float>(groups * n * k);
  std::vector<Group> forward, dgrad, wgrad;
  std::size_t row = 0;
  for (std::size_t g = 0; g < groups; ++g) {
    const int m = sizes[g];
    const Bf16 *xg = x + row * k, *dyg = dy + row * n, *wg = w + g * n * k;
    forward.push_back({xg, wg, y + row * n, m, n, k, k, 1, 1, k});
    dgrad.push_back({dyg, wg, dx + row * k, m, k, n, n, 1, k, 1});
    wgrad.push_back({dyg, xg, dw + g * n * k, n, k, m, 1, n, k, 1});
    row += m;
  }
  std::printf("%zu rows in %zu groups, N %d, K %d\n", rows, groups, n, k);
  run_both<RowMajor, ColumnMajor, Bf16>("forward", forward);
  run_both<RowMajor, RowMajor, Bf16>("dgrad", dgrad);
  run_both<ColumnMajor, RowMajor, float>("wgrad", wgrad);
  return 0;
}
