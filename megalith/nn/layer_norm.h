#pragma once
#include <string>
#include <vector>

#include "megalith/nn/linear.h"

namespace megalith::nn {

/// Layer normalisation over the hidden size, outside tensor-parallel regions. Every tp rank computes all rows, or with
/// sequence parallelism its share of them; then its gradients are sums over these rows only. x, y [T, H], with T the
/// rows that the rank holds.
class LayerNorm {
 public:
  struct Saved {
    Tensor x, mean, rstd;  ///< [T, H], [T], [T]
    Tensor y;              ///< [T, H], the result
  };
  /// Appends name.weight and name.bias, the same on all tp ranks.
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, Index hidden_size,
                      const TensorParallel& tp);
  /// With the parameters that declare() has named.
  static LayerNorm of(ParamSet& params, const std::string& name, double eps) {
    return {params.at(name + ".weight"), params.at(name + ".bias"), eps};
  }
  LayerNorm(Param& gamma, Param& beta, double eps) : gamma_(gamma), beta_(beta), eps_(eps) {}

  Tensor forward(Exec& ex, const Tensor& x, Saved& saved, const SubBatch& sub_batch = {}) const;
  /// The norm of sum = residual + dropout(x + bias). The sum is written to saved.x, which the caller allocates: one
  /// pass for the end of a region and the norm of the next.
  Tensor forward_residual(Exec& ex, const Tensor& x, const Tensor& bias, const Tensor& residual,
                          const ops::Dropout& dropout, Saved& saved, const SubBatch& sub_batch) const;
  /// dx [T, H] = gradient through the norm + residual, the gradient that flows past the norm (may be undefined). The
  /// same pass adds to the gradients of gain and shift, and to dx.bias_grad.
  void backward(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& residual, const GradWithBias& dx) const;

 private:
  static void make_results(Exec& ex, const Shape& shape, DType dtype, Saved& saved, const SubBatch& sub_batch);

  Param& gamma_;  // [H]
  Param& beta_;   // [H]
  double eps_;
};

}  // namespace megalith::nn
