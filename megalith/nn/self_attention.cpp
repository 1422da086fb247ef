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
  const Index q_rows = spec.num_heads / spec.num_kv_heads * spec.head_dim, group_rows = q_rows + 2 * spec.head_dim;
  specs.back().matrices = {{q_rows, group_rows, 0},
                           {spec.head_dim, group_rows, q_rows},
                           {spec.head_dim, group_rows, q_rows + spec.head_dim}};
  if (spec.biases != Biases::none) specs.push_back(vector_split(name + ".qkv.bias", {qkv}, tp));
  if (spec.qk_norm != QkNorm::none) QkNormLayer::declare(specs, name, spec, tp);
  specs.push_back(columns_split(name + ".out.weight", h, width, tp, stream.residual_init_std));
  if (spec.biases == Biases::all) specs.push_back(replicated(name + ".out.bias", {h}, tp, Init::zeros));
}

SelfAttention::SelfAttention(const std::string& name, const AttentionSpec& spec, const SublayerOptions& options,
                             const TensorParallel& tp, ParamSet& params)
    : TensorParallelSublayer({tp, params.at(name + ".qkv.weight"), params.find(name + ".qkv.bias"), options.gemms},
                             {tp, params.at(name + ".out.weight"), params.find(name + ".out.bias"), options.gemms},
                             // Attention's own backward pass reads the last one's numbers, too.
                             {.first = options.recompute.has(RecomputeModule::norms), .last = true}),
      heads_(spec.num_heads / tp.group().size()),
      kv_heads_(spec.num_kv_heads / tp.group().size()),
      head_dim_(spec.head_dim),
      first_head_(heads_ * tp.group().rank()),
      global_heads_(spec.num_heads),
      position_(spec.position),
      mask_(spec.mask),
      dropout_{spec.dropout, options.seed, spec.dropout_site},
      recomputes_(options.recompute.has(RecomputeModule::attention)) {
  if (spec.qk_norm != QkNorm::none) qk_norm_.emplace(name, spec, tp.group(), params);
}

void SelfAttention::first_gemm(Exec& ex, const Microbatch& microbatch, const Tensor& x, AttentionState& saved,
                               const FirstGemm& pass) const {
  first_.forward(ex, x, saved.qkv, microbatch.sub_batch, pass.operands);
}

void SelfAttention::local_work(Exec& ex, const Microbatch& microbatch, AttentionState& saved) const {
  if (qk_norm_) qk_norm_->forward(ex, microbatch.sub_batch, saved.qkv, saved.qk_norm);
  rotate(ex, microbatch, saved, microbatch.sub_batch.of(read_qkv(saved)), ops::RopeDirection::forward);
  if (saved.cache.keys) {
    ops::cache_append(ex, {.qkv = read_qkv(saved),
                           .positions = microbatch.positions,
                           .keys = saved.cache.keys,
                           .values = saved.cache.values,
                           .num_heads = heads_});
  }
  if (microbatch.past == Past::cached) return decode(ex, microbatch, saved);
  attend(ex, microbatch, saved);
}

void SelfAttention::rotate(Exec& ex, const Microbatch& microbatch, const AttentionState& saved, const Tensor& qkv,
                           ops::RopeDirection direction) const {
  if (position_ != PositionKind::rope) return;
  const Tensor& positions = microbatch.positions;
  ops::rope(ex, {.qkv = qkv,
                 .table = microbatch.rope_table,
                 .num_heads = heads_,
                 .num_kv_heads = kv_heads_,
                 .seq_len = microbatch.seq_len,
                 .first_row = microbatch.first_row(),
                 .direction = direction,
                 .positions = positions ? microbatch.sub_batch.of(positions) : Tensor(),
                 .attended = order(ex, microbatch, saved)});
}

// It follows from the whole microbatch, so that the passes of its parts and backward agree.
ops::QkvOrder SelfAttention::order(const Exec& ex, const Microbatch& microbatch, const AttentionState& saved) const {
  if (position_ != PositionKind::rope || saved.cache.keys) return ops::QkvOrder::groups;
  return ops::attended_order(
      ex.device(), {.dtype = read_qkv(saved).dtype(),
                    .batch = microbatch.batch,
                    .seq_len = microbatch.seq_len,
                    .num_heads = heads_,
                    .head_dim = head_dim_,
                    .dropout = dropout_.in(microbatch).probability,
                    .mask = mask_,
                    .num_kv_heads = kv_heads_,
                    .lengths = microbatch.lengths ? ops::SampleLengths::given : ops::SampleLengths::equal,
                    .documents = microbatch.document_begin ? ops::DocumentMask::given : ops::DocumentMask::none});
}

void SelfAttention::attend(Exec& ex, const Microbatch& microbatch, AttentionState& saved) const {
  const SubBatch& sub_batch = microbatch.sub_batch;
  const Tensor &qkv = read_qkv(saved), &begins = microbatch.document_begin;
  sub_batch.make(ex, saved.output, {qkv.dim(0), heads_ * head_dim_}, qkv.dtype());
  sub_batch.make(ex, saved.log_sum_exp, {microbatch.batch, heads_, microbatch.seq_len}, statistics_dtype(qkv.dtype()));
  ops::attention_forward(ex, {.qkv = sub_batch.of(qkv),
                              .out = sub_batch.of(saved.output),
                              .log_sum_exp = sub_batch.of(saved.log_sum_exp),
                              .batch = microbatch.samples(),
                              .seq_len = microbatch.seq_len,
                              .num_heads = heads_,
                              .first_head = first_head_,
                              .num_global_heads = global_heads_,
                              .dropout = dropout_.in(microbatch),
                              .mask = mask_,
                              .num_kv_heads = kv_heads_,
                              .lengths = microbatch.lengths ? sub_batch.of(microbatch.lengths) : Tensor(),
                              .document_begin = begins ? sub_batch.of(begins) : Tensor(),
                              .order = order(ex, microbatch, saved)});
}

void SelfAttention::decode(Exec& ex, const Microbatch& microbatch, AttentionState& saved) const {
  const Tensor& qkv = read_qkv(saved);
  saved.output = ex.tensor({qkv.dim(0), heads_ * head_dim_}, qkv.dtype());
  ops::attention_decode(ex, {.qkv = qkv,
                             .positions = microbatch.positions,
                             .keys = saved.cache.keys,
                             .values = saved.cache.values,
                             .out = saved.output,
                             .num_heads = heads_});
}

void SelfAttention::last_input_grad(Exec& ex, const Microbatch& microbatch, AttentionState& saved) const {
  if (recomputes_) attend(ex, microbatch, saved);
  saved.d_output = ex.tensor_like(saved.output);
  last_backward_input(ex, saved, saved.d_output);
}

void SelfAttention::local_work_grad(Exec& ex, const Microbatch& microbatch, AttentionState& saved) const {
  const Tensor d_qkv = ex.tensor_like(saved.qkv);
  ops::attention_backward(ex, {.dout = saved.d_output,
                               .qkv = read_qkv(saved),
                               .out = saved.output,
                               .log_sum_exp = saved.log_sum_exp,
                               .dqkv = d_qkv,
                               .batch = microbatch.batch,
                               .seq_len = microbatch.seq_len,
                               .num_heads = heads_,
                               .first_head = first_head_,
                               .num_global_heads = global_heads_,
                               .dropout = dropout_.in(microbatch),
                               .mask = mask_,
                               .num_kv_heads = kv_heads_,
                               .lengths = microbatch.lengths,
                               .document_begin = microbatch.document_begin,
                               .order = order(ex, microbatch, saved)});
  rotate(ex, microbatch, saved, d_qkv, ops::RopeDirection::backward);
  if (qk_norm_) qk_norm_->backward(ex, saved.qkv, saved.qk_norm, d_qkv);
  saved.d_first = d_qkv;
}

}  // namespace megalith::nn
