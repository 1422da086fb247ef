#include <algorithm>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/peer/device_barrier.cuh"
#include "megalith/comm/peer/kernels.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/dispatch.cuh"
#include "megalith/tensor/cuda/load_kernels.h"

namespace megalith::comm {
namespace {

constexpr int kThreads = 512;
/// As many as fit on a few SMs, because GEMMs run beside these kernels.
constexpr Index kMaxSumBlocks = 64, kMaxCopyBlocks = 16;

/// N neighbours, moved by one instruction.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T at[N];
};

__host__ __device__ bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

unsigned blocks_for(Index vectors, Index most) {
  return static_cast<unsigned>(std::min(most, ceil_div(vectors, Index{kThreads})));
}

__device__ bool is_set(const std::uint32_t* word) {
  return word != nullptr && *static_cast<const volatile std::uint32_t*>(word) != 0;
}

/// An access to another GPU's memory takes microseconds, so this many vectors are read before the first is written.
constexpr int kAtOnce = 8;

struct Range {
  Index begin = 0, end = 0;
};

/// Calls body.operator()<n>(i, stride) for i, i + stride, ... of the thread's share of the range, with n <= kMax of
/// them at a time.
template <int kMax, class Body>
__device__ void for_share(const Range& range, const Body& body) {
  const Index stride = Index{gridDim.x} * blockDim.x;
  Index i = range.begin + blockIdx.x * Index{blockDim.x} + threadIdx.x;
  for (; i + (kMax - 1) * stride < range.end; i += kMax * stride) body.template operator()<kMax>(i, stride);
  for (; i < range.end; i += stride) body.template operator()<1>(i, stride);
}

/// If `wide`, calls move.operator()<N>(range) for the whole vectors of N elements, and with N = 1 for the rest.
template <int N, class Move>
__device__ void in_vectors(bool wide, Index count, const Move& move) {
  const Index whole = wide ? count / N : 0;
  if (whole > 0) move.template operator()<N>(Range{0, whole});
  if (whole * N < count) move.template operator()<1>(Range{whole * N, count});
}

// ---- Sums ----

template <class T>
struct Operands {
  const T* parts[kMaxSummed] = {};
  T* outs[kMaxSummed] = {};
  int num_outs = 0;
};

/// Calls write(i, the sum of parts[0][i], parts[1][i], ...) for the thread's share of the range.
template <class T, int N, int kMembers, class Write>
__device__ void sum_share(const T* const* all_parts, const Range& vectors, const Write& write) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  for_share<kAtOnce / kMembers>(vectors, [&]<int kCount>(Index i, Index stride) {
    Vector<T, N> parts[kCount][kMembers];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
#pragma unroll
      for (int member = 0; member < kMembers; ++member)
        parts[k][member] = reinterpret_cast<const Vector<T, N>*>(all_parts[member])[i + k * stride];
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      Vector<T, N> result;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        Wide sum = static_cast<Wide>(parts[k][0].at[j]);
#pragma unroll
        for (int member = 1; member < kMembers; ++member) sum += static_cast<Wide>(parts[k][member].at[j]);
        result.at[j] = static_cast<T>(sum);
      }
      write(i + k * stride, result);
    }
  });
}

/// Measured with two members' parts of 16 MiB, both results on the own GPU, beside GEMMs of DP 2's backward pass on an
/// H100. 64 MiB are moved in 46 to 48 us: 1.4 TB/s, 43 % of its memory's 3.35. The part of 11 MiB takes 34 us.
template <class T, int N, int kMembers>
__global__ void __launch_bounds__(kThreads) sum_kernel(const Operands<T> operands, Index vectors) {
  sum_share<T, N, kMembers>(operands.parts, Range{0, vectors}, [&](Index i, const Vector<T, N>& result) {
#pragma unroll
    for (int out = 0; out < kMaxSummed; ++out) {
      if (out < operands.num_outs) reinterpret_cast<Vector<T, N>*>(operands.outs[out])[i] = result;
    }
  });
  __threadfence_system();
}

template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

/// A CTA with this many threads, of 33 registers or more, leaves an SM too few registers for another CTA. This holds
/// for CTAs of its kind and of a GEMM.
constexpr int kMaxThreads = 1024;

/// The parts of all members, which a kernel gets at its device barrier. Lies in shared memory.
template <int kMembers>
struct SymmetricParts {
  std::byte* at[kMembers];

  /// Called by all threads of the CTA. Returns whether the widest accesses are allowed to all parts and to `own`.
  __device__ bool find_and_check_width(const BarrierArrival& arrival, const SymmetricPart& part, const void* own) {
    bool wide = is_aligned(own);
    if (const auto member = static_cast<int>(threadIdx.x); member < part.barrier.members) {
      at[member] = arrival.symmetric(member) + part.offset;
      wide = wide && is_aligned(at[member]);
    }
    return __syncthreads_and(static_cast<int>(wide)) != 0;
  }
};

/// Writes into `out`, or if that is null into all parts.
template <class T, int N, int kMembers>
__device__ void sum_symmetric_parts(const SymmetricParts<kMembers>& parts, void* out, const Range& vectors) {
  const auto write = [&](Index i, const Vector<T, N>& result) {
    if (out != nullptr) {
      static_cast<Vector<T, N>*>(out)[i] = result;
      return;
    }
#pragma unroll
    for (int member = 0; member < kMembers; ++member) reinterpret_cast<Vector<T, N>*>(parts.at[member])[i] = result;
  };
  sum_share<T, N, kMembers>(reinterpret_cast<T* const*>(parts.at), vectors, write);
}

/// A CTA takes every gridDim-th block of kMaxThreads vectors of the part, a thread kAtOnce / kMembers of them at a
/// time. It reads them at all members and writes the sum to all, or to `out`. An all-reduce with parts of 6 MiB,
/// between two H200s on 8 SMs, takes 54 us with both barriers. That is 233 GB/s each way, 52 % of the links.
template <class T, int kMembers>
__global__ void __launch_bounds__(kMaxThreads, 1)
    symmetric_sum_kernel(const __grid_constant__ SymmetricPart part, void* const out) {
  __shared__ BarrierArrival arrival;
  __shared__ SymmetricParts<kMembers> parts;
  if (!arrival.begin(part.barrier)) return;
  const bool wide = parts.find_and_check_width(arrival, part, out);
  in_vectors<kWide<T>>(wide, part.count,
                       [&]<int N>(const Range& range) { sum_symmetric_parts<T, N>(parts, out, range); });
  arrival.end(part.barrier);
}

/// Calls f.operator()<members>(). Searches from kMembers on.
template <int kMembers = 2, class F>
auto for_members(int members, const F& f) {
  if (members == kMembers) return f.template operator()<kMembers>();
  if constexpr (kMembers < kMaxSummed) return for_members<kMembers + 1>(members, f);
  throw InternalError(str("[sum of parts] members = ", members, ": must be 2 to ", kMaxSummed));
}

template <class T, int N>
auto sum_kernel_of(int members) {
  return for_members(members, [&]<int kMembers>() { return sum_kernel<T, N, kMembers>; });
}
template <class T>
auto symmetric_sum_kernel_of(int members) {
  return for_members(members, [&]<int kMembers>() { return symmetric_sum_kernel<T, kMembers>; });
}

template <class T>
void sum(Stream stream, const PartsSum& args) {
  Operands<T> operands;
  operands.num_outs = args.num_outs;
  for (int out = 0; out < args.num_outs; ++out)
    operands.outs[out] = static_cast<T*>(args.outs[static_cast<std::size_t>(out)]);
  for (int member = 0; member < args.members; ++member)
    operands.parts[member] = static_cast<const T*>(args.parts[static_cast<std::size_t>(member)]);
  const bool wide = args.count % kWide<T> == 0 &&
                    std::all_of(operands.outs, operands.outs + args.num_outs, is_aligned) &&
                    std::all_of(operands.parts, operands.parts + args.members, is_aligned);
  const auto kernel = wide ? sum_kernel_of<T, kWide<T>>(args.members) : sum_kernel_of<T, 1>(args.members);
  const Index vectors = wide ? args.count / kWide<T> : args.count;
  kernel<<<blocks_for(vectors, kMaxSumBlocks), kThreads, 0, cuda::native(stream)>>>(operands, vectors);
  cuda::check(cudaGetLastError());
}

void symmetric_sum(Stream stream, const SymmetricPart& part, void* out) {
  cuda::dispatch_number(part.dtype, [&]<class T>() {
    const auto kernel = symmetric_sum_kernel_of<T>(part.barrier.members);
    kernel<<<static_cast<unsigned>(part.blocks), kMaxThreads, 0, cuda::native(stream)>>>(part, out);
  });
  cuda::check(cudaGetLastError());
}

// ---- Copies ----

struct Targets {
  void* at[kMaxSummed] = {};
  int count = 0;
};

/// Copies the thread's share of the range to each of `num_targets` addresses except `from` itself.
template <class T, class Target>
__device__ void copy_share(const T* from, const Range& range, int num_targets, const Target& target_of) {
  for_share<kAtOnce>(range, [&]<int kCount>(Index i, Index stride) {
    T some[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) some[k] = from[i + k * stride];
    for (int target = 0; target < num_targets; ++target) {
      T* const to = target_of(target);
      if (to == from) continue;
#pragma unroll
      for (int k = 0; k < kCount; ++k) to[i + k * stride] = some[k];
    }
  });
}

/// Copies the thread's share of the bytes. If `from` and all targets have the same alignment within a vector, it moves
/// vectors of 16 bytes. Before the first whole vector and after the last it moves single bytes. Otherwise it moves
/// single bytes only.
template <class Target>
__device__ void copy_bytes(const std::byte* from, const Range& bytes, int num_targets, const Target& target_of) {
  const auto misalignment = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16; };
  bool alike = true;
  for (int target = 0; target < num_targets; ++target)
    alike = alike && misalignment(target_of(target)) == misalignment(from);
  const Index lead = static_cast<Index>((16 - misalignment(from + bytes.begin)) % 16);
  const Range vectors{0, alike ? max(Index{0}, (bytes.end - bytes.begin - lead) / 16) : 0};
  if (vectors.end == 0) return copy_share(from, bytes, num_targets, target_of);
  const Index begin = bytes.begin + lead, end = begin + 16 * vectors.end;
  copy_share(reinterpret_cast<const uint4*>(from + begin), vectors, num_targets,
             [&](int target) { return reinterpret_cast<uint4*>(target_of(target) + begin); });
  copy_share(from, Range{bytes.begin, begin}, num_targets, target_of);
  copy_share(from, Range{end, bytes.end}, num_targets, target_of);
}

/// PP 2's messages are copied out by copies of 6 MiB within the memory of an H100, on 16 SMs. They move 12 MiB in 12 to
/// 13 us: 1.0 TB/s, 30 % of the memory's 3.35. To another GPU, as a graph sends them, it takes 22 us: 280 GB/s, 73 % of
/// a plain copy's. On 32 SMs beside GEMMs, a gather of TP 2 takes 21 to 47 us.
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ Targets to, const std::byte* from, Index bytes, const std::uint32_t* unless) {
  if (is_set(unless)) return;
  copy_bytes(from, {0, bytes}, to.count, [&](int target) { return static_cast<std::byte*>(to.at[target]); });
  __threadfence_system();
}

/// Like symmetric_sum_kernel, but a gather, of a part in bytes. 256 MiB between two H100s, a half from each, take 678
/// us: 198 GB/s each way, 51 % of a plain copy's both ways. symmetric_sum_kernel with `out`, a reduce-scatter of the
/// same size, takes 450 us: 298 GB/s, 76 %.
__global__ void __launch_bounds__(kMaxThreads, 1)
    symmetric_copy_kernel(const __grid_constant__ SymmetricPart part, const void* const in) {
  __shared__ BarrierArrival arrival;
  __shared__ SymmetricParts<kMaxSummed> parts;
  if (!arrival.begin(part.barrier)) return;
  parts.find_and_check_width(arrival, part, in);
  copy_bytes(static_cast<const std::byte*>(in), {0, part.count}, part.barrier.members,
             [&](int member) { return parts.at[member]; });
  arrival.end(part.barrier);
}

// ---- Words ----

__global__ void __launch_bounds__(1) word_kernel(const SignalSteps steps) {
  for (int i = 0; i < steps.count; ++i) {
    const SignalStep step = steps.at[static_cast<std::size_t>(i)];
    if (step.kind == SignalStep::Kind::wait) {
      while (load_signal(step.word) < step.value) continue;
    } else {
      store_signal(step.word, step.value);
    }
  }
}

}  // namespace

void load_kernels(int members) {
  const auto load_sums = [&]<class T>(T) {
    cuda::load_kernels(sum_kernel_of<T, kWide<T>>(members), sum_kernel_of<T, 1>(members),
                       symmetric_sum_kernel_of<T>(members));
  };
  load_sums(double{});
  load_sums(float{});
  load_sums(__nv_bfloat16{});
  load_sums(__half{});
  cuda::load_kernels(copy_kernel, symmetric_copy_kernel, word_kernel);
}

void sum_parts(Stream stream, const PartsSum& args) {
  if (args.count > 0) cuda::dispatch_number(args.dtype, [&]<class T>() { sum<T>(stream, args); });
}

void all_reduce_symmetric(Stream stream, const SymmetricPart& part) { symmetric_sum(stream, part, nullptr); }
void reduce_scatter_symmetric(Stream stream, const SymmetricPart& part, void* out) { symmetric_sum(stream, part, out); }

void all_gather_symmetric(Stream stream, const SymmetricPart& part, const void* in) {
  SymmetricPart bytes = part;
  bytes.count *= size_of(part.dtype);
  symmetric_copy_kernel<<<static_cast<unsigned>(part.blocks), kMaxThreads, 0, cuda::native(stream)>>>(bytes, in);
  cuda::check(cudaGetLastError());
}

void copy_by_kernel(Stream stream, std::span<void* const> to, const void* from, Index bytes, const Reach& reach) {
  if (bytes == 0 || to.empty()) return;
  if (to.size() > kMaxSummed)
    throw InternalError(str("[copy_by_kernel] ", to.size(), " targets: must be at most ", kMaxSummed));
  Targets targets;
  for (void* target : to) targets.at[targets.count++] = target;
  const Index most = reach.max_ctas > 0 ? reach.max_ctas : kMaxCopyBlocks;
  copy_kernel<<<blocks_for(ceil_div(bytes, Index{16}), most), kThreads, 0, cuda::native(stream)>>>(
      targets, static_cast<const std::byte*>(from), bytes, reach.unless);
  cuda::check(cudaGetLastError());
}

void copy_by_kernel(Stream stream, void* to, const void* from, Index bytes) {
  copy_by_kernel(stream, std::span<void* const>(&to, 1), from, bytes, {});
}

void run_signals(Stream stream, const SignalSteps& steps) {
  word_kernel<<<1, 1, 0, cuda::native(stream)>>>(steps);
  cuda::check(cudaGetLastError());
}

}  // namespace megalith::comm
