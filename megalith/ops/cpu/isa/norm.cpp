#include "megalith/ops/cpu/isa/table.h"
#include "megalith/ops/cpu/isa/vec.h"

namespace megalith::ops::cpu::MEGALITH_ISA {
namespace {

/// Mean and deviation in two passes over a row, which the first pass brings into the cache. They are exact where one
/// pass of E[x^2] - E[x]^2 would cancel.
template <class T>
void forward(const T* x, const T* gamma, const T* beta, T* y, Index n, double eps, Arithmetic<T>* mean,
             Arithmetic<T>* rstd) {
  using A = Arithmetic<T>;
  const A m = sum_lanes<A>(sum_vectors<A>(n, [&](auto at) { return at.load(x); })) / static_cast<A>(n);
  const A squares = sum_lanes<A>(sum_vectors<A>(n, [&](auto at) {
    const Vec<A> d = at.load(x) - m;
    return d * d;
  }));
  const A r = static_cast<A>(1.0 / __builtin_sqrt(static_cast<double>(squares / static_cast<A>(n)) + eps));
  for_vectors<A>(n, [&](auto at) { at.store(y, (at.load(x) - m) * r * at.load(gamma) + at.load(beta)); });
  *mean = m;
  *rstd = r;
}

/// The gradient of rows of y, from an element of the first row on.
template <class T>
struct OneGradient {
  const T* dy;
  auto load(auto at, Index from = 0) const { return at.load(dy + from); }
};
template <class T>
struct SumOfGradients {
  const T *dy, *more;
  auto load(auto at, Index from = 0) const { return stored<T>(at.load(dy + from) + at.load(more + from)); }
};

/// dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy gamma, plus the residual.
template <class T, class Gradient>
void backward_from(const Gradient& dy, const T* x, const T* gamma, const T* residual, T* dx, Index n,
                   Arithmetic<T> mean, Arithmetic<T> rstd) {
  using A = Arithmetic<T>;
  const A g_mean =
      sum_lanes<A>(sum_vectors<A>(n, [&](auto at) { return dy.load(at) * at.load(gamma); })) / static_cast<A>(n);
  const A g_xhat_mean = sum_lanes<A>(sum_vectors<A>(
                            n, [&](auto at) { return dy.load(at) * at.load(gamma) * ((at.load(x) - mean) * rstd); })) /
                        static_cast<A>(n);
  const auto gradient = [&](auto at) {
    return (dy.load(at) * at.load(gamma) - g_mean - (at.load(x) - mean) * rstd * g_xhat_mean) * rstd;
  };
  if (residual == nullptr) {
    for_vectors<A>(n, [&](auto at) { at.store(dx, gradient(at)); });
  } else {
    for_vectors<A>(n, [&](auto at) { at.store(dx, at.load(residual) + gradient(at)); });
  }
}

template <class T>
void backward(const T* dy, const T* x, const T* gamma, const T* residual, T* dx, Index n, Arithmetic<T> mean,
              Arithmetic<T> rstd) {
  backward_from(OneGradient<T>{dy}, x, gamma, residual, dx, n, mean, rstd);
}
template <class T>
void backward_of_sum(const T* dy, const T* more, const T* x, const T* gamma, T* dx, Index n, Arithmetic<T> mean,
                     Arithmetic<T> rstd) {
  backward_from(SumOfGradients<T>{dy, more}, x, gamma, static_cast<const T*>(nullptr), dx, n, mean, rstd);
}

template <class T, class Gradient>
void weight_backward_from(const Gradient& dy, const T* x, const Arithmetic<T>* mean, const Arithmetic<T>* rstd,
                          Index rows, Index columns, Arithmetic<T>* gamma_sum, Arithmetic<T>* beta_sum) {
  using A = Arithmetic<T>;
  Index r = 0;
  for (; r + 2 <= rows; r += 2) {  // two rows per pass: half the traffic of the sums
    const T *x0 = x + r * columns, *x1 = x0 + columns;
    const A m0 = mean[r], r0 = rstd[r], m1 = mean[r + 1], r1 = rstd[r + 1];
    for_vectors<A>(columns, [&](auto at) {
      const Vec<A> d0 = dy.load(at, r * columns), d1 = dy.load(at, (r + 1) * columns);
      at.store(gamma_sum, at.load(gamma_sum) + (d0 * ((at.load(x0) - m0) * r0) + d1 * ((at.load(x1) - m1) * r1)));
      at.store(beta_sum, at.load(beta_sum) + (d0 + d1));
    });
  }
  if (r == rows) return;
  const T* x0 = x + r * columns;
  for_vectors<A>(columns, [&](auto at) {
    const Vec<A> d0 = dy.load(at, r * columns);
    at.store(gamma_sum, at.load(gamma_sum) + d0 * ((at.load(x0) - mean[r]) * rstd[r]));
    at.store(beta_sum, at.load(beta_sum) + d0);
  });
}

template <class T>
void weight_backward(const T* dy, const T* x, const Arithmetic<T>* mean, const Arithmetic<T>* rstd, Index rows,
                     Index columns, Arithmetic<T>* gamma_sum, Arithmetic<T>* beta_sum) {
  weight_backward_from(OneGradient<T>{dy}, x, mean, rstd, rows, columns, gamma_sum, beta_sum);
}
template <class T>
void weight_backward_of_sum(const T* dy, const T* more, const T* x, const Arithmetic<T>* mean,
                            const Arithmetic<T>* rstd, Index rows, Index columns, Arithmetic<T>* gamma_sum,
                            Arithmetic<T>* beta_sum) {
  weight_backward_from(SumOfGradients<T>{dy, more}, x, mean, rstd, rows, columns, gamma_sum, beta_sum);
}

template <class T>
void rms_apply(const T* x, const T* gamma, T* y, Index n, Arithmetic<T> rstd) {
  for_vectors<Arithmetic<T>>(n, [&](auto at) { at.store(y, at.load(x) * rstd * at.load(gamma)); });
}

template <class T>
void rms_forward(const T* x, const T* gamma, T* y, Index n, double eps, Arithmetic<T>* rstd) {
  using A = Arithmetic<T>;
  const A squares = sum_lanes<A>(sum_vectors<A>(n, [&](auto at) {
    const Vec<A> v = at.load(x);
    return v * v;
  }));
  const A r = static_cast<A>(1.0 / __builtin_sqrt(static_cast<double>(squares / static_cast<A>(n)) + eps));
  rms_apply(x, gamma, y, n, r);
  *rstd = r;
}

template <class T, class Gradient>
Arithmetic<T> rms_g_xhat_sum_from(const Gradient& dy, const T* x, const T* gamma, Index n, Arithmetic<T> rstd) {
  using A = Arithmetic<T>;
  return sum_lanes<A>(sum_vectors<A>(n, [&](auto at) { return dy.load(at) * at.load(gamma) * (at.load(x) * rstd); }));
}

template <class T>
Arithmetic<T> rms_g_xhat_sum(const T* dy, const T* x, const T* gamma, Index n, Arithmetic<T> rstd) {
  return rms_g_xhat_sum_from(OneGradient<T>{dy}, x, gamma, n, rstd);
}

template <class T, class Gradient>
void rms_gradient_from(const Gradient& dy, const T* x, const T* gamma, const T* residual, T* dx, Index n,
                       Arithmetic<T> rstd, Arithmetic<T> g_xhat_mean) {
  using A = Arithmetic<T>;
  const auto gradient = [&](auto at) {
    return (dy.load(at) * at.load(gamma) - at.load(x) * rstd * g_xhat_mean) * rstd;
  };
  if (residual == nullptr) {
    for_vectors<A>(n, [&](auto at) { at.store(dx, gradient(at)); });
  } else {
    for_vectors<A>(n, [&](auto at) { at.store(dx, at.load(residual) + gradient(at)); });
  }
}

template <class T>
void rms_gradient(const T* dy, const T* x, const T* gamma, const T* residual, T* dx, Index n, Arithmetic<T> rstd,
                  Arithmetic<T> g_xhat_mean) {
  rms_gradient_from(OneGradient<T>{dy}, x, gamma, residual, dx, n, rstd, g_xhat_mean);
}

template <class T>
void rms_backward(const T* dy, const T* x, const T* gamma, const T* residual, T* dx, Index n, Arithmetic<T> rstd) {
  const Arithmetic<T> g_xhat_mean = rms_g_xhat_sum(dy, x, gamma, n, rstd) / static_cast<Arithmetic<T>>(n);
  rms_gradient(dy, x, gamma, residual, dx, n, rstd, g_xhat_mean);
}
template <class T>
void rms_backward_of_sum(const T* dy, const T* more, const T* x, const T* gamma, T* dx, Index n, Arithmetic<T> rstd) {
  const SumOfGradients<T> sum{dy, more};
  const Arithmetic<T> g_xhat_mean = rms_g_xhat_sum_from(sum, x, gamma, n, rstd) / static_cast<Arithmetic<T>>(n);
  rms_gradient_from(sum, x, gamma, static_cast<const T*>(nullptr), dx, n, rstd, g_xhat_mean);
}

template <class T, class Gradient>
void rms_weight_backward_from(const Gradient& dy, const T* x, const Arithmetic<T>* rstd, Index rows, Index columns,
                              Arithmetic<T>* gamma_sum) {
  using A = Arithmetic<T>;
  Index r = 0;
  for (; r + 2 <= rows; r += 2) {
    const T *x0 = x + r * columns, *x1 = x0 + columns;
    const A r0 = rstd[r], r1 = rstd[r + 1];
    for_vectors<A>(columns, [&](auto at) {
      const Vec<A> d0 = dy.load(at, r * columns), d1 = dy.load(at, (r + 1) * columns);
      at.store(gamma_sum, at.load(gamma_sum) + (d0 * (at.load(x0) * r0) + d1 * (at.load(x1) * r1)));
    });
  }
  if (r == rows) return;
  const T* x0 = x + r * columns;
  for_vectors<A>(columns, [&](auto at) {
    at.store(gamma_sum, at.load(gamma_sum) + dy.load(at, r * columns) * (at.load(x0) * rstd[r]));
  });
}

template <class T>
void rms_weight_backward(const T* dy, const T* x, const Arithmetic<T>* rstd, Index rows, Index columns,
                         Arithmetic<T>* gamma_sum) {
  rms_weight_backward_from(OneGradient<T>{dy}, x, rstd, rows, columns, gamma_sum);
}
template <class T>
void rms_weight_backward_of_sum(const T* dy, const T* more, const T* x, const Arithmetic<T>* rstd, Index rows,
                                Index columns, Arithmetic<T>* gamma_sum) {
  rms_weight_backward_from(SumOfGradients<T>{dy, more}, x, rstd, rows, columns, gamma_sum);
}

}  // namespace

template <class T>
NormKernels<T> norm_kernels() {
  return {.forward = forward<T>,
          .backward = backward<T>,
          .weight_backward = weight_backward<T>,
          .backward_of_sum = backward_of_sum<T>,
          .weight_backward_of_sum = weight_backward_of_sum<T>,
          .rms_forward = rms_forward<T>,
          .rms_backward = rms_backward<T>,
          .rms_weight_backward = rms_weight_backward<T>,
          .rms_backward_of_sum = rms_backward_of_sum<T>,
          .rms_weight_backward_of_sum = rms_weight_backward_of_sum<T>,
          .rms_apply = rms_apply<T>,
          .rms_g_xhat_sum = rms_g_xhat_sum<T>,
          .rms_gradient = rms_gradient<T>};
}
MEGALITH_FOR_STORED_TYPES(NormKernels, norm_kernels);

}  // namespace megalith::ops::cpu::MEGALITH_ISA
