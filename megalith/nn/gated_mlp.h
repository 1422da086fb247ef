#pragma once
#include <string>

#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// down(silu(gate(x)) * up(x)): x [O, H] -> gate and up [T, F/tp, 2] by one GEMM -> [T, F/tp] -> y [O, H], before the
/// bias of `down`; O rows of T as in linear.h. The weight `up` [F, 2, H] holds gate and up of one ffn unit side by
/// side, so that a rank's share of units is one box. Source: Shazeer 2020, arXiv:2002.05202.
class GatedMlp final : public TensorParallelSublayer {
 public:
  /// With the parameters that Mlp::declare() has named.
  GatedMlp(const std::string& name, const SublayerOptions& options, const TensorParallel& tp, ParamSet& params);
  /// Its first.y is gate and up [T, 2F/tp]; its last.x is after the activation.
  std::unique_ptr<Sublayer::Saved> make_saved() const override { return std::make_unique<Saved>(); }

 private:
  void first_gemm(Exec& ex, const Microbatch& microbatch, Saved& saved) const override;
  void local_work(Exec&, const Microbatch&, Saved&) const override {}  // a recomputed range stops before this
  void activate(Exec& ex, const Microbatch& microbatch, Saved& saved) const;
  FirstGrad backward_to_first(Exec& ex, const Microbatch& microbatch, Saved& saved) const override;

  bool activation_again_, first_gemm_again_;
};

}  // namespace megalith::nn
