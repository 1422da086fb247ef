#pragma once
#include <span>
#include <string>
#include <vector>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// The experts of a rank: E/ep of them, of each the slice of F/etp units. up(x), activation, down, by grouped GEMMs
/// over rows that lie by expert. The weights are global tensors [E, F, 2, H] ([E, F, H] without a gate) and [E, H, F],
/// of which a rank's experts and slices are one box; no biases. They live on the expert grid: gradients are summed over
/// edp. No communication: slices are summed where the rows came from.
/// A pass keeps `up` only; the activation is computed again from it.
class Experts {
 public:
  struct Saved {
    ops::GroupRows groups;
    Tensor up;  ///< [M, 2F/etp], or [M, F/etp] without a gate
  };
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                      const StreamSpec& stream, const ExpertParallel& experts);
  Experts(const std::string& name, const SublayerOptions& options, ParamSet& params);

  /// in.rows -> the results [M, H] of this rank's slices, not weighted.
  Tensor forward(Exec& ex, const ExpertRows& in, Saved& saved) const;
  /// dy: the gradient of the weighted results' sums, unweighted. Adds to the weights' gradients. Returns the gradients
  /// of in.rows, and of this rank's slices those of the weights of rows.
  RowGrads backward(Exec& ex, const Tensor& in, const RowGrads& dy, ops::Write weight_grads, Saved& saved) const;

 private:
  bool recomputes_first_gemm_;
  Param &up_, &down_;
};

}  // namespace megalith::nn
