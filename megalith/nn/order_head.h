#pragma once
#include "megalith/nn/head_results.h"
#include "megalith/nn/microbatch.h"
#include "megalith/nn/replicated_linear.h"
#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// The class of a sample's two segments (in their order, or not), from the row of its first token: logits = W2 tanh(W1
/// x + b1) + b2. Whole on each rank of `tp`, as ReplicatedLinear. Source: Devlin et al. 2019, arXiv:1810.04805, section
/// 3.1.
class OrderHead {
 public:
  static constexpr Index kClasses = 2;
  struct Saved {
    Tensor x, pooled;  ///< [B, H]: input, tanh
    Tensor d_logits;   ///< [B, 2]; after forward the gradient, times the loss scale
  };
  /// Appends pooler.* and order.*, with `name` in front.
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const StreamSpec& stream,
                      const comm::Group& tp);
  OrderHead(const std::string& name, ParamSet& params);

  struct Inputs {
    Tensor labels;  ///< [B] i32, -1: no loss
    Tensor state;   ///< u8 [sizeof(StepState)], with the scale of the loss; undefined in an evaluation
    Tensor sums;    ///< [2] f64, to which are added: the losses, the samples whose likelier class is the label
  };
  /// x [B, H].
  void forward(Exec& ex, const Tensor& x, const Inputs& inputs, Saved& saved) const;
  /// Overwrites label_losses, class_logits and pooled of the results, where they are defined. inputs.sums [1] f64: work
  /// space.
  void infer(Exec& ex, const Tensor& x, const Inputs& inputs, const HeadResults& results) const;
  /// Overwrites dx [B, H]. Adds to the gradients of all parameters; `write` as Microbatch::weight_grads.
  void backward(Exec& ex, const Saved& saved, const Tensor& dx, ops::Write write) const;

 private:
  Tensor pool(Exec& ex, const Tensor& x) const;

  ReplicatedLinear pooler_, classes_;
};

}  // namespace megalith::nn
