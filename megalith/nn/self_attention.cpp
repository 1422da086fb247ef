#include "megalith/nn/self_attention.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/nn/param_specs.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/attention_decode.h"

namespace megalith::nn {
namespace {

void check(const AttentionSpec& spec, const comm::Group& tp) {
  if (spec.num_heads % tp.size() != 0 || spec.num_kv_heads % tp.size() != 0) {
    throw ConfigError(str("E_HEADS_NOT_DIVISIBLE: model.num_heads = ", spec.num_heads, ", model.num_kv_heads = ",
                          spec.num_kv_heads, ": both must be divisible by parallel.tp = ", tp.size()));
  }
}

}  // namespace

void SelfAttention::declare(std::vector<ParamSpec>& specs, const std::string& name, const AttentionSpec& spec,
                            const StreamSpec& stream, const comm::Group& tp) {
  check(spec, tp);
  const Index h = stream.hidden_size, width = spec.num_heads * spec.head_dim;
  const Index qkv = width + 2 * spec.num_kv_heads * spec.head_dim;
  specs.push_back(rows_split(name + ".qkv.weight", qkv, h, tp, stream.init_std));
  if (spec.biases != Biases::none) specs.push_back(vector_split(name + ".qkv.bias", {qkv}, tp));
  if (spec.qk_norm != QkNorm::none) QkNormLayer::declare(specs, name, spec, tp);
  specs.push_back(columns_split(name + ".out.weight", h, width, tp, stream.residual_init_std));
  if (spec.biases == Biases::all) specs.push_back(replicated(name + ".out.bias", {h}, tp, Init::zeros));
}

SelfAttention::SelfAttention(const std::string& name, const AttentionSpec& spec, const SublayerOptions& options,
                             const TensorParallel& tp, ParamSet& params)
    : Base({tp, params.at(name + ".qkv.weight"), params.find(name + ".qkv.bias")},
           {tp, params.at(name + ".out.weight"), params.find(name + ".out.bias")}),
      heads_(spec.num_heads / tp.group().size()),
      kv_heads_(spec.num_kv_heads / tp.group().size()),
      head_dim_(spec.head_dim),
      first_head_(heads_ * tp.group().rank()),
      global_heads_(spec.num_heads),
      position_(spec.position),
      dropout_{spec.dropout, options.seed, spec.dropout_site},
      again_(options.recompute.again(RecomputeModule::attention)) {
  if (spec.qk_norm != QkNorm::none) qk_norm_.emplace(name, spec, tp.group(), params);
}

void SelfAttention::first_gemm(Exec& ex, const Microbatch& microbatch, Base::Saved& saved) const {
  first_.forward(ex, saved.first, microbatch.sub_batch);
}

void SelfAttention::local_work(Exec& ex, const Microbatch& microbatch, Base::Saved& saved) const {
  auto& kept = static_cast<Saved&>(saved);
  if (qk_norm_) qk_norm_->forward(ex, microbatch.sub_batch, kept.first.y, kept.qk_norm);
  rotate(ex, microbatch, microbatch.sub_batch.of(qkv_of(kept)), ops::RopeDirection::forward);
  if (kept.cache.keys) {
    ops::cache_append(ex, {.qkv = qkv_of(kept),
                           .positions = microbatch.positions,
                           .keys = kept.cache.keys,
                           .values = kept.cache.values,
                           .num_heads = heads_});
  }
  if (microbatch.past == Past::cached) return decode(ex, microbatch, kept);
  attend(ex, microbatch, kept);
}

void SelfAttention::rotate(Exec& ex, const Microbatch& microbatch, const Tensor& qkv,
                           ops::RopeDirection direction) const {
  if (position_ != PositionKind::rope) return;
  ops::rope(ex, {.qkv = qkv,
                 .table = microbatch.rope_table,
                 .num_heads = heads_,
                 .num_kv_heads = kv_heads_,
                 .seq_len = microbatch.seq_len,
                 .first_row = microbatch.first_row(),
                 .direction = direction,
                 .positions = microbatch.positions});
}

void SelfAttention::attend(Exec& ex, const Microbatch& microbatch, Saved& kept) const {
  const SubBatch& sub_batch = microbatch.sub_batch;
  const Tensor& qkv = qkv_of(kept);
  sub_batch.make(ex, kept.last.x, {qkv.dim(0), heads_ * head_dim_}, qkv.dtype());
  sub_batch.make(ex, kept.log_sum_exp, {microbatch.batch, heads_, microbatch.seq_len}, statistics_dtype(qkv.dtype()));
  ops::attention_forward(ex, {.qkv = sub_batch.of(qkv),
                              .out = sub_batch.of(kept.last.x),
                              .log_sum_exp = sub_batch.of(kept.log_sum_exp),
                              .batch = microbatch.samples(),
                              .seq_len = microbatch.seq_len,
                              .num_heads = heads_,
                              .first_head = first_head_,
                              .num_global_heads = global_heads_,
                              .dropout = dropout_.in(microbatch),
                              .num_kv_heads = kv_heads_});
}

void SelfAttention::decode(Exec& ex, const Microbatch& microbatch, Saved& kept) const {
  const Tensor& qkv = qkv_of(kept);
  kept.last.x = ex.tensor({qkv.dim(0), heads_ * head_dim_}, qkv.dtype());
  ops::attention_decode(ex, {.qkv = qkv,
                             .positions = microbatch.positions,
                             .keys = kept.cache.keys,
                             .values = kept.cache.values,
                             .out = kept.last.x,
                             .num_heads = heads_});
}

SelfAttention::FirstGrad SelfAttention::backward_to_first(Exec& ex, const Microbatch& microbatch,
                                                          Base::Saved& saved) const {
  auto& kept = static_cast<Saved&>(saved);
  BackwardInRegion& entered = kept.entered;
  if (again_) attend(ex, microbatch, kept);
  const Tensor d_attended = ex.tensor_like(kept.last.x);
  entered.d_out.messages.wait(ex);
  last_.backward_input(ex, entered.d_out.x, d_attended);
  last_.backward_weight_at(WeightGradTime::at_once, ex, entered, kept.last, microbatch.weight_grads);
  const Tensor d_qkv = ex.tensor_like(kept.first.y);
  ops::attention_backward(ex, {.dout = d_attended,
                               .qkv = qkv_of(kept),
                               .out = kept.last.x,
                               .log_sum_exp = kept.log_sum_exp,
                               .dqkv = d_qkv,
                               .batch = microbatch.batch,
                               .seq_len = microbatch.seq_len,
                               .num_heads = heads_,
                               .first_head = first_head_,
                               .num_global_heads = global_heads_,
                               .dropout = dropout_.in(microbatch),
                               .num_kv_heads = kv_heads_});
  rotate(ex, microbatch, d_qkv, ops::RopeDirection::backward);
  if (qk_norm_) qk_norm_->backward(ex, kept.first.y, kept.qk_norm, d_qkv);
  return {d_qkv};
}

}  // namespace megalith::nn
