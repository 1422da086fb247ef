#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <source_location>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"
#include "megalith/ops/elementwise.h"
#include "megalith/runtime/step_state.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/dispatch.cuh"
#include "megalith/tensor/cuda/gpu_attribute.h"

// Shared code of the kernels. The order of reductions follows from the shape of the launch alone, and that from the
// shapes of the tensors.

namespace megalith::ops::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxWarps = kMaxThreads / kWarp;

using megalith::cuda::dispatch_element;
using megalith::cuda::dispatch_number;
using megalith::cuda::gpu_attribute;

/// Null for an undefined tensor.
template <class T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.raw());
}

/// The grid and the block size of a launch. It remembers the call site for the message of a failed launch.
struct Launch {
  Launch(Stream on, Index num_blocks, dim3 block, Index shared = 0,
         std::source_location place = std::source_location::current())
      : stream(on), blocks(num_blocks), threads(block), shared_bytes(shared), where(place) {}

  Stream stream;
  Index blocks;
  dim3 threads;
  Index shared_bytes;
  std::source_location where;
};

/// Does nothing for no blocks: there is no work.
template <class... Params, class... Args>
void launch(const Launch& shape, void (*kernel)(Params...), const Args&... args) {
  if (shape.blocks == 0) return;
  kernel<<<static_cast<unsigned>(shape.blocks), shape.threads, static_cast<std::size_t>(shape.shared_bytes),
           megalith::cuda::native(shape.stream)>>>(args...);
  megalith::cuda::check(cudaGetLastError(), shape.where);
}

/// Whether the code of a kernel for this GPU is that for compute capability 9.0 and later. It may have been compiled
/// from the code for an older one.
template <class Kernel>
bool is_compiled_for_hopper(Kernel* kernel) {
  cudaFuncAttributes attributes{};
  megalith::cuda::check(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion >= 90;
}

// ---- Vectors ----

/// N numbers of one thread, in registers.
template <class V, int N>
struct Values {
  V at[N];
  __device__ V& operator[](int i) { return at[i]; }
  __device__ const V& operator[](int i) const { return at[i]; }
};

template <std::size_t kBytes>
struct WordOf;
template <>
struct WordOf<16> {
  using type = uint4;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<4> {
  using type = std::uint32_t;
};
template <>
struct WordOf<2> {
  using type = std::uint16_t;
};
/// N neighbours as they are in memory: one word, moved by one instruction.
template <class T, int N>
struct Pack {
  typename WordOf<sizeof(T) * N>::type word;
};
/// Elements of a 16-byte access.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

inline bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

/// A null address counts as aligned, because no tensor is there.
inline bool are_aligned(std::initializer_list<const void*> addresses) {
  return std::all_of(addresses.begin(), addresses.end(), is_aligned);
}

template <class T, int N>
using Word = decltype(Pack<T, N>::word);

/// Elements element .. element + N - 1 of an array; `element` is a multiple of N and `base` is aligned to N elements.
/// The address is counted in words: nvcc 13.0 splits some stores into pieces of 4 bytes when it is counted in elements.
template <int N, class T>
__device__ Pack<T, N> load_pack(const T* base, Index element) {
  return {reinterpret_cast<const Word<T, N>*>(base)[static_cast<std::uint64_t>(element) / N]};
}
template <class T, int N>
__device__ void store_pack(T* base, Index element, const Pack<T, N>& pack) {
  reinterpret_cast<Word<T, N>*>(base)[static_cast<std::uint64_t>(element) / N] = pack.word;
}

/// Rounds once, to nearest even, where To is narrower.
template <class To, class From>
__device__ To convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (sizeof(From) == 2) {
    return static_cast<To>(static_cast<float>(x));  // exact
  } else {
    return static_cast<To>(x);
  }
}
template <class To>
__device__ auto convert_pair(float first, float second) {
  if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __floats2bfloat162_rn(first, second);
  } else {
    return __floats2half2_rn(first, second);
  }
}

template <class V = float, class T, int N>
__device__ Values<V, N> unpack(const Pack<T, N>& pack) {
  T at[N];
  memcpy(at, &pack.word, sizeof at);
  Values<V, N> values;
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = convert<V>(at[i]);
  return values;
}
template <class T, class V, int N>
__device__ Pack<T, N> pack(const Values<V, N>& values) {
  T at[N];
  if constexpr (sizeof(T) == 2 && std::is_same_v<V, float> && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {  // one instruction for two
      const auto pair = convert_pair<T>(values[i], values[i + 1]);
      at[i] = pair.x;
      at[i + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) at[i] = convert<T>(values[i]);
  }
  Pack<T, N> packed;
  memcpy(&packed.word, at, sizeof at);
  return packed;
}

// ---- Functions ----

/// 2^x and 1 / x in one instruction each, to 2 units of the last place. Denormal results become 0.
inline __device__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline __device__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline constexpr float kLog2E = 1.4426950408889634f;

// ---- Reductions ----

/// The sum of two numbers, or of two Values number by number.
struct Plus {
  __device__ float operator()(float a, float b) const { return a + b; }
  __device__ double operator()(double a, double b) const { return a + b; }
  template <class V, int N>
  __device__ Values<V, N> operator()(Values<V, N> a, const Values<V, N>& b) const {
#pragma unroll
    for (int i = 0; i < N; ++i) a[i] += b[i];
    return a;
  }
};

/// The value of the lane whose number differs in the bits of `mask`, for any struct of 32-bit words.
template <class V>
__device__ V shuffle_xor(const V& value, int mask) {
  constexpr int kWords = static_cast<int>(sizeof(V) / 4);
  unsigned words[kWords];
  memcpy(words, &value, sizeof value);
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __shfl_xor_sync(0xffffffffu, words[i], mask);
  V other;
  memcpy(&other, words, sizeof other);
  return other;
}

/// combine() over the threads of a block of whole warps; every thread gets the same bits. `shared` is the caller's for
/// one use between two barriers, because other threads may still read it when this returns.
template <class V, class Combine>
__device__ V block_reduce(V value, V (&shared)[kMaxWarps], Combine combine) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = combine(value, shuffle_xor(value, mask));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = shared[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) value = combine(value, shared[warp]);
  return value;
}

/// One block: thread i adds the numbers i, i + 1024, ... in f64, then the threads' sums are added in a tree. Reads each
/// number once.
template <class T>
__global__ void __launch_bounds__(kMaxThreads) add_all_kernel(const T* x, Index count, double* sum) {
  __shared__ double shared[kMaxWarps];
  double mine = 0;
#pragma unroll 8
  for (Index i = threadIdx.x; i < count; i += kMaxThreads) mine += static_cast<double>(x[i]);
  mine = block_reduce(mine, shared, Plus{});
  if (threadIdx.x == 0) *sum += mine;
}
/// sum [1] += the numbers x [count], in a fixed order.
template <class T>
void add_all(Stream stream, const T* x, Index count, double* sum) {
  launch({stream, 1, kMaxThreads}, add_all_kernel<T>, x, count, sum);
}

// ---- Dropout ----

/// A Dropout (ops/elementwise.h) as kernels take it.
struct DropoutKeys {
  /// `columns`: elements of one row of the tensor.
  DropoutKeys(const Dropout& dropout, Index columns) {
    if (dropout.probability == 0) return;
    state = pointer<const StepState>(dropout.step_state);
    seed = dropout.seed;
    first_element = static_cast<std::uint64_t>(dropout.first_row * columns);
    sample_elements = static_cast<std::uint64_t>(dropout.seq_len * columns);
    site = dropout.site;
    threshold = dropout_threshold(dropout.probability);
    kept_scale = static_cast<float>(1.0 / (1.0 - dropout.probability));
  }

  /// Drops and scales the tensor's elements [element, element + N). N is 1, or N and the columns are multiples of four:
  /// one Philox block then serves four elements. The scaled value is rounded, whatever the kernel does with it next.
  template <int N>
  __device__ void apply(Values<float, N>& x, Index element) const {
    static_assert(N == 1 || N % 4 == 0);
    if (state == nullptr) return;
    const RandomSite random{.seed = seed, .step = static_cast<std::uint32_t>(__ldg(&state->step)), .site = site};
    const std::uint64_t global =
        __ldg(&state->first_sample) * sample_elements + first_element + static_cast<std::uint64_t>(element);
    if constexpr (N == 1) {
      x[0] = random.word(global) >= threshold ? __fmul_rn(x[0], kept_scale) : 0.0f;
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const Philox4 words = random.block(global / 4 + static_cast<unsigned>(i) / 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[i + j] = words[static_cast<std::size_t>(j)] >= threshold ? __fmul_rn(x[i + j], kept_scale) : 0.0f;
        }
      }
    }
  }

  const StepState* state = nullptr;  ///< null: nothing is dropped
  std::uint64_t seed = 0, sample_elements = 0, first_element = 0;
  std::uint32_t site = 0, threshold = 0;
  float kept_scale = 1;
};

}  // namespace megalith::ops::cuda
