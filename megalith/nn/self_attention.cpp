#include "megalith/nn/self_attention.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/nn/param_specs.h"
#include "megalith/ops/attention.h"

namespace megalith::nn {

void SelfAttention::declare(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                            const comm::Group& tp) {
  if (config.num_heads % tp.size() != 0 || config.hidden_size % config.num_heads != 0) {
    throw ConfigError(str("E_HEADS_NOT_DIVISIBLE: model.num_heads = ", config.num_heads,
                          ": must divide model.hidden_size = ", config.hidden_size,
                          " and be divisible by parallel.tp = ", tp.size()));
  }
  const Index h = config.hidden_size;
  specs.push_back(rows_split(name + ".qkv.weight", 3 * h, h, tp, config.init_std));
  specs.push_back(vector_split(name + ".qkv.bias", 3 * h, tp));
  specs.push_back(columns_split(name + ".out.weight", h, h, tp, config.residual_init_std));
  specs.push_back(replicated(name + ".out.bias", {h}, tp, Init::zeros));
}

SelfAttention::SelfAttention(const std::string& name, const BlockConfig& config, const TensorParallel& tp,
                             ParamBuffer& params, std::uint32_t site)
    : heads_(config.num_heads / tp.group().size()),
      head_dim_(config.hidden_size / config.num_heads),
      first_head_(heads_ * tp.group().rank()),
      global_heads_(config.num_heads),
      qkv_(tp, params.at(name + ".qkv.weight"), params.at(name + ".qkv.bias")),
      out_(tp, params.at(name + ".out.weight"), params.at(name + ".out.bias")),
      dropout_{config.attention_dropout, config.seed, site} {}

InFlight SelfAttention::leave(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  const Part& part = microbatch.part;
  const Tensor& qkv = saved.qkv.y;
  part.make(ex, saved.out.x, {qkv.dim(0), heads_ * head_dim_}, qkv.dtype());
  part.make(ex, saved.log_sum_exp, {microbatch.batch, heads_, microbatch.seq_len}, statistics_dtype(qkv.dtype()));
  ops::attention_forward(ex, {.qkv = part.of(qkv),
                              .out = part.of(saved.out.x),
                              .log_sum_exp = part.of(saved.log_sum_exp),
                              .batch = microbatch.samples(),
                              .seq_len = microbatch.seq_len,
                              .num_heads = heads_,
                              .first_head = first_head_,
                              .num_global_heads = global_heads_,
                              .dropout = dropout_.in(microbatch)});
  return out_.forward(ex, saved.out.x, saved.out, part);
}

void SelfAttention::backward(Exec& ex, const Microbatch& microbatch, EnteredBackward& entered, const Saved& saved,
                             const Tensor& dx) const {
  const Tensor d_attended = ex.tensor(saved.out.x.shape(), dx.dtype());
  entered.d_out.messages.wait(ex);
  out_.backward_input(ex, entered.d_out.x, d_attended);
  out_.backward_weight_at(WeightGradTime::at_once, ex, entered, saved.out, microbatch.weight_grads);
  const Tensor d_qkv = ex.tensor(saved.qkv.y.shape(), dx.dtype());
  ops::attention_backward(ex, {.dout = d_attended,
                               .qkv = saved.qkv.y,
                               .out = saved.out.x,
                               .log_sum_exp = saved.log_sum_exp,
                               .dqkv = d_qkv,
                               .batch = microbatch.batch,
                               .seq_len = microbatch.seq_len,
                               .num_heads = heads_,
                               .first_head = first_head_,
                               .num_global_heads = global_heads_,
                               .dropout = dropout_.in(microbatch)});
  InFlight sums = qkv_.backward_input(ex, d_qkv, dx);
  entered.x.messages.wait(ex);
  qkv_.backward_weight(ex, d_qkv, entered.x.x, microbatch.weight_grads);
  out_.backward_weight_at(WeightGradTime::beside_sum, ex, entered, saved.out, microbatch.weight_grads);
  sums.wait(ex);
}

void SelfAttention::finish_backward(Exec& ex, const Microbatch& microbatch, const EnteredBackward& entered,
                                    const Saved& saved) const {
  out_.backward_weight_at(WeightGradTime::beside_entering, ex, entered, saved.out, microbatch.weight_grads);
}

}  // namespace megalith::nn
