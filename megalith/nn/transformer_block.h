#pragma once
#include <string>
#include <vector>

#include "megalith/nn/layer_norm.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/self_attention.h"

namespace megalith::nn {

/// One pre-LN Transformer layer:  a = x + drop(attention(norm1(x)));  y = a + drop(mlp(norm2(a))).
/// Norms, dropouts and residual sums run on every tp rank on the full vector: cheaper than to broadcast them.
/// Communicates 4 all-reduces of T*H elements over tp: two forward, two backward.
/// Source: Radford et al. 2019 (GPT-2); Shoeybi et al. 2019, arXiv:1909.08053, section 3.
class TransformerBlock {
 public:
  struct Saved {
    LayerNorm::Saved norm1, norm2;
    SelfAttention::Saved attention;
    Mlp::Saved mlp;
  };
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                      const comm::Group& tp);
  /// `layer`: global number, from which the dropouts' random sites follow.
  TransformerBlock(const std::string& name, Index layer, const BlockConfig& config, const comm::Group& tp,
                   ParamBuffer& params);

  /// x [T, H] must stay until backward; y [T, H] is written, and is not x.
  void forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& y, Saved& saved) const;

  // The same in three steps, for a part of the microbatch at a time. Between them the all-reduces of the steps before
  // are in flight: wait for what a step returns before that part's next one.
  [[nodiscard]] comm::Pending attend(Exec& ex, const Microbatch& microbatch, const Tensor& x, Saved& saved) const;
  [[nodiscard]] comm::Pending mix(Exec& ex, const Microbatch& microbatch, const Tensor& x, Saved& saved) const;
  void add_up(Exec& ex, const Microbatch& microbatch, const Tensor& y, const Saved& saved) const;

  /// dx [T, H] is written, and is not dy.
  void backward(Exec& ex, const Microbatch& microbatch, const Tensor& dy, const Saved& saved, const Tensor& dx) const;

 private:
  LayerNorm norm1_;
  SelfAttention attention_;
  LayerNorm norm2_;
  Mlp mlp_;
  DropoutSite attention_dropout_, mlp_dropout_;
};

}  // namespace megalith::nn
