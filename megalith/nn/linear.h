#pragma once
#include "megalith/comm/group.h"
#include "megalith/nn/microbatch.h"
#include "megalith/tensor/param.h"

namespace megalith::nn {

/// Y = X W^T + b, W split by output features over `tp`. x [T, in] -> y [T, out/tp]. Between a column-parallel and a
/// row-parallel layer only element-wise or per-head work may stand. Source: Shoeybi et al. 2019, arXiv:1909.08053,
/// section 3 (f: identity forward, all-reduce backward).
class ColumnParallelLinear {
 public:
  struct Saved {
    Tensor x;  ///< [T, in], alive until backward has read it
    Tensor y;  ///< [T, out/tp], the result; of forward_gelu: before gelu
  };
  ColumnParallelLinear(comm::Group tp, Param& weight, Param& bias) : tp_(std::move(tp)), weight_(weight), bias_(bias) {}

  Tensor forward(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const;
  /// The same followed by gelu, in one op: the result goes to gelu_y [T, out/tp]; saved.y is what gelu's backward
  /// reads.
  void forward_gelu(Exec& ex, const Tensor& x, Tensor& gelu_y, Saved& saved, const Part& part) const;
  /// Overwrites dx [T, in]. Wait for the result before dx is read; backward_weight and what else follows hide the
  /// all-reduce of T*in elements.
  [[nodiscard]] comm::Pending backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const;
  /// Adds to the gradients of weight and bias; Write::overwrite replaces the weight's. dy [T, out/tp]
  void backward_weight(Exec& ex, const Tensor& dy, const Saved& saved, ops::Write write) const;
  /// To the weight's only: where bias_grad() was added to by the op that made dy.
  void backward_weight_without_bias(Exec& ex, const Tensor& dy, const Saved& saved, ops::Write write) const;
  const Tensor& bias_grad() const { return bias_.grad; }
  /// Whether backward_input() communicates.
  bool sums_input_grads() const { return tp_.size() > 1; }

 private:
  comm::Group tp_;
  Param& weight_;  // value, grad: [out/tp, in]
  Param& bias_;    // [out/tp]
};

/// Y = sum over tp of X_i W_i^T, W split by input features. x [T, in/tp] -> y [T, out], the same on all tp ranks. The
/// bias is full on every rank and added once, after the reduction, by the op that follows. Source: as above (g:
/// all-reduce forward, identity backward).
class RowParallelLinear {
 public:
  struct Saved {
    Tensor x;  ///< [T, in/tp]
    Tensor y;  ///< [T, out], the result
  };
  RowParallelLinear(comm::Group tp, Param& weight, Param& bias) : tp_(std::move(tp)), weight_(weight), bias_(bias) {}

  /// Wait for the result before saved.y is read: an all-reduce of T*out elements.
  [[nodiscard]] comm::Pending forward(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const;
  /// Overwrites dx [T, in/tp]; no communication. dy [T, out]
  void backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const;
  /// The same and back through the gelu that made x from z, in one op: overwrites dz [T, in/tp] and adds the sum of its
  /// rows to bias_grad [in/tp], the bias of the layer before.
  void backward_input_gelu(Exec& ex, const Tensor& dy, const Tensor& z, const Tensor& dz,
                           const Tensor& bias_grad) const;
  void backward_weight(Exec& ex, const Tensor& dy, const Saved& saved, ops::Write write) const;
  const Tensor& bias() const { return bias_.value; }

 private:
  comm::Group tp_;
  Param& weight_;  // [out, in/tp]
  Param& bias_;    // [out]
};

}  // namespace megalith::nn
