#include "megalith/nn/transformer_block.h"

namespace megalith::nn {
namespace {

/// Random sites: 0 is the embedding's, then three a layer.
std::uint32_t site(Index layer, int place) { return static_cast<std::uint32_t>(1 + 3 * layer + place); }

LayerNorm make_norm(const std::string& name, ParamBuffer& params, double eps) {
  return {params.at(name + ".weight"), params.at(name + ".bias"), eps};
}

}  // namespace

void TransformerBlock::declare(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                               const TensorParallel& tp) {
  LayerNorm::declare(specs, name + ".norm1", config.hidden_size, tp);
  SelfAttention::declare(specs, name + ".attention", config, tp.group());
  LayerNorm::declare(specs, name + ".norm2", config.hidden_size, tp);
  Mlp::declare(specs, name + ".mlp", config, tp.group());
}

TransformerBlock::TransformerBlock(const std::string& name, Index layer, const BlockConfig& config,
                                   const TensorParallel& tp, ParamBuffer& params)
    : tp_(tp),
      norm1_(make_norm(name + ".norm1", params, config.norm_eps)),
      attention_(name + ".attention", config, tp, params, site(layer, 0)),
      norm2_(make_norm(name + ".norm2", params, config.norm_eps)),
      mlp_(name + ".mlp", tp, params),
      attention_dropout_{config.dropout, config.seed, site(layer, 1)},
      mlp_dropout_{config.dropout, config.seed, site(layer, 2)} {}

void TransformerBlock::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& y,
                               Saved& saved) const {
  enter_attention(ex, microbatch, x, saved).wait(ex);
  work(ex, microbatch, Region::attention, saved);
  leave(ex, microbatch, Region::attention, saved).wait(ex);
  enter_mlp(ex, microbatch, saved).wait(ex);
  work(ex, microbatch, Region::mlp, saved);
  leave(ex, microbatch, Region::mlp, saved).wait(ex);
  add_up(ex, microbatch, y, saved);
}

InFlight TransformerBlock::enter_attention(Exec& ex, const Microbatch& microbatch, const Tensor& x,
                                           Saved& saved) const {
  const Tensor normed = norm1_.forward(ex, x, saved.norm1, microbatch.part);
  return attention_.enter(ex, normed, saved.attention, microbatch.part);
}

InFlight TransformerBlock::enter_attention(Exec& ex, const Microbatch& microbatch, const Tensor& x,
                                           const TransformerBlock& before, const Saved& saved_before,
                                           Saved& saved) const {
  saved.norm1.x = x;
  tp_.for_runs(microbatch, before.mlp_dropout_, [&](const Part& run, const ops::Dropout& dropout) {
    norm1_.forward_residual(ex, saved_before.mlp.down.y, before.mlp_.out_bias(), saved_before.norm2.x, dropout,
                            saved.norm1, run);
  });
  return attention_.enter(ex, saved.norm1.y, saved.attention, microbatch.part);
}

InFlight TransformerBlock::enter_mlp(Exec& ex, const Microbatch& microbatch, Saved& saved) const {
  const Tensor& attended = saved.attention.out.y;
  microbatch.part.make(ex, saved.norm2.x, attended.shape(), attended.dtype());
  tp_.for_runs(microbatch, attention_dropout_, [&](const Part& run, const ops::Dropout& dropout) {
    norm2_.forward_residual(ex, attended, attention_.out_bias(), saved.norm1.x, dropout, saved.norm2, run);
  });
  return mlp_.enter(ex, saved.norm2.y, saved.mlp, microbatch.part);
}

void TransformerBlock::work(Exec& ex, const Microbatch& microbatch, Region region, Saved& saved) const {
  if (region == Region::attention) return attention_.work(ex, saved.attention, microbatch.part);
  mlp_.work(ex, saved.mlp, microbatch.part);
}

InFlight TransformerBlock::leave(Exec& ex, const Microbatch& microbatch, Region region, Saved& saved) const {
  if (region == Region::attention) return attention_.leave(ex, microbatch, saved.attention);
  return mlp_.leave(ex, saved.mlp, microbatch.part);
}

void TransformerBlock::add_up(Exec& ex, const Microbatch& microbatch, const Tensor& y, const Saved& saved) const {
  tp_.for_runs(microbatch, mlp_dropout_, [&](const Part& run, const ops::Dropout& dropout) {
    ops::bias_dropout_residual(ex, {.x = run.of(saved.mlp.down.y),
                                    .bias = mlp_.out_bias(),
                                    .residual = run.of(saved.norm2.x),
                                    .out = run.of(y),
                                    .dropout = dropout});
  });
}

EnteredBackward TransformerBlock::enter_backward(Exec& ex, const Microbatch& microbatch, const SummedGrad& dy,
                                                 const Saved& saved) const {
  return mlp_.enter_backward(ex, through_dropout(ex, microbatch, mlp_dropout_, dy), saved.mlp);
}

EnteredBackward TransformerBlock::enter_attention_backward(Exec& ex, const Microbatch& microbatch, const SummedGrad& da,
                                                           const Saved& saved) const {
  return attention_.enter_backward(ex, through_dropout(ex, microbatch, attention_dropout_, da), saved.attention);
}

void TransformerBlock::through_mlp(Exec& ex, const Microbatch& microbatch, const Tensor& dy, EnteredBackward& entered,
                                   const Saved& saved, const SummedGrad& da) const {
  const Tensor d_norm2 = ex.tensor(dy.shape(), dy.dtype());
  mlp_.backward(ex, entered, saved.mlp, d_norm2, microbatch.weight_grads);
  norm2_.backward(ex, d_norm2, saved.norm2, dy, da);
}

void TransformerBlock::through_attention(Exec& ex, const Microbatch& microbatch, const Tensor& da,
                                         EnteredBackward& entered, const Saved& saved, const SummedGrad& dx) const {
  const Tensor d_norm1 = ex.tensor(da.shape(), da.dtype());
  attention_.backward(ex, microbatch, entered, saved.attention, d_norm1);
  norm1_.backward(ex, d_norm1, saved.norm1, da, dx);
}

void TransformerBlock::backward_mlp(Exec& ex, const Microbatch& microbatch, const SummedGrad& dy, const Saved& saved,
                                    const Tensor& da) const {
  EnteredBackward entered = enter_backward(ex, microbatch, dy, saved);
  through_mlp(ex, microbatch, dy.grad, entered, saved, between(da));
  mlp_.finish_backward(ex, entered, saved.mlp, microbatch.weight_grads);
}

void TransformerBlock::backward_attention(Exec& ex, const Microbatch& microbatch, const Tensor& da, const Saved& saved,
                                          const SummedGrad& dx) const {
  EnteredBackward entered = enter_attention_backward(ex, microbatch, between(da), saved);
  through_attention(ex, microbatch, da, entered, saved, dx);
  attention_.finish_backward(ex, microbatch, entered, saved.attention);
}

}  // namespace megalith::nn
