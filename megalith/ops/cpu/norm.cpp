#include "megalith/ops/cpu/norm.h"

#include <algorithm>
#include <initializer_list>

#include "megalith/ops/cpu/elementwise.h"
#include "megalith/ops/cpu/parallel.h"

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

/// The residual at an element; null where there is none.
template <class T>
const T* residual_at(const Tensor& residual, Index element) {
  return residual ? residual.data<T>() + element : nullptr;
}

/// sum_rows(first row, rows, its part [grads, H]) sums blocks of rows. Then the parts are added to each grad.
template <class T, class SumRows>
void sum_weight_grads(const Tensor& x, const Tensor& parts, std::initializer_list<Tensor> grads,
                      const SumRows& sum_rows) {
  using A = Arithmetic<T>;
  const Index rows = x.dim(0), hidden = x.dim(1), part_size = static_cast<Index>(grads.size()) * hidden;
  A* sums = parts.data<A>();
  parallel_pieces(rows, kSumRows, rows * hidden, [&](Index begin, Index count) {
    A* part = sums + begin / kSumRows * part_size;
    std::fill_n(part, part_size, A{0});
    sum_rows(begin, count, part);
  });
  for (const Tensor& grad : grads) {
    add_parts(sums, row_blocks(rows), part_size, hidden, grad.data<A>());
    sums += hidden;
  }
}

}  // namespace

template <class T>
void layer_norm_forward(const LayerNormForward& args) {
  const T *x = args.x.data<T>(), *gamma = args.gamma.data<T>(), *beta = args.beta.data<T>();
  T* y = args.y.data<T>();
  auto *mean = args.mean.data<Arithmetic<T>>(), *rstd = args.rstd.data<Arithmetic<T>>();
  const auto row = kernels<T>().norm.forward;
  for_rows(args.x, [&, hidden = args.x.dim(1)](Index r, Index at) {
    row(x + at, gamma, beta, y + at, hidden, args.eps, mean + r, rstd + r);
  });
}

template <class T>
void rms_norm_forward(const RmsNormForward& args) {
  const T *x = args.x.data<T>(), *gamma = args.gamma.data<T>();
  T* y = args.y.data<T>();
  auto* rstd = args.rstd.data<Arithmetic<T>>();
  const auto row = kernels<T>().norm.rms_forward;
  for_rows(args.x,
           [&, hidden = args.x.dim(1)](Index r, Index at) { row(x + at, gamma, y + at, hidden, args.eps, rstd + r); });
}

template <class T>
void residual_layer_norm(const ResidualLayerNorm& args) {
  bias_dropout_residual<T>({args.x, args.bias, args.residual, args.sum, args.dropout});
  layer_norm_forward<T>({args.sum, args.gamma, args.beta, args.y, args.mean, args.rstd, args.eps});
}

template <class T>
void residual_rms_norm(const ResidualRmsNorm& args) {
  bias_dropout_residual<T>({args.x, args.bias, args.residual, args.sum, args.dropout});
  rms_norm_forward<T>({args.sum, args.gamma, args.y, args.rstd, args.eps});
}

// Both backward passes compute the gradients of the weights first, because dx may take dy's place.

template <class T>
void layer_norm_backward(const LayerNormBackward& args, const Tensor& parts) {
  const Index hidden = args.x.dim(1);
  const T *dy = args.dy.data<T>(), *x = args.x.data<T>(), *gamma = args.gamma.data<T>();
  const auto *mean = args.mean.data<Arithmetic<T>>(), *rstd = args.rstd.data<Arithmetic<T>>();
  const NormKernels<T>& norm = kernels<T>().norm;
  sum_weight_grads<T>(args.x, parts, {args.gamma_grad, args.beta_grad}, [&](Index r, Index count, auto* part) {
    const Index at = r * hidden;
    norm.weight_backward(dy + at, x + at, mean + r, rstd + r, count, hidden, part, part + hidden);
  });
  T* dx = args.dx.data<T>();
  for_rows(args.x, [&](Index r, Index at) {
    norm.backward(dy + at, x + at, gamma, residual_at<T>(args.residual, at), dx + at, hidden, mean[r], rstd[r]);
  });
  if (args.bias_grad) bias_backward<T>(args.dx, args.bias_grad, parts);
}

template <class T>
void rms_norm_backward(const RmsNormBackward& args, const Tensor& parts) {
  const Index hidden = args.x.dim(1);
  const T *dy = args.dy.data<T>(), *x = args.x.data<T>(), *gamma = args.gamma.data<T>();
  const auto* rstd = args.rstd.data<Arithmetic<T>>();
  const NormKernels<T>& norm = kernels<T>().norm;
  sum_weight_grads<T>(args.x, parts, {args.gamma_grad}, [&](Index r, Index count, auto* part) {
    const Index at = r * hidden;
    norm.rms_weight_backward(dy + at, x + at, rstd + r, count, hidden, part);
  });
  T* dx = args.dx.data<T>();
  for_rows(args.x, [&](Index r, Index at) {
    norm.rms_backward(dy + at, x + at, gamma, residual_at<T>(args.residual, at), dx + at, hidden, rstd[r]);
  });
  if (args.bias_grad) bias_backward<T>(args.dx, args.bias_grad, parts);
}

#define MEGALITH_INSTANTIATE(T)                                                         \
  template void layer_norm_forward<T>(const LayerNormForward& args);                    \
  template void residual_layer_norm<T>(const ResidualLayerNorm& args);                  \
  template void rms_norm_forward<T>(const RmsNormForward& args);                        \
  template void residual_rms_norm<T>(const ResidualRmsNorm& args);                      \
  template void rms_norm_backward<T>(const RmsNormBackward& args, const Tensor& parts); \
  template void layer_norm_backward<T>(const LayerNormBackward& args, const Tensor& parts)
MEGALITH_INSTANTIATE(float);
MEGALITH_INSTANTIATE(double);
MEGALITH_INSTANTIATE(bfloat16);
MEGALITH_INSTANTIATE(float16);
#undef MEGALITH_INSTANTIATE

}  // namespace megalith::ops::cpu
