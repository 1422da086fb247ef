#pragma once
#include "megalith/comm/group.h"
#include "megalith/ops/matmul.h"
#include "megalith/tensor/param.h"

namespace megalith::nn {

/// Y = X W^T + b, W split by output features over `tp`. x [T, in] -> y [T, out/tp]. Between a column-parallel and a
/// row-parallel layer only element-wise or per-head work may stand. Source: Shoeybi et al. 2019, arXiv:1909.08053,
/// section 3 (f: identity forward, all-reduce backward).
class ColumnParallelLinear {
 public:
  struct Saved {
    Tensor x;  ///< [T, in], alive until backward has read it
  };
  ColumnParallelLinear(comm::Group tp, Param& weight, Param& bias) : tp_(std::move(tp)), weight_(weight), bias_(bias) {}

  Tensor forward(Exec& ex, const Tensor& x, Saved& saved) const;
  /// The same followed by gelu, in one op: returns gelu(z); z = x W^T + b is what gelu's backward reads.
  Tensor forward_gelu(Exec& ex, const Tensor& x, Tensor& z, Saved& saved) const;
  /// Overwrites dx [T, in]. Wait for the result before dx is read; backward_weight hides the all-reduce of T*in
  /// elements.
  [[nodiscard]] comm::Pending backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const;
  /// Adds to the gradients of weight and bias; Write::overwrite replaces the weight's. dy [T, out/tp]
  void backward_weight(Exec& ex, const Tensor& dy, const Saved& saved, ops::Write write) const;
  /// To the weight's only: where bias_grad() was added to by the op that made dy.
  void backward_weight_without_bias(Exec& ex, const Tensor& dy, const Saved& saved, ops::Write write) const;
  const Tensor& bias_grad() const { return bias_.grad; }

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
  };
  RowParallelLinear(comm::Group tp, Param& weight, Param& bias) : tp_(std::move(tp)), weight_(weight), bias_(bias) {}

  /// Communicates T*out elements (all-reduce).
  Tensor forward(Exec& ex, const Tensor& x, Saved& saved) const;
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
