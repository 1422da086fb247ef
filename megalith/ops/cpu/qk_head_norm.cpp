#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/kv_heads.h"
#include "megalith/ops/qk_head_norm_kernels.h"

namespace megalith::ops::cpu {

void qk_head_norm(const QkHeadNorm& args) {
  dispatch_float(args.qkv.dtype(), "qk_head_norm", [&]<class T>() {
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
  });
}

/// It computes the gradients of the weights first, because dqkv may take dout's place.
void qk_head_norm_backward(const QkHeadNormBackward& args, const Tensor& parts) {
  dispatch_float(args.qkv.dtype(), "qk_head_norm_backward", [&]<class T>() {
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
  });
}

}  // namespace megalith::ops::cpu
