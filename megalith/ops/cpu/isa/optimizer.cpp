#include "megalith/ops/cpu/isa/keep.h"
#include "megalith/ops/cpu/isa/table.h"
#include "megalith/ops/cpu/isa/vec.h"

namespace megalith::ops::cpu::MEGALITH_ISA {
namespace {

float square_root(float x) { return __builtin_sqrtf(x); }
double square_root(double x) { return __builtin_sqrt(x); }

template <class T>
void adamw(T* __restrict w, T* __restrict m, T* __restrict v, const T* __restrict grad, Index n,
           const AdamWFactors<T>& f) {
  for (Index i = 0; i < n; ++i) {
    const T g = grad[i] * f.gradient;
    const T mi = f.beta1 * m[i] + f.one_minus_beta1 * g;
    const T vi = f.beta2 * v[i] + f.one_minus_beta2 * g * g;
    m[i] = mi;
    v[i] = vi;
    w[i] -= f.step * mi / (square_root(vi * f.inverse_bias2) + f.eps) + f.decay * w[i];
  }
}

float widened_bf16(bfloat16 x) {
  const std::uint32_t word = std::uint32_t{x.bits} << 16;
  float value;
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}
/// stochastically_rounded() of ops/moment_rounding.h; a test compares them.
std::uint16_t randomly_rounded(float x, std::uint32_t random) {
  std::uint32_t word;
  __builtin_memcpy(&word, &x, sizeof word);
  const std::uint32_t magnitude = word & 0x7fffffffu, special = word >> 16 | (magnitude > 0x7f800000u ? 0x40u : 0u);
  return static_cast<std::uint16_t>(magnitude >= 0x7f800000u ? special : (word + random) >> 16);
}

template <class T>
void adamw_bf16(const AdamWBf16<T>& a, Index n, const AdamWFactors<T>& f, const WordStream& stream,
                std::uint64_t element) {
  RandomWords random(stream);
  for (Index begin = 0; begin < n; begin += kKeepPiece) {
    const Index count = n - begin < kKeepPiece ? n - begin : kKeepPiece;
    const std::uint32_t* __restrict words = random(element + static_cast<std::uint64_t>(begin), count);
    T* __restrict w = a.w + begin;
    bfloat16* __restrict m = a.m + begin, * __restrict v = a.v + begin;
    const T* __restrict grad = a.grad + begin;
    for (Index i = 0; i < count; ++i) {
      const T g = grad[i] * f.gradient;
      const T mi = f.beta1 * static_cast<T>(widened_bf16(m[i])) + f.one_minus_beta1 * g;
      const T vi = f.beta2 * static_cast<T>(widened_bf16(v[i])) + f.one_minus_beta2 * g * g;
      m[i].bits = randomly_rounded(static_cast<float>(mi), words[i] & 0xffffu);
      v[i].bits = randomly_rounded(static_cast<float>(vi), words[i] >> 16);
      w[i] -= f.step * mi / (square_root(vi * f.inverse_bias2) + f.eps) + f.decay * w[i];
    }
  }
}

// SplitF32 of tensor/master_values.h; a test compares them.

bool join(const bfloat16* __restrict copy, const std::uint16_t* __restrict low, float* __restrict values, Index n) {
  std::uint32_t any = 0;
  for (Index i = 0; i < n; ++i) {
    const std::uint32_t upper = copy[i].bits, lower = low[i];
    const std::uint32_t word = (upper << 16 | lower) - (lower > 0x8000u ? 0x10000u : 0u);
    any |= (lower == 0x8000u ? 1u : 0u) | ((upper & 0x7fffu) > 0x7f80u ? 1u : 0u);
    __builtin_memcpy(values + i, &word, sizeof word);
  }
  return any != 0;
}

bool split(const float* __restrict values, bfloat16* __restrict copy, std::uint16_t* __restrict low, Index n) {
  std::uint32_t any = 0;
  for (Index i = 0; i < n; ++i) {
    std::uint32_t word;
    __builtin_memcpy(&word, values + i, sizeof word);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t quiet = word >> 16 | 0x40u, nearest = (word + 0x7fffu + (word >> 16 & 1u)) >> 16;
    copy[i].bits = static_cast<std::uint16_t>(is_nan ? quiet : nearest);
    low[i] = static_cast<std::uint16_t>(word);
    any |= ((word & 0xffffu) == 0x8000u ? 1u : 0u) | (is_nan ? 1u : 0u);
  }
  return any != 0;
}

/// Squares in f64, in eight chains of fixed order.
template <class T>
double sum_of_squares(const T* x, Index n) {
  constexpr Index kChains = 8 * kLanes<double>;
  double chain[kChains] = {};
  Index i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (Index j = 0; j < kChains; ++j) {
      const double value = static_cast<double>(x[i + j]);
      chain[j] += value * value;
    }
  }
  for (Index j = 0; i + j < n; ++j) {
    const double value = static_cast<double>(x[i + j]);
    chain[j] += value * value;
  }
  double sum = 0;
  for (Index j = 0; j < kChains; ++j) sum += chain[j];
  return sum;
}

}  // namespace

template <class T>
OptimizerKernels<T> optimizer_kernels() {
  return {.adamw = adamw<T>,
          .adamw_bf16 = adamw_bf16<T>,
          .sum_of_squares = sum_of_squares<T>,
          .join = join,
          .split = split};
}
template OptimizerKernels<float> optimizer_kernels();
template OptimizerKernels<double> optimizer_kernels();

}  // namespace megalith::ops::cpu::MEGALITH_ISA
