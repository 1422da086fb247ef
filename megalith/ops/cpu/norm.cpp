#include "megalith/ops/cpu/norm.h"

#include <algorithm>

#include "megalith/ops/cpu/elementwise.h"
#include "megalith/ops/cpu/parallel.h"

namespace megalith::ops::cpu {

template <class T>
void layer_norm_forward(const LayerNormForward& args) {
  const Index hidden = args.x.dim(1);
  const T *x = args.x.data<T>(), *gamma = args.gamma.data<T>(), *beta = args.beta.data<T>();
  T* y = args.y.data<T>();
  auto *mean = args.mean.data<Arithmetic<T>>(), *rstd = args.rstd.data<Arithmetic<T>>();
  const auto row = kernels<T>().norm.forward;
  parallel_rows(args.x.dim(0), hidden, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) {
      row(x + r * hidden, gamma, beta, y + r * hidden, hidden, args.eps, mean + r, rstd + r);
    }
  });
}

template <class T>
void residual_layer_norm(const ResidualLayerNorm& args) {
  bias_dropout_residual<T>({args.x, args.bias, args.residual, args.sum, args.dropout});
  layer_norm_forward<T>({args.sum, args.gamma, args.beta, args.y, args.mean, args.rstd, args.eps});
}

namespace {

template <class T>
void input_backward(const LayerNormBackward& args) {
  const Index hidden = args.x.dim(1);
  const T *dy = args.dy.data<T>(), *x = args.x.data<T>(), *gamma = args.gamma.data<T>();
  const auto *mean = args.mean.data<Arithmetic<T>>(), *rstd = args.rstd.data<Arithmetic<T>>();
  const T* residual = args.residual ? args.residual.data<T>() : nullptr;
  T* dx = args.dx.data<T>();
  const auto row = kernels<T>().norm.backward;
  parallel_rows(args.x.dim(0), hidden, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) {
      const Index at = r * hidden;
      row(dy + at, x + at, gamma, residual == nullptr ? nullptr : residual + at, dx + at, hidden, mean[r], rstd[r]);
    }
  });
}

template <class T>
void weight_backward(const LayerNormBackward& args, const Tensor& parts) {
  using A = Arithmetic<T>;
  const Index rows = args.x.dim(0), hidden = args.x.dim(1);
  A* sums = parts.data<A>();
  parallel_pieces(rows, kSumRows, rows * hidden, [&](Index begin, Index count) {
    A* part = sums + begin / kSumRows * 2 * hidden;
    std::fill_n(part, 2 * hidden, A{0});
    kernels<T>().norm.weight_backward(args.dy.data<T>() + begin * hidden, args.x.data<T>() + begin * hidden,
                                      args.mean.data<A>() + begin, args.rstd.data<A>() + begin, count, hidden, part,
                                      part + hidden);
  });
  add_parts(sums, row_blocks(rows), 2 * hidden, hidden, args.gamma_grad.data<A>());
  add_parts(sums + hidden, row_blocks(rows), 2 * hidden, hidden, args.beta_grad.data<A>());
}

}  // namespace

template <class T>
void layer_norm_backward(const LayerNormBackward& args, const Tensor& parts) {
  weight_backward<T>(args, parts);  // first: dx may take dy's place
  input_backward<T>(args);
  if (args.bias_grad) bias_backward<T>(args.dx, args.bias_grad, parts);
}

#define MEGALITH_INSTANTIATE(T)                                        \
  template void layer_norm_forward<T>(const LayerNormForward& args);   \
  template void residual_layer_norm<T>(const ResidualLayerNorm& args); \
  template void layer_norm_backward<T>(const LayerNormBackward& args, const Tensor& parts)
MEGALITH_INSTANTIATE(float);
MEGALITH_INSTANTIATE(double);
MEGALITH_INSTANTIATE(bfloat16);
MEGALITH_INSTANTIATE(float16);
#undef MEGALITH_INSTANTIATE

}  // namespace megalith::ops::cpu
