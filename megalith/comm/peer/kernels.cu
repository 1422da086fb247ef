#include <algorithm>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/peer/kernels.h"
#include "megalith/tensor/cuda/check.h"

namespace megalith::comm {
namespace {

constexpr int kThreads = 512;
/// A few multiprocessors' worth, as products run beside.
constexpr Index kMostSumBlocks = 64, kMostCopyBlocks = 16;

/// N neighbours, moved by one instruction.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};

bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

unsigned blocks_for(Index vectors, Index most) {
  return static_cast<unsigned>(std::min(most, ceil_div(vectors, Index{kThreads})));
}

/// Calls body(i) for the thread's share of [0, count).
template <class Body>
__device__ void for_share(Index count, const Body& body) {
  const Index stride = Index{gridDim.x} * kThreads;
  for (Index i = blockIdx.x * Index{kThreads} + threadIdx.x; i < count; i += stride) body(i);
}

// ---- Sums ----

template <class T>
struct Operands {
  const T* parts[kMostSummed] = {};
  T* out = nullptr;
  T* copy = nullptr;
};

template <class T, int N, int kMembers>
__global__ void __launch_bounds__(kThreads) sum_kernel(const Operands<T> operands, Index vectors) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  for_share(vectors, [&](Index i) {
    Vector<T, N> parts[kMembers];
#pragma unroll
    for (int member = 0; member < kMembers; ++member)
      parts[member] = reinterpret_cast<const Vector<T, N>*>(operands.parts[member])[i];
    Vector<T, N> result;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      Wide sum = static_cast<Wide>(parts[0].at[j]);
#pragma unroll
      for (int member = 1; member < kMembers; ++member) sum += static_cast<Wide>(parts[member].at[j]);
      result.at[j] = static_cast<T>(sum);
    }
    reinterpret_cast<Vector<T, N>*>(operands.out)[i] = result;
    if (operands.copy != nullptr) reinterpret_cast<Vector<T, N>*>(operands.copy)[i] = result;
  });
}

/// sum_kernel<T, N, members>; looks from kMembers on.
template <class T, int N, int kMembers = 2>
auto sum_kernel_of(int members) -> void (*)(Operands<T>, Index) {
  if constexpr (kMembers > kMostSummed) {
    throw InternalError(str("[sum_parts] members = ", members, ": must be 2 to ", kMostSummed));
  } else {
    return members == kMembers ? sum_kernel<T, N, kMembers> : sum_kernel_of<T, N, kMembers + 1>(members);
  }
}

template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <class T>
void sum(Stream stream, const PartsSum& args) {
  Operands<T> operands;
  operands.out = static_cast<T*>(args.out);
  operands.copy = static_cast<T*>(args.copy);
  for (int member = 0; member < args.members; ++member)
    operands.parts[member] = static_cast<const T*>(args.parts[static_cast<std::size_t>(member)]);
  const bool wide = args.count % kWide<T> == 0 && is_aligned(args.out) && is_aligned(args.copy) &&
                    std::all_of(operands.parts, operands.parts + args.members, is_aligned);
  const auto kernel = wide ? sum_kernel_of<T, kWide<T>>(args.members) : sum_kernel_of<T, 1>(args.members);
  const Index vectors = wide ? args.count / kWide<T> : args.count;
  kernel<<<blocks_for(vectors, kMostSumBlocks), kThreads, 0, cuda::native(stream)>>>(operands, vectors);
  cuda::check(cudaGetLastError());
}

// ---- Copies ----

template <class T>
__global__ void __launch_bounds__(kThreads) copy_kernel(T* to, const T* from, Index count) {
  for_share(count, [&](Index i) { to[i] = from[i]; });
}

template <class T>
void copy_elements(Stream stream, void* to, const void* from, Index count) {
  copy_kernel<<<blocks_for(count, kMostCopyBlocks), kThreads, 0, cuda::native(stream)>>>(
      static_cast<T*>(to), static_cast<const T*>(from), count);
  cuda::check(cudaGetLastError());
}

// ---- Words ----

/// Other GPUs see and are seen: every access is one of the whole system's.
__global__ void __launch_bounds__(1) word_kernel(const WordSteps steps) {
  for (int i = 0; i < steps.count; ++i) {
    const WordStep step = steps.at[static_cast<std::size_t>(i)];
    if (step.kind == WordStep::Kind::wait) {
      std::uint32_t value = 0;
      do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(step.word) : "memory");
      } while (value < step.value);
    } else {
      asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(step.word), "r"(step.value) : "memory");
    }
  }
}

}  // namespace

void load_kernels(int members) {
  cudaFuncAttributes attributes{};
  const auto load = [&](auto... kernels) { (cuda::check(cudaFuncGetAttributes(&attributes, kernels)), ...); };
  const auto load_sums = [&]<class T>(T) { load(sum_kernel_of<T, kWide<T>>(members), sum_kernel_of<T, 1>(members)); };
  load_sums(double{});
  load_sums(float{});
  load_sums(__nv_bfloat16{});
  load_sums(__half{});
  load(copy_kernel<uint4>, copy_kernel<std::byte>, word_kernel);
}

void sum_parts(Stream stream, const PartsSum& args) {
  if (args.count == 0) return;
  switch (args.dtype) {
    case DType::f64:
      return sum<double>(stream, args);
    case DType::f32:
      return sum<float>(stream, args);
    case DType::bf16:
      return sum<__nv_bfloat16>(stream, args);
    case DType::f16:
      return sum<__half>(stream, args);
    default:
      throw InternalError(str("[sum_parts] dtype = ", name_of(args.dtype), ": must be f64, f32, bf16 or f16"));
  }
}

void copy_by_kernel(Stream stream, void* to, const void* from, Index bytes) {
  if (bytes == 0) return;
  if (is_aligned(to) && is_aligned(from) && bytes % 16 == 0) return copy_elements<uint4>(stream, to, from, bytes / 16);
  copy_elements<std::byte>(stream, to, from, bytes);
}

void run_words(Stream stream, const WordSteps& steps) {
  word_kernel<<<1, 1, 0, cuda::native(stream)>>>(steps);
  cuda::check(cudaGetLastError());
}

}  // namespace megalith::comm
