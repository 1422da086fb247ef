#include "megalith/ops/cpu/norm.h"

#include <algorithm>

#include "megalith/ops/cpu/elementwise.h"
#include "megalith/ops/cpu/parallel.h"

namespace megalith::ops::cpu {

template <class T>
void layer_norm_forward(const LayerNormForward& args) {
  const Index hidden = args.x.dim(1);
  const T *x = args.x.data<T>(), *gamma = args.gamma.data<T>(), *beta = args.beta.data<T>();
  T *y = args.y.data<T>(), *mean = args.mean.data<T>(), *rstd = args.rstd.data<T>();
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
  const T *mean = args.mean.data<T>(), *rstd = args.rstd.data<T>();
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
  const Index rows = args.x.dim(0), hidden = args.x.dim(1);
  T* sums = parts.data<T>();
  parallel_pieces(rows, kSumRows, rows * hidden, [&](Index begin, Index count) {
    T* part = sums + begin / kSumRows * 2 * hidden;
    std::fill_n(part, 2 * hidden, T{0});
    kernels<T>().norm.weight_backward(args.dy.data<T>() + begin * hidden, args.x.data<T>() + begin * hidden,
                                      args.mean.data<T>() + begin, args.rstd.data<T>() + begin, count, hidden, part,
                                      part + hidden);
  });
  add_parts(sums, row_blocks(rows), 2 * hidden, hidden, args.gamma_grad.data<T>());
  add_parts(sums + hidden, row_blocks(rows), 2 * hidden, hidden, args.beta_grad.data<T>());
}

}  // namespace

template <class T>
void layer_norm_backward(const LayerNormBackward& args, const Tensor& parts) {
  weight_backward<T>(args, parts);  // first: dx may take dy's place
  input_backward<T>(args);
}

template void layer_norm_forward<float>(const LayerNormForward& args);
template void layer_norm_forward<double>(const LayerNormForward& args);
template void residual_layer_norm<float>(const ResidualLayerNorm& args);
template void residual_layer_norm<double>(const ResidualLayerNorm& args);
template void layer_norm_backward<float>(const LayerNormBackward& args, const Tensor& parts);
template void layer_norm_backward<double>(const LayerNormBackward& args, const Tensor& parts);

}  // namespace megalith::ops::cpu
