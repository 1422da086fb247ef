#include <array>
#include <cmath>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/kv_heads.h"
#include "megalith/ops/qk_norm_kernels.h"
#include "megalith/ops/qkv_layout.h"
#include "megalith/ops/row_parts.h"

namespace megalith::ops::cpu {

/// Statistics of q and of k over all heads.
template <class A, class Args>
struct QkStatistics {
  std::array<A, 2> count;
  const A* square_sums;
  double eps;

  QkStatistics(const Args& args, Index head_dim)
      : count{static_cast<A>(args.total_num_heads * head_dim), static_cast<A>(args.total_num_kv_heads * head_dim)},
        square_sums(args.square_sums.template data<A>()),
        eps(args.eps) {}
  /// `which`: 0 for q, 1 for k.
  A rstd(Index row, std::size_t which) const {
    const A mean = square_sums[row * 2 + static_cast<Index>(which)] / count[which];
    return static_cast<A>(1.0 / std::sqrt(static_cast<double>(mean) + eps));
  }
};

void qk_square_sums(const QkSquareSums& args) {
  dispatch_float(args.qkv.dtype(), "qk_square_sums", [&]<class T>() {
    const QkvLayout layout = qkv_layout(args);
    const Index q = layout.q_per_kv * layout.head_dim;
    const T* qkv = args.qkv.data<T>();
    auto* sums = args.square_sums.data<Arithmetic<T>>();
    const auto dot = kernels<T>().gemm.dot;
    for_all_kv_heads(layout, [&](Index row, Index kv, Index at) {
      if (kv == 0) sums[row * 2] = sums[row * 2 + 1] = 0;
      sums[row * 2] += dot(qkv + at, qkv + at, q);
      sums[row * 2 + 1] += dot(qkv + at + q, qkv + at + q, layout.head_dim);
    });
  });
}

void qk_norm(const QkNorm& args) {
  dispatch_float(args.qkv.dtype(), "qk_norm", [&]<class T>() {
    const QkvLayout layout = qkv_layout(args);
    const Index d = layout.head_dim, q = layout.q_per_kv * d;
    const QkStatistics<Arithmetic<T>, QkNorm> statistics(args, d);
    const T *qkv = args.qkv.data<T>(), *gamma_q = args.gamma_q.data<T>(), *gamma_k = args.gamma_k.data<T>();
    T* out = args.out.data<T>();
    const auto apply = kernels<T>().norm.rms_apply;
    for_all_kv_heads(layout, [&](Index row, Index kv, Index at) {
      apply(qkv + at, gamma_q + kv * q, out + at, q, statistics.rstd(row, 0));
      apply(qkv + at + q, gamma_k + kv * d, out + at + q, d, statistics.rstd(row, 1));
      copy_v(qkv + at, out + at, layout);
    });
  });
}

void qk_norm_backward_sums(const QkNormBackwardSums& args) {
  dispatch_float(args.qkv.dtype(), "qk_norm_backward_sums", [&]<class T>() {
    const QkvLayout layout = qkv_layout(args);
    const Index d = layout.head_dim, q = layout.q_per_kv * d;
    const QkStatistics<Arithmetic<T>, QkNormBackwardSums> statistics(args, d);
    const T *dout = args.dout.data<T>(), *qkv = args.qkv.data<T>();
    const T *gamma_q = args.gamma_q.data<T>(), *gamma_k = args.gamma_k.data<T>();
    auto* sums = args.g_xhat_sums.data<Arithmetic<T>>();
    const auto sum = kernels<T>().norm.rms_g_xhat_sum;
    for_all_kv_heads(layout, [&](Index row, Index kv, Index at) {
      if (kv == 0) sums[row * 2] = sums[row * 2 + 1] = 0;
      sums[row * 2] += sum(dout + at, qkv + at, gamma_q + kv * q, q, statistics.rstd(row, 0));
      sums[row * 2 + 1] += sum(dout + at + q, qkv + at + q, gamma_k + kv * d, d, statistics.rstd(row, 1));
    });
  });
}

/// It computes the gradients of the weights first, because dqkv may take dout's place.
void qk_norm_backward(const QkNormBackward& args, const Tensor& parts) {
  dispatch_float(args.qkv.dtype(), "qk_norm_backward", [&]<class T>() {
    using A = Arithmetic<T>;
    const QkvLayout layout = qkv_layout(args);
    const Index d = layout.head_dim, q = layout.q_per_kv * d, q_columns = layout.num_heads() * d;
    const Index columns = q_columns + layout.num_kv_heads * d;
    const QkStatistics<A, QkNormBackward> statistics(args, d);
    const T *dout = args.dout.data<T>(), *qkv = args.qkv.data<T>();
    const NormKernels<T>& norm = kernels<T>().norm;
    A* sums = parts.data<A>();
    sum_blocks(layout, sums, columns, [&](Index row, Index kv, Index at, A* part) {
      const A rstd_q = statistics.rstd(row, 0), rstd_k = statistics.rstd(row, 1);
      norm.rms_weight_backward(dout + at, qkv + at, &rstd_q, 1, q, part + kv * q);
      norm.rms_weight_backward(dout + at + q, qkv + at + q, &rstd_k, 1, d, part + q_columns + kv * d);
    });
    add_parts(sums, row_blocks(layout.rows), columns, q_columns, args.gamma_q_grad.data<A>());
    add_parts(sums + q_columns, row_blocks(layout.rows), columns, columns - q_columns, args.gamma_k_grad.data<A>());
    const T *gamma_q = args.gamma_q.data<T>(), *gamma_k = args.gamma_k.data<T>();
    const A* g_xhat_sums = args.g_xhat_sums.data<A>();
    T* dqkv = args.dqkv.data<T>();
    for_all_kv_heads(layout, [&](Index row, Index kv, Index at) {
      const A *means = g_xhat_sums + row * 2, mean_q = means[0] / statistics.count[0],
              mean_k = means[1] / statistics.count[1];
      norm.rms_gradient(dout + at, qkv + at, gamma_q + kv * q, nullptr, dqkv + at, q, statistics.rstd(row, 0), mean_q);
      const Index k = at + q;
      norm.rms_gradient(dout + k, qkv + k, gamma_k + kv * d, nullptr, dqkv + k, d, statistics.rstd(row, 1), mean_k);
      copy_v(dout + at, dqkv + at, layout);
    });
  });
}

}  // namespace megalith::ops::cpu
