#pragma once
#include <string>
#include <vector>

#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// down(gelu(up(x))): x [O, H] -> [T, F/tp] -> y [O, H], before the bias of `down`. O rows of T as in linear.h. The
/// first GEMM is split by output features because GELU of a sum is not the sum of GELUs.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
class Mlp final : public TensorParallelSublayer {
 public:
  /// Appends the parameters `name`.up.* and `name`.down.*, also those of a GatedMlp, whose `up` has two rows a unit.
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const MlpSpec& spec,
                      const StreamSpec& stream, const comm::Group& tp);
  Mlp(const std::string& name, const SublayerOptions& options, const TensorParallel& tp, ParamSet& params);
  /// Its first.y is the output of `up` [T, F/tp], before GELU; its last.x is after GELU.
  std::unique_ptr<Sublayer::Saved> make_saved() const override { return std::make_unique<Saved>(); }

 private:
  void first_gemm(Exec& ex, const Microbatch& microbatch, Saved& saved) const override;
  void local_work(Exec&, const Microbatch&, Saved&) const override {}  // GELU is part of the first GEMM's op
  FirstGrad backward_to_first(Exec& ex, const Microbatch& microbatch, Saved& saved) const override;

  bool gelu_again_, first_gemm_again_;
};

}  // namespace megalith::nn
