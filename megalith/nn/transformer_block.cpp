#include "megalith/nn/transformer_block.h"

#include "megalith/nn/param_specs.h"

namespace megalith::nn {
namespace {

/// Random sites: 0 is the embedding's, then three a layer.
std::uint32_t site(Index layer, int place) { return static_cast<std::uint32_t>(1 + 3 * layer + place); }

void declare_norm(std::vector<ParamSpec>& specs, const std::string& name, Index hidden, const comm::Group& tp) {
  specs.push_back(replicated(name + ".weight", {hidden}, tp, Init::ones));
  specs.push_back(replicated(name + ".bias", {hidden}, tp, Init::zeros));
}

/// The gradient before a dropout: dout itself where nothing is dropped.
Tensor through_dropout(Exec& ex, const Microbatch& microbatch, const DropoutSite& dropout, const Tensor& dout) {
  if (dropout.probability == 0) return dout;
  Tensor dx = ex.tensor(dout.shape(), dout.dtype());
  ops::dropout_backward(ex, {.dout = dout, .dx = dx, .dropout = dropout.in(microbatch)});
  return dx;
}

LayerNorm make_norm(const std::string& name, ParamBuffer& params, double eps) {
  return {params.at(name + ".weight"), params.at(name + ".bias"), eps};
}

}  // namespace

void TransformerBlock::declare(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                               const comm::Group& tp) {
  declare_norm(specs, name + ".norm1", config.hidden_size, tp);
  SelfAttention::declare(specs, name + ".attention", config, tp);
  declare_norm(specs, name + ".norm2", config.hidden_size, tp);
  Mlp::declare(specs, name + ".mlp", config, tp);
}

TransformerBlock::TransformerBlock(const std::string& name, Index layer, const BlockConfig& config,
                                   const comm::Group& tp, ParamBuffer& params)
    : norm1_(make_norm(name + ".norm1", params, config.norm_eps)),
      attention_(name + ".attention", config, tp, params, site(layer, 0)),
      norm2_(make_norm(name + ".norm2", params, config.norm_eps)),
      mlp_(name + ".mlp", tp, params),
      attention_dropout_{config.dropout, config.seed, site(layer, 1)},
      mlp_dropout_{config.dropout, config.seed, site(layer, 2)} {}

void TransformerBlock::forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& y,
                               Saved& saved) const {
  attend(ex, microbatch, x, saved).wait(ex);
  mix(ex, microbatch, x, saved).wait(ex);
  add_up(ex, microbatch, y, saved);
}

comm::Pending TransformerBlock::attend(Exec& ex, const Microbatch& microbatch, const Tensor& x, Saved& saved) const {
  const Tensor normed = norm1_.forward(ex, x, saved.norm1, microbatch.part);
  return attention_.forward(ex, microbatch, normed, saved.attention);
}

comm::Pending TransformerBlock::mix(Exec& ex, const Microbatch& microbatch, const Tensor& x, Saved& saved) const {
  const Tensor normed = norm2_.forward_residual(ex, saved.attention.out.y, attention_.out_bias(), x,
                                                attention_dropout_.in(microbatch), saved.norm2, microbatch.part);
  return mlp_.forward(ex, normed, saved.mlp, microbatch.part);
}

void TransformerBlock::add_up(Exec& ex, const Microbatch& microbatch, const Tensor& y, const Saved& saved) const {
  const Part& part = microbatch.part;
  ops::bias_dropout_residual(ex, {.x = part.of(saved.mlp.down.y),
                                  .bias = mlp_.out_bias(),
                                  .residual = part.of(saved.norm2.x),
                                  .out = part.of(y),
                                  .dropout = mlp_dropout_.in(microbatch)});
}

void TransformerBlock::backward(Exec& ex, const Microbatch& microbatch, const Tensor& dy, const Saved& saved,
                                const Tensor& dx) const {
  const Tensor d_mixed = through_dropout(ex, microbatch, mlp_dropout_, dy);
  const Tensor d_norm2 = ex.tensor(dy.shape(), dy.dtype());
  mlp_.backward(ex, d_mixed, saved.mlp, d_norm2, microbatch.weight_grads);
  const Tensor da = ex.tensor(dy.shape(), dy.dtype());
  norm2_.backward(ex, d_norm2, saved.norm2, dy, da);

  const Tensor d_attended = through_dropout(ex, microbatch, attention_dropout_, da);
  const Tensor d_norm1 = ex.tensor(dy.shape(), dy.dtype());
  attention_.backward(ex, microbatch, d_attended, saved.attention, d_norm1);
  norm1_.backward(ex, d_norm1, saved.norm1, da, dx);
}

}  // namespace megalith::nn
