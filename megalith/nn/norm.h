#pragma once
#include <string>
#include <vector>

#include "megalith/nn/layer_kinds.h"
#include "megalith/nn/linear.h"
#include "megalith/ops/norm.h"

namespace megalith::nn {

/// A norm of the residual stream.
struct NormSpec {
  std::string name;  ///< prefix of its parameters
  double eps = 1e-5;
  NormKind kind = NormKind::layer;
};

/// A layer norm or an RMS norm over the hidden size, outside tensor-parallel regions: on every tp rank on all rows, or
/// on its share of them; its gradients are then sums over that share. x, y [T, H], T the rows that the rank holds.
class Norm {
 public:
  struct Saved {
    Tensor x, mean, rstd;  ///< [T, H], [T] of a layer norm, [T]
    Tensor y;              ///< [T, H], the result
    Tensor out = {};       ///< the memory for y; undefined: new
  };
  /// Appends name.weight and, of a layer norm, name.bias, the same on all tp ranks.
  static void declare(std::vector<ParamSpec>& specs, const NormSpec& spec, Index hidden_size, const TensorParallel& tp);
  /// With the parameters that declare() has named.
  Norm(const NormSpec& spec, ParamSet& params);

  Tensor forward(Exec& ex, const Tensor& x, Saved& saved, const SubBatch& sub_batch = {}) const;
  /// The residual sum and the norm in one pass: saved.x = residual + dropout(x + bias), in memory of the caller's; bias
  /// may be undefined.
  Tensor forward_residual(Exec& ex, const Tensor& x, const Tensor& bias, const Tensor& residual,
                          const ops::Dropout& dropout, Saved& saved, const SubBatch& sub_batch) const;
  /// dx [T, H] = gradient through the norm + residual (the gradient that flows past it; may be undefined). Adds to the
  /// gradients of gain and shift in the same pass, and to dx.bias_grad.
  void backward(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& residual, const GradWithBias& dx) const;

  /// The same where the gradient of y is dy + more_dy, and none flows past the norm.
  void backward_of_sum(Exec& ex, const Tensor& dy, const Tensor& more_dy, const Saved& saved,
                       const GradWithBias& dx) const;

 private:
  ops::NormBackward backward_args(const Tensor& dy, const Saved& saved, const GradWithBias& dx) const;
  void make_results(Exec& ex, const Shape& shape, DType dtype, Saved& saved, const SubBatch& sub_batch) const;
  bool is_rms() const { return beta_ == nullptr; }

  Param* gamma_;  // [H]
  Param* beta_;   // [H]; null: an RMS norm
  double eps_;
};

}  // namespace megalith::nn
