#include "megalith/nn/qk_norm.h"

#include "megalith/nn/param_specs.h"
#include "megalith/ops/qk_head_norm.h"
#include "megalith/ops/qk_norm.h"

namespace megalith::nn {

void QkNormLayer::declare(std::vector<ParamSpec>& specs, const std::string& name, const AttentionSpec& spec,
                          const comm::Group& tp) {
  const auto add = [&](const char* which, Index heads) {
    const std::string full = name + which;
    if (spec.qk_norm == QkNorm::all) {
      specs.push_back(vector_split(full, {heads * spec.head_dim}, tp));
      specs.back().init = Init::ones;
    } else {
      specs.push_back(replicated(full, {spec.head_dim}, tp, Init::ones));
      if (tp.size() > 1) specs.back().placement = grid::kReplicatedPartial;  // each rank has heads of its own
    }
  };
  add(".q_norm.weight", spec.num_heads);
  add(".k_norm.weight", spec.num_kv_heads);
}

QkNormLayer::QkNormLayer(const std::string& name, const AttentionSpec& spec, comm::Group tp, ParamSet& params)
    : kind_(spec.qk_norm),
      eps_(spec.qk_norm_eps),
      tp_(std::move(tp)),
      heads_(spec.num_heads / tp_.size()),
      kv_heads_(spec.num_kv_heads / tp_.size()),
      all_heads_(spec.num_heads),
      all_kv_heads_(spec.num_kv_heads),
      q_(&params.at(name + ".q_norm.weight")),
      k_(&params.at(name + ".k_norm.weight")) {}

void QkNormLayer::sum_over_tp(Exec& ex, const Tensor& sums) const {
  comm::all_reduce(ex, tp_, sums, comm::Reduce::sum).wait(ex);
}

void QkNormLayer::forward(Exec& ex, const SubBatch& sub_batch, const Tensor& qkv, Saved& saved) const {
  sub_batch.make(ex, saved.normed, qkv.shape(), qkv.dtype());
  const Index numbers = kind_ == QkNorm::head ? heads_ + kv_heads_ : 2;
  sub_batch.make(ex, saved.statistics, {qkv.dim(0), numbers}, statistics_dtype(qkv.dtype()));
  const Tensor in = sub_batch.of(qkv), out = sub_batch.of(saved.normed), statistics = sub_batch.of(saved.statistics);
  if (kind_ == QkNorm::head) {
    return ops::qk_head_norm(ex, {.qkv = in,
                                  .gamma_q = q_->value,
                                  .gamma_k = k_->value,
                                  .out = out,
                                  .rstd = statistics,
                                  .num_heads = heads_,
                                  .num_kv_heads = kv_heads_,
                                  .eps = eps_});
  }
  ops::qk_square_sums(ex, {.qkv = in, .square_sums = statistics, .num_heads = heads_, .num_kv_heads = kv_heads_});
  sum_over_tp(ex, statistics);
  ops::qk_norm(ex, {.qkv = in,
                    .square_sums = statistics,
                    .gamma_q = q_->value,
                    .gamma_k = k_->value,
                    .out = out,
                    .num_heads = heads_,
                    .num_kv_heads = kv_heads_,
                    .total_num_heads = all_heads_,
                    .total_num_kv_heads = all_kv_heads_,
                    .eps = eps_});
}

void QkNormLayer::backward(Exec& ex, const Tensor& qkv, const Saved& saved, const Tensor& grad) const {
  if (kind_ == QkNorm::head) {
    return ops::qk_head_norm_backward(ex, {.dout = grad,
                                           .qkv = qkv,
                                           .gamma_q = q_->value,
                                           .gamma_k = k_->value,
                                           .rstd = saved.statistics,
                                           .dqkv = grad,
                                           .gamma_q_grad = q_->grad,
                                           .gamma_k_grad = k_->grad,
                                           .num_heads = heads_,
                                           .num_kv_heads = kv_heads_});
  }
  const Tensor sums = ex.tensor_like(saved.statistics);
  ops::qk_norm_backward_sums(ex, {.dout = grad,
                                  .qkv = qkv,
                                  .square_sums = saved.statistics,
                                  .gamma_q = q_->value,
                                  .gamma_k = k_->value,
                                  .g_xhat_sums = sums,
                                  .num_heads = heads_,
                                  .num_kv_heads = kv_heads_,
                                  .total_num_heads = all_heads_,
                                  .total_num_kv_heads = all_kv_heads_,
                                  .eps = eps_});
  sum_over_tp(ex, sums);
  ops::qk_norm_backward(ex, {.dout = grad,
                             .qkv = qkv,
                             .square_sums = saved.statistics,
                             .g_xhat_sums = sums,
                             .gamma_q = q_->value,
                             .gamma_k = k_->value,
                             .dqkv = grad,
                             .gamma_q_grad = q_->grad,
                             .gamma_k_grad = k_->grad,
                             .num_heads = heads_,
                             .num_kv_heads = kv_heads_,
                             .total_num_heads = all_heads_,
                             .total_num_kv_heads = all_kv_heads_,
                             .eps = eps_});
}

}  // namespace megalith::nn
