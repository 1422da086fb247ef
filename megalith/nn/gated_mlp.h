#pragma once
#include <string>

#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// The results of GatedMlp.
struct GatedMlpState : RegionState {
  Tensor gate_up;      ///< [T, 2F/tp]
  Tensor activated;    ///< [T, F/tp]; undefined where GEMMs read its FP8 operands alone
  Tensor d_activated;  ///< [T, F/tp], with FP8 operands
};

/// down(silu(gate(x)) * up(x)): x [O, H] -> gate and up [T, F/tp, 2] by one GEMM -> [T, F/tp] -> y [O, H], before the
/// bias of `down`; O rows of T as in linear.h. The weight `up` [F, 2, H] holds gate and up of one ffn unit side by
/// side, so that a rank's share of units is one box. Source: Shazeer 2020, arXiv:2002.05202.
class GatedMlp final : public TensorParallelSublayer<GatedMlpState> {
 public:
  /// With the parameters that Mlp::declare() has named.
  GatedMlp(const std::string& name, const SublayerOptions& options, const TensorParallel& tp, ParamSet& params);

 private:
  // SwiGLU is part of the ops of both GEMMs, as GELU is in Mlp.
  void first_gemm(Exec& ex, const Microbatch& microbatch, const Tensor& x, GatedMlpState& saved,
                  const FirstGemm& pass) const override;
  const Tensor& last_input(const GatedMlpState& saved) const override { return saved.activated; }
  void last_input_grad(Exec& ex, const Microbatch& microbatch, GatedMlpState& saved) const override;
  void local_work_grad(Exec& ex, const Microbatch& microbatch, GatedMlpState& saved) const override;

  bool recomputes_activation_, recomputes_first_gemm_;
};

}  // namespace megalith::nn
