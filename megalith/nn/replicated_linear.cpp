#include "megalith/nn/replicated_linear.h"

#include "megalith/nn/param_specs.h"
#include "megalith/ops/elementwise.h"

namespace megalith::nn {

void ReplicatedLinear::declare(std::vector<ParamSpec>& specs, const std::string& name, const Sizes& sizes,
                               const comm::Group& tp, double init_std) {
  specs.push_back(replicated(name + ".weight", {sizes.out, sizes.in}, tp, Init::normal, init_std));
  specs.back().first_grad = FirstGrad::overwritten;
  if (sizes.has_bias) specs.push_back(replicated(name + ".bias", {sizes.out}, tp, Init::zeros));
}

ReplicatedLinear::ReplicatedLinear(const std::string& name, ParamSet& params)
    : weight_(params.at(name + ".weight")), bias_(params.find(name + ".bias")) {}

Tensor ReplicatedLinear::multiply(Exec& ex, const Tensor& x) const {
  Tensor y = ex.tensor({x.dim(0), weight_.value.dim(0)}, x.dtype());
  ops::matmul(ex, {.a = x, .b = weight_.value, .c = y, .transpose_b = ops::Transpose::yes});
  return y;
}

Tensor ReplicatedLinear::forward(Exec& ex, const Tensor& x) const {
  Tensor y = multiply(ex, x);
  if (bias_ != nullptr) ops::add_bias(ex, y, bias_->value);
  return y;
}

void ReplicatedLinear::backward_weight(Exec& ex, const Tensor& dy, const Tensor& x, ops::Write write) const {
  ops::matmul(ex, {.a = dy, .b = x, .c = weight_.grad, .transpose_a = ops::Transpose::yes, .write = write});
  if (bias_ != nullptr) ops::bias_backward(ex, dy, bias_->grad);
}

void ReplicatedLinear::backward_input(Exec& ex, const Tensor& dy, const Tensor& dx) const {
  ops::matmul(ex, {.a = dy, .b = weight_.value, .c = dx});
}

}  // namespace megalith::nn
