#pragma once
#include "megalith/comm/group.h"
#include "megalith/tensor/param.h"

namespace megalith::nn {

/// Y = X W^T, W split by output features over `tp`. x [T, in] -> y [T, out/tp]. The bias is added by the op that
/// follows, which is fused with it. Between a column-parallel and a row-parallel layer only element-wise or per-head
/// work may stand. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3 (f: identity forward, all-reduce backward).
class ColumnParallelLinear {
 public:
  struct Saved {
    Tensor x;  ///< [T, in], alive until backward has read it
  };
  ColumnParallelLinear(comm::Group tp, Param& weight, Param& bias) : tp_(std::move(tp)), weight_(weight), bias_(bias) {}

  Tensor forward(Exec& ex, const Tensor& x, Saved& saved) const;
  /// Overwrites dx [T, in]. Wait for the result before dx is read; backward_weight hides the all-reduce of T*in
  /// elements.
  [[nodiscard]] comm::Pending backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const;
  /// Adds to the gradients of weight and bias. dy [T, out/tp]
  void backward_weight(Exec& ex, const Tensor& dy, const Saved& saved) const;
  const Tensor& bias() const { return bias_.value; }

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
  void backward_weight(Exec& ex, const Tensor& dy, const Saved& saved) const;
  const Tensor& bias() const { return bias_.value; }

 private:
  comm::Group tp_;
  Param& weight_;  // [out, in/tp]
  Param& bias_;    // [out]
};

}  // namespace megalith::nn
