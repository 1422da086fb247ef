#pragma once
#include <string>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/ops/matmul.h"
#include "megalith/params/param_set.h"

namespace megalith::nn {

/// Y = X W^T + b, whole on every rank of `tp`, which all compute it on the same rows: so values and gradients are equal
/// on them (kReplicated), and nothing is communicated. x [N, in] -> y [N, out]. For small layers of heads.
class ReplicatedLinear {
 public:
  struct Sizes {
    Index in = 0, out = 0;
    bool has_bias = true;
  };
  /// Appends name.weight [out, in] and, with a bias, name.bias [out].
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const Sizes& sizes, const comm::Group& tp,
                      double init_std);
  /// With the parameters that declare() has named.
  ReplicatedLinear(const std::string& name, ParamSet& params);

  /// The product alone, new memory: the op that follows adds the bias.
  Tensor multiply(Exec& ex, const Tensor& x) const;
  Tensor forward(Exec& ex, const Tensor& x) const;
  /// There must be one.
  const Param& bias() const { return *bias_; }
  /// Adds to the gradients of weight and bias; Write::overwrite replaces that of the weight.
  void backward_weight(Exec& ex, const Tensor& dy, const Tensor& x, ops::Write write) const;
  /// Overwrites dx [N, in].
  void backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const;

 private:
  Param& weight_;  // [out, in]
  Param* bias_;    // [out]; null: none
};

}  // namespace megalith::nn
