#pragma once
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// Instructions that CUDA C++ has no function for. Source: PTX ISA, "Warp Level Matrix Instructions" and "ex2".
namespace megalith::ops::cuda {

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address (16 bytes, aligned) of row
/// l % 8 of matrix l / 8. It receives elements [l / 4][2 (l % 4)] and the next of each matrix.
__device__ inline void load_matrices(std::uint32_t (&matrices)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(address));
}

/// The same; a lane receives elements [2 (l % 4)][l / 4] and the one below.
__device__ inline void load_matrices_transposed(std::uint32_t (&matrices)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(address));
}

/// Transposes 8 x 8 elements of 16 bits, of which lane l has [l / 4][2 (l % 4)] and the next.
__device__ inline std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

/// Each byte of the result is 0xff or 0: the highest bit, eight times, of the byte of `word` whose number, plus 8, is
/// the nibble of `bytes` at its place.
__device__ inline std::uint32_t spread_signs(std::uint32_t word, std::uint32_t bytes) {
  std::uint32_t spread;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(spread) : "r"(word), "r"(bytes));
  return spread;
}

/// sums [16, 8] += a [16, 16] b [16, 8] on the tensor cores, f32 sums of products of T = __nv_bfloat16 or __half.
template <class T>
__device__ inline void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, __half>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// 2^x within 2 ulp, in one instruction. Results below 2^-126 are flushed to 0. exp2f() spends several instructions to
/// keep those.
__device__ inline float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace megalith::ops::cuda
