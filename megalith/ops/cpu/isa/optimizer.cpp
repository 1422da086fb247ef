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
  return {.adamw = adamw<T>, .sum_of_squares = sum_of_squares<T>};
}
template OptimizerKernels<float> optimizer_kernels();
template OptimizerKernels<double> optimizer_kernels();

}  // namespace megalith::ops::cpu::MEGALITH_ISA
