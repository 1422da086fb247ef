#pragma once
#include "megalith/ops/cpu/isa/vec.h"

namespace megalith::ops::cpu::MEGALITH_ISA {

/// e^x. The error is at most 1.5 ulp for x in [-87.3365402, 88.7228317]. Below that range the result is 0, because
/// subnormal numbers would slow the products that read them. Above it the result is infinity. NaN stays NaN.
///   e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r).
/// q is the polynomial of degree 4 with the smallest maximal relative error (3.1e-9, found by Remez' exchange in
/// 50-digit arithmetic).
inline Vec<float> exp(Vec<float> x) {
  using Bits = Vec<std::uint32_t>;
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kMin = -87.3365402f, kMax = 88.7228317f;  // the largest x with a finite e^x
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits
  const Vec<float> shifted = fma(x, splat(kLog2E), splat(kRound));
  const Vec<float> n = shifted - kRound;
  Vec<float> r = fma(n, splat(-kLn2High), x);
  r = fma(n, splat(-kLn2Low), r);
  Vec<float> q = fma(splat(0.00138146465f), r, splat(0.00836871751f));
  q = fma(q, r, splat(0.041668389f));
  q = fma(q, r, splat(0.166665211f));
  q = fma(q, r, splat(0.49999994f));
  const Vec<float> y = fma(q, r * r, r) + 1.0f;
  // Multiplying by 2^n in the exponent bits also reaches n = 128, where y < 1.
  const Vec<float> scaled =
      reinterpret_cast<Vec<float>>(reinterpret_cast<Bits>(y) + (reinterpret_cast<Bits>(shifted) << 23));
  // Outside the range the value above is meaningless and is replaced. There x * inf is infinity, and NaN for NaN.
  const Vec<float> in_range = x <= kMax ? scaled : x * kInfinity;
  return x < kMin ? splat(0.0f) : in_range;
}

/// Uses the C library's function, lane by lane, because f64 is the path that others are measured against.
inline Vec<double> exp(Vec<double> x) {
  for (Index i = 0; i < kLanes<double>; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

}  // namespace megalith::ops::cpu::MEGALITH_ISA
