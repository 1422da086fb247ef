#include <algorithm>
#include <initializer_list>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/norm_kernels.h"
#include "megalith/ops/row_parts.h"

namespace megalith::ops::cpu {

namespace {

/// norm_row(row, its first element) for all rows.
template <class Row>
void for_rows(const Tensor& x, const Row& norm_row) {
  const Index hidden = x.dim(1);
  parallel_rows(x.dim(0), hidden, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) norm_row(r, r * hidden);
  });
}

/// An element's place in a tensor that may be undefined: then null.
template <class T>
T* at_or_null(const Tensor& tensor, Index element) {
  return tensor ? tensor.data<T>() + element : nullptr;
}

/// sum_rows(first row, rows, its part [grads, H]) sums blocks of rows. Then the parts are added to each defined grad.
template <class T, class SumRows>
void sum_weight_grads(const Tensor& x, const Tensor& parts, std::initializer_list<Tensor> grads,
                      const SumRows& sum_rows) {
  using A = Arithmetic<T>;
  const Index rows = x.dim(0), hidden = x.dim(1), part_size = parts.dim(1) * hidden;
  A* sums = parts.data<A>();
  parallel_pieces(rows, kSumRows, rows * hidden, [&](Index begin, Index count) {
    A* part = sums + begin / kSumRows * part_size;
    std::fill_n(part, part_size, A{0});
    sum_rows(begin, count, part);
  });
  for (const Tensor& grad : grads) {
    if (!grad) continue;
    add_parts(sums, row_blocks(rows), part_size, hidden, grad.data<A>());
    sums += hidden;
  }
}

}  // namespace

void norm_forward(const NormForward& args) {
  dispatch_float(args.x.dtype(), "norm", [&]<class T>() {
    using A = Arithmetic<T>;
    const T *x = args.x.data<T>(), *gamma = args.gamma.data<T>(), *beta = at_or_null<T>(args.beta, 0);
    T* y = args.y.data<T>();
    auto* rstd = args.rstd.data<A>();
    const NormKernels<T>& norm = kernels<T>().norm;
    for_rows(args.x, [&, hidden = args.x.dim(1)](Index r, Index at) {
      if (args.beta)
        norm.forward(x + at, gamma, beta, y + at, hidden, args.eps, args.mean.data<A>() + r, rstd + r);
      else
        norm.rms_forward(x + at, gamma, y + at, hidden, args.eps, rstd + r);
    });
  });
}

void residual_norm(const ResidualNorm& args) {
  dispatch_float(args.x.dtype(), "residual_norm", [&]<class T>() {
    bias_dropout_residual({args.x, args.bias, args.residual, args.sum, args.dropout});
  });
  norm_forward({args.sum, args.gamma, args.beta, args.y, args.mean, args.rstd, args.eps});
}

namespace {

/// norm_backward() where the gradient of y is a sum of two.
template <class T>
void backward_of_sum(const NormBackward& args, const Tensor& parts) {
  using A = Arithmetic<T>;
  const Index hidden = args.x.dim(1);
  const T *dy = args.dy.data<T>(), *more = args.more_dy.data<T>(), *x = args.x.data<T>();
  const T* gamma = args.gamma.data<T>();
  const A *mean = at_or_null<A>(args.mean, 0), *rstd = args.rstd.data<A>();
  const NormKernels<T>& norm = kernels<T>().norm;
  sum_weight_grads<T>(args.x, parts, {args.gamma_grad, args.beta_grad}, [&](Index r, Index count, A* part) {
    const Index at = r * hidden;
    if (args.mean)
      norm.weight_backward_of_sum(dy + at, more + at, x + at, mean + r, rstd + r, count, hidden, part, part + hidden);
    else
      norm.rms_weight_backward_of_sum(dy + at, more + at, x + at, rstd + r, count, hidden, part);
  });
  T* dx = args.dx.data<T>();
  for_rows(args.x, [&](Index r, Index at) {
    if (args.mean)
      norm.backward_of_sum(dy + at, more + at, x + at, gamma, dx + at, hidden, mean[r], rstd[r]);
    else
      norm.rms_backward_of_sum(dy + at, more + at, x + at, gamma, dx + at, hidden, rstd[r]);
  });
}

}  // namespace

/// It computes the gradients of the weights first, because dx may take dy's place.
void norm_backward(const NormBackward& args, const Tensor& parts) {
  if (args.more_dy) {
    dispatch_float(args.x.dtype(), "norm_backward", [&]<class T>() { backward_of_sum<T>(args, parts); });
    if (args.bias_grad) bias_backward(args.dx, args.bias_grad, parts);
    return;
  }
  dispatch_float(args.x.dtype(), "norm_backward", [&]<class T>() {
    using A = Arithmetic<T>;
    const Index hidden = args.x.dim(1);
    const T *dy = args.dy.data<T>(), *x = args.x.data<T>(), *gamma = args.gamma.data<T>();
    const A *mean = at_or_null<A>(args.mean, 0), *rstd = args.rstd.data<A>();
    const NormKernels<T>& norm = kernels<T>().norm;
    sum_weight_grads<T>(args.x, parts, {args.gamma_grad, args.beta_grad}, [&](Index r, Index count, A* part) {
      const Index at = r * hidden;
      if (args.mean)
        norm.weight_backward(dy + at, x + at, mean + r, rstd + r, count, hidden, part, part + hidden);
      else
        norm.rms_weight_backward(dy + at, x + at, rstd + r, count, hidden, part);
    });
    T* dx = args.dx.data<T>();
    for_rows(args.x, [&](Index r, Index at) {
      const T* residual = at_or_null<T>(args.residual, at);
      if (args.mean)
        norm.backward(dy + at, x + at, gamma, residual, dx + at, hidden, mean[r], rstd[r]);
      else
        norm.rms_backward(dy + at, x + at, gamma, residual, dx + at, hidden, rstd[r]);
    });
    if (args.bias_grad) bias_backward(args.dx, args.bias_grad, parts);
  });
}

}  // namespace megalith::ops::cpu
