#include "megalith/ops/cpu/qk_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "megalith/ops/cpu/elementwise.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/qkv_layout.h"

// The q heads of a kv head are neighbours. Code that treats them alike takes them as one block of A/G D numbers.

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

namespace {

/// visit(row, kv head, the first element of its q heads) for the kv heads of some rows, in order.
template <class Visit>
void for_kv_heads(const QkvLayout& layout, Index first_row, Index rows, const Visit& visit) {
  for (Index row = first_row; row < first_row + rows; ++row) {
    for (Index kv = 0; kv < layout.num_kv_heads; ++kv)
      visit(row, kv, row * layout.columns() + kv * layout.group_columns());
  }
}
/// The same for all rows, by the team's threads.
template <class Visit>
void for_all_kv_heads(const QkvLayout& layout, const Visit& visit) {
  parallel_rows(layout.rows, layout.columns(),
                [&](Index first, Index count) { for_kv_heads(layout, first, count, visit); });
}

/// visit(row, kv head, element, the block's part) sums blocks of rows into parts [blocks, columns].
template <class A, class Visit>
void sum_blocks(const QkvLayout& layout, A* parts, Index columns, const Visit& visit) {
  parallel_pieces(layout.rows, kSumRows, layout.rows * layout.columns(), [&](Index first, Index count) {
    A* part = parts + first / kSumRows * columns;
    std::fill_n(part, columns, A{0});
    for_kv_heads(layout, first, count, [&](Index row, Index kv, Index at) { visit(row, kv, at, part); });
  });
}

template <class T>
void copy_v(const T* from, T* to, const QkvLayout& layout) {
  const Index v = layout.normed_of_group() * layout.head_dim;
  if (from != to) std::copy_n(from + v, layout.head_dim, to + v);
}

}  // namespace

template <class T>
void qk_head_norm(const QkHeadNorm& args) {
  const QkvLayout layout = qkv_layout(args);
  const Index d = layout.head_dim, normed = layout.normed_of_group();
  const T *qkv = args.qkv.data<T>(), *gamma_q = args.gamma_q.data<T>(), *gamma_k = args.gamma_k.data<T>();
  T* out = args.out.data<T>();
  auto* rstd = args.rstd.data<Arithmetic<T>>();
  const auto norm = kernels<T>().norm.rms_forward;
  for_all_kv_heads(layout, [&](Index row, Index kv, Index at) {
    auto* of_group = rstd + row * layout.normed() + kv * normed;
    for (Index head = 0; head < normed; ++head) {
      const T* gamma = head < layout.q_per_kv ? gamma_q : gamma_k;
      norm(qkv + at + head * d, gamma, out + at + head * d, d, args.eps, of_group + head);
    }
    copy_v(qkv + at, out + at, layout);
  });
}

// Both backward passes compute the gradients of the weights first, because dqkv may take dout's place.

template <class T>
void qk_head_norm_backward(const QkHeadNormBackward& args, const Tensor& parts) {
  using A = Arithmetic<T>;
  const QkvLayout layout = qkv_layout(args);
  const Index d = layout.head_dim, normed = layout.normed_of_group(), queries = layout.q_per_kv;
  const T *dout = args.dout.data<T>(), *qkv = args.qkv.data<T>();
  const A* rstd = args.rstd.data<A>();
  const NormKernels<T>& norm = kernels<T>().norm;
  const auto of_group = [&](Index row, Index kv) { return rstd + row * layout.normed() + kv * normed; };
  A* sums = parts.data<A>();
  sum_blocks(layout, sums, 2 * d, [&](Index row, Index kv, Index at, A* part) {
    const A* of_heads = of_group(row, kv);
    norm.rms_weight_backward(dout + at, qkv + at, of_heads, queries, d, part);
    const Index k = at + queries * d;
    norm.rms_weight_backward(dout + k, qkv + k, of_heads + queries, 1, d, part + d);
  });
  add_parts(sums, row_blocks(layout.rows), 2 * d, d, args.gamma_q_grad.data<A>());
  add_parts(sums + d, row_blocks(layout.rows), 2 * d, d, args.gamma_k_grad.data<A>());
  const T *gamma_q = args.gamma_q.data<T>(), *gamma_k = args.gamma_k.data<T>();
  T* dqkv = args.dqkv.data<T>();
  for_all_kv_heads(layout, [&](Index row, Index kv, Index at) {
    const A* of_heads = of_group(row, kv);
    for (Index head = 0; head < normed; ++head) {
      const Index x = at + head * d;
      norm.rms_backward(dout + x, qkv + x, head < queries ? gamma_q : gamma_k, nullptr, dqkv + x, d, of_heads[head]);
    }
    copy_v(dout + at, dqkv + at, layout);
  });
}

template <class T>
void qk_square_sums(const QkSquareSums& args) {
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
}

template <class T>
void qk_norm(const QkNorm& args) {
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
}

template <class T>
void qk_norm_backward_sums(const QkNormBackwardSums& args) {
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
}

template <class T>
void qk_norm_backward(const QkNormBackward& args, const Tensor& parts) {
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
}

#define MEGALITH_INSTANTIATE(T)                                                                \
  template void qk_head_norm<T>(const QkHeadNorm& args);                                       \
  template void qk_head_norm_backward<T>(const QkHeadNormBackward& args, const Tensor& parts); \
  template void qk_square_sums<T>(const QkSquareSums& args);                                   \
  template void qk_norm<T>(const QkNorm& args);                                                \
  template void qk_norm_backward_sums<T>(const QkNormBackwardSums& args);                      \
  template void qk_norm_backward<T>(const QkNormBackward& args, const Tensor& parts)
MEGALITH_INSTANTIATE(float);
MEGALITH_INSTANTIATE(double);
MEGALITH_INSTANTIATE(bfloat16);
MEGALITH_INSTANTIATE(float16);
#undef MEGALITH_INSTANTIATE

}  // namespace megalith::ops::cpu
