#pragma once
#include <string>
#include <vector>

#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// The results of Mlp.
struct MlpState : RegionState {
  Tensor up;           ///< [T, F/tp], before GELU
  Tensor activated;    ///< [T, F/tp]; undefined where GEMMs read its FP8 operands alone
  Tensor d_activated;  ///< [T, F/tp], with FP8 operands
};

/// down(gelu(up(x))): x [O, H] -> [T, F/tp] -> y [O, H], before the bias of `down`. O rows of T as in linear.h. The
/// first GEMM is split by output features because GELU of a sum is not the sum of GELUs.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
class Mlp final : public TensorParallelSublayer<MlpState> {
 public:
  /// Appends the parameters `name`.up.* and `name`.down.*, also those of a GatedMlp, whose `up` has two rows a unit.
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const MlpSpec& spec,
                      const StreamSpec& stream, const comm::Group& tp);
  Mlp(const std::string& name, ops::GeluForm gelu, const SublayerOptions& options, const TensorParallel& tp,
      ParamSet& params);

 private:
  // GELU is part of the ops of both GEMMs, so there is no local work, except with FP8 operands.
  void first_gemm(Exec& ex, const Microbatch& microbatch, const Tensor& x, MlpState& saved,
                  const FirstGemm& pass) const override;
  const Tensor& last_input(const MlpState& saved) const override { return saved.activated; }
  void last_input_grad(Exec& ex, const Microbatch& microbatch, MlpState& saved) const override;
  void local_work_grad(Exec& ex, const Microbatch& microbatch, MlpState& saved) const override;
  BiasGrad first_bias_grad() const override { return BiasGrad::added; }
  ops::Activation activation() const {
    return gelu_ == ops::GeluForm::erf ? ops::Activation::gelu_erf : ops::Activation::gelu;
  }

  ops::GeluForm gelu_;
  bool recomputes_gelu_, recomputes_first_gemm_;
};

}  // namespace megalith::nn
