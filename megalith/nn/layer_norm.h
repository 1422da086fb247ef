#pragma once
#include "megalith/tensor/exec.h"
#include "megalith/tensor/param.h"

namespace megalith::nn {

/// Layer normalisation over the hidden size, computed on every tp rank on the full vector. x, y [T, H].
class LayerNorm {
 public:
  struct Saved {
    Tensor x, mean, rstd;  ///< [T, H], [T], [T]
  };
  LayerNorm(Param& gamma, Param& beta, double eps) : gamma_(gamma), beta_(beta), eps_(eps) {}

  Tensor forward(Exec& ex, const Tensor& x, Saved& saved) const;
  /// dx [T, H] = gradient through the norm + residual (the gradient that flows past it; may be undefined).
  void backward_input(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& residual, const Tensor& dx) const;
  void backward_weight(Exec& ex, const Tensor& dy, const Saved& saved) const;

 private:
  Param& gamma_;  // [H]
  Param& beta_;   // [H]
  double eps_;
};

}  // namespace megalith::nn
