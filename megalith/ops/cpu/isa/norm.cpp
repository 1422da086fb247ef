#include "megalith/ops/cpu/isa/table.h"
#include "megalith/ops/cpu/isa/vec.h"

namespace megalith::ops::cpu::MEGALITH_ISA {
namespace {

/// Mean and deviation in two passes over a row that the first one brings into the cache: exact where one pass of
/// E[x^2] - E[x]^2 would cancel.
template <class T>
void forward(const T* x, const T* gamma, const T* beta, T* y, Index n, double eps, T* mean, T* rstd) {
  const T m = sum_lanes<T>(sum_vectors<T>(n, [&](auto at) { return at.load(x); })) / static_cast<T>(n);
  const T squares = sum_lanes<T>(sum_vectors<T>(n, [&](auto at) {
    const Vec<T> d = at.load(x) - m;
    return d * d;
  }));
  const T r = static_cast<T>(1.0 / __builtin_sqrt(static_cast<double>(squares / static_cast<T>(n)) + eps));
  for_vectors<T>(n, [&](auto at) { at.store(y, (at.load(x) - m) * r * at.load(gamma) + at.load(beta)); });
  *mean = m;
  *rstd = r;
}

/// dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy gamma, plus the residual.
template <class T>
void backward(const T* dy, const T* x, const T* gamma, const T* residual, T* dx, Index n, T mean, T rstd) {
  const T g_mean =
      sum_lanes<T>(sum_vectors<T>(n, [&](auto at) { return at.load(dy) * at.load(gamma); })) / static_cast<T>(n);
  const T g_xhat_mean = sum_lanes<T>(sum_vectors<T>(
                            n, [&](auto at) { return at.load(dy) * at.load(gamma) * ((at.load(x) - mean) * rstd); })) /
                        static_cast<T>(n);
  const auto gradient = [&](auto at) {
    return (at.load(dy) * at.load(gamma) - g_mean - (at.load(x) - mean) * rstd * g_xhat_mean) * rstd;
  };
  if (residual == nullptr) {
    for_vectors<T>(n, [&](auto at) { at.store(dx, gradient(at)); });
  } else {
    for_vectors<T>(n, [&](auto at) { at.store(dx, at.load(residual) + gradient(at)); });
  }
}

template <class T>
void weight_backward(const T* dy, const T* x, const T* mean, const T* rstd, Index rows, Index columns, T* gamma_sum,
                     T* beta_sum) {
  Index r = 0;
  for (; r + 2 <= rows; r += 2) {  // two rows a pass: half the traffic of the sums
    const T *dy0 = dy + r * columns, *x0 = x + r * columns, *dy1 = dy0 + columns, *x1 = x0 + columns;
    const T m0 = mean[r], r0 = rstd[r], m1 = mean[r + 1], r1 = rstd[r + 1];
    for_vectors<T>(columns, [&](auto at) {
      const Vec<T> d0 = at.load(dy0), d1 = at.load(dy1);
      at.store(gamma_sum, at.load(gamma_sum) + (d0 * ((at.load(x0) - m0) * r0) + d1 * ((at.load(x1) - m1) * r1)));
      at.store(beta_sum, at.load(beta_sum) + (d0 + d1));
    });
  }
  if (r == rows) return;
  const T *dy0 = dy + r * columns, *x0 = x + r * columns;
  for_vectors<T>(columns, [&](auto at) {
    const Vec<T> d0 = at.load(dy0);
    at.store(gamma_sum, at.load(gamma_sum) + d0 * ((at.load(x0) - mean[r]) * rstd[r]));
    at.store(beta_sum, at.load(beta_sum) + d0);
  });
}

}  // namespace

template <class T>
NormKernels<T> norm_kernels() {
  return {.forward = forward<T>, .backward = backward<T>, .weight_backward = weight_backward<T>};
}
template NormKernels<float> norm_kernels();
template NormKernels<double> norm_kernels();

}  // namespace megalith::ops::cpu::MEGALITH_ISA
