#pragma once
#include <string>
#include <vector>

#include "megalith/nn/layer_norm.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/self_attention.h"

namespace megalith::nn {

/// One pre-LN Transformer layer:  a = x + drop(attention(norm1(x)));  y = a + drop(mlp(norm2(a))).
/// Attention and MLP are a region of TensorParallel each; norms, dropouts and residual sums stand outside, on O = T
/// rows or on their shares. Communicates over tp 4 all-reduces of T*H elements, two forward and two backward; where
/// rows are shared, an all-gather and a reduce-scatter for each, and 2 all-gathers backward of what the norms gave.
/// Source: Radford et al. 2019 (GPT-2); Shoeybi et al. 2019, arXiv:1909.08053, section 3.
class TransformerBlock {
 public:
  enum class Region : std::uint8_t { attention, mlp };
  struct Saved {
    LayerNorm::Saved norm1, norm2;
    SelfAttention::Saved attention;
    Mlp::Saved mlp;
  };
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                      const TensorParallel& tp);
  /// `layer`: global number, from which the dropouts' random sites follow.
  TransformerBlock(const std::string& name, Index layer, const BlockConfig& config, const TensorParallel& tp,
                   ParamBuffer& params);

  /// x [O, H] must stay until backward; y [O, H] is written, and is not x.
  void forward(Exec& ex, const Microbatch& microbatch, const Tensor& x, const Tensor& y, Saved& saved) const;

  // The same in steps, for a part of the microbatch at a time: for each region what stands before it and the rows
  // entering, its first product, the rest of the region and the rows leaving; then the end. What a step returns is in
  // flight: wait for it before that part's next step.
  InFlight enter_attention(Exec& ex, const Microbatch& microbatch, const Tensor& x, Saved& saved) const;
  /// Behind another block, which this ends: in place of its add_up() to x, which is written.
  InFlight enter_attention(Exec& ex, const Microbatch& microbatch, const Tensor& x, const TransformerBlock& before,
                           const Saved& saved_before, Saved& saved) const;
  InFlight enter_mlp(Exec& ex, const Microbatch& microbatch, Saved& saved) const;
  void work(Exec& ex, const Microbatch& microbatch, Region region, Saved& saved) const;
  InFlight leave(Exec& ex, const Microbatch& microbatch, Region region, Saved& saved) const;
  void add_up(Exec& ex, const Microbatch& microbatch, const Tensor& y, const Saved& saved) const;

  /// The row_sums of dy, for the op that makes it: the last bias's gradient. Undefined where that is the sum of
  /// something else: behind a dropout, or over all ranks' rows.
  Tensor dy_sums() const { return row_sums(mlp_dropout_, mlp_.out_bias_grad()); }
  /// What the backward pass reads of all rows enters, before it.
  [[nodiscard]] EnteredBackward enter_backward(Exec& ex, const Microbatch& microbatch, const SummedGrad& dy,
                                               const Saved& saved) const;
  /// dx [O, H] is written, and is not dy; its row_sums are the dy_sums() of the block before. Calls enter_next() once
  /// dx is there, for that block: the last weight gradient hides what that begins.
  template <class EnterNext>
  void backward(Exec& ex, const Microbatch& microbatch, const SummedGrad& dy, EnteredBackward entered,
                const Saved& saved, const SummedGrad& dx, EnterNext&& enter_next) const {
    const SummedGrad da = between(ex.tensor(dy.grad.shape(), dy.grad.dtype()));
    through_mlp(ex, microbatch, dy.grad, entered, saved, da);
    EnteredBackward attention = enter_attention_backward(ex, microbatch, da, saved);
    mlp_.finish_backward(ex, entered, saved.mlp, microbatch.weight_grads);
    through_attention(ex, microbatch, da.grad, attention, saved, dx);
    enter_next();
    attention_.finish_backward(ex, microbatch, attention, saved.attention);
  }
  /// The same of a block by itself.
  void backward(Exec& ex, const Microbatch& microbatch, const SummedGrad& dy, const Saved& saved,
                const SummedGrad& dx) const {
    backward(ex, microbatch, dy, enter_backward(ex, microbatch, dy, saved), saved, dx, [] {});
  }
  // The same in two steps of their own, with da [O, H], the gradient between the regions, in memory of the caller's.
  void backward_mlp(Exec& ex, const Microbatch& microbatch, const SummedGrad& dy, const Saved& saved,
                    const Tensor& da) const;
  void backward_attention(Exec& ex, const Microbatch& microbatch, const Tensor& da, const Saved& saved,
                          const SummedGrad& dx) const;

 private:
  Tensor row_sums(const DropoutSite& behind, const Tensor& bias_grad) const {
    return behind.probability == 0 && !tp_.shares_rows() ? bias_grad : Tensor();
  }
  SummedGrad between(const Tensor& da) const { return {da, row_sums(attention_dropout_, attention_.out_bias_grad())}; }
  SummedGrad through_dropout(Exec& ex, const Microbatch& microbatch, const DropoutSite& site,
                             const SummedGrad& grad) const {
    return {tp_.through_dropout(ex, microbatch, site, grad.grad), grad.row_sums};
  }
  EnteredBackward enter_attention_backward(Exec& ex, const Microbatch& microbatch, const SummedGrad& da,
                                           const Saved& saved) const;
  void through_mlp(Exec& ex, const Microbatch& microbatch, const Tensor& dy, EnteredBackward& entered,
                   const Saved& saved, const SummedGrad& da) const;
  void through_attention(Exec& ex, const Microbatch& microbatch, const Tensor& da, EnteredBackward& entered,
                         const Saved& saved, const SummedGrad& dx) const;

  TensorParallel tp_;
  LayerNorm norm1_;
  SelfAttention attention_;
  LayerNorm norm2_;
  Mlp mlp_;
  DropoutSite attention_dropout_, mlp_dropout_;
};

}  // namespace megalith::nn
