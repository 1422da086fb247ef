#pragma once
#include "megalith/ops/qk_head_norm.h"
#include "megalith/ops/qk_norm.h"

#include "tests/ops/op_test.h"

// Arguments of the q/k norms, for the tests of what they compute and of what they refuse.
namespace megalith::ops {

struct QkvHeads {
  Index rows, heads, kv_heads, head_dim;
  Index columns() const { return (heads + 2 * kv_heads) * head_dim; }
  Index of_group() const { return heads / kv_heads + 2; }
  Index size() const { return rows * columns(); }
  Index q_columns() const { return heads * head_dim; }
  Index k_columns() const { return kv_heads * head_dim; }
};

struct QkGammas {
  Values q, k;
};
inline QkGammas head_gammas(const QkvHeads& heads) {
  return {random_values(heads.head_dim, 2), random_values(heads.head_dim, 3)};
}
inline QkGammas whole_gammas(const QkvHeads& heads) {
  return {random_values(heads.q_columns(), 2), random_values(heads.k_columns(), 3)};
}

class QkNormOps : public OpTest {
 protected:
  QkHeadNorm head_args(const QkvHeads& heads, const Values& qkv, const QkGammas& gammas, double eps = 1e-6) {
    return {.qkv = put({heads.rows, heads.columns()}, qkv),
            .gamma_q = put({heads.head_dim}, gammas.q),
            .gamma_k = put({heads.head_dim}, gammas.k),
            .out = empty({heads.rows, heads.columns()}),
            .rstd = empty({heads.rows, heads.heads + heads.kv_heads}),
            .num_heads = heads.heads,
            .num_kv_heads = heads.kv_heads,
            .eps = eps};
  }
  QkHeadNormBackward head_backward_args(const QkHeadNorm& forward, const Tensor& dout, const Tensor& dqkv) {
    const Index d = forward.gamma_q.dim(0);
    return {.dout = dout,
            .qkv = forward.qkv,
            .gamma_q = forward.gamma_q,
            .gamma_k = forward.gamma_k,
            .rstd = forward.rstd,
            .dqkv = dqkv,
            .gamma_q_grad = put({d}, random_values(d, 8)),
            .gamma_k_grad = put({d}, random_values(d, 9)),
            .num_heads = forward.num_heads,
            .num_kv_heads = forward.num_kv_heads};
  }
  /// `total`: the heads of all ranks.
  QkNorm args_of(const QkvHeads& heads, const QkvHeads& total, const Values& qkv, const QkGammas& gammas) {
    return {.qkv = put({heads.rows, heads.columns()}, qkv),
            .square_sums = empty({heads.rows, 2}),
            .gamma_q = put({heads.q_columns()}, gammas.q),
            .gamma_k = put({heads.k_columns()}, gammas.k),
            .out = empty({heads.rows, heads.columns()}),
            .num_heads = heads.heads,
            .num_kv_heads = heads.kv_heads,
            .total_num_heads = total.heads,
            .total_num_kv_heads = total.kv_heads};
  }
  QkNormBackward backward_args(const QkNorm& forward, const Tensor& dout) {
    const Index q = forward.gamma_q.dim(0), k = forward.gamma_k.dim(0);
    return {.dout = dout,
            .qkv = forward.qkv,
            .square_sums = forward.square_sums,
            .g_xhat_sums = empty(forward.square_sums.shape()),
            .gamma_q = forward.gamma_q,
            .gamma_k = forward.gamma_k,
            .dqkv = empty(forward.qkv.shape()),
            .gamma_q_grad = put({q}, Values(static_cast<std::size_t>(q), 1.0)),
            .gamma_k_grad = put({k}, Values(static_cast<std::size_t>(k), 1.0)),
            .num_heads = forward.num_heads,
            .num_kv_heads = forward.num_kv_heads,
            .total_num_heads = forward.total_num_heads,
            .total_num_kv_heads = forward.total_num_kv_heads};
  }
  void square_sums(const QkNorm& args) {
    qk_square_sums(ex_, {.qkv = args.qkv,
                         .square_sums = args.square_sums,
                         .num_heads = args.num_heads,
                         .num_kv_heads = args.num_kv_heads});
  }
  void backward_sums(const QkNormBackward& args) {
    qk_norm_backward_sums(ex_, {.dout = args.dout,
                                .qkv = args.qkv,
                                .square_sums = args.square_sums,
                                .gamma_q = args.gamma_q,
                                .gamma_k = args.gamma_k,
                                .g_xhat_sums = args.g_xhat_sums,
                                .num_heads = args.num_heads,
                                .num_kv_heads = args.num_kv_heads,
                                .total_num_heads = args.total_num_heads,
                                .total_num_kv_heads = args.total_num_kv_heads});
  }
  /// What an all-reduce does to the tensors of some ranks.
  void all_reduce(const std::vector<Tensor>& of_ranks) {
    const Tensor sum = put(of_ranks[0].shape(), Values(static_cast<std::size_t>(of_ranks[0].numel()), 0.0));
    for (const Tensor& tensor : of_ranks) add(ex_, sum, tensor, sum);
    for (const Tensor& tensor : of_ranks) ex_.copy(tensor.raw(), sum.raw(), sum.bytes());
  }
  double of_differences() const { return dtype() == DType::f32 ? 1e-5 : 1e-8; }
};

}  // namespace megalith::ops
