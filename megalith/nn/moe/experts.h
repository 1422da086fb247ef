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
class Experts {
 public:
  struct Saved {
    ExpertRows in;     ///< the rows, until backward has read them
    Tensor up;         ///< [M, 2F/etp], or [M, F/etp] without a gate
    Tensor activated;  ///< [M, F/etp]
  };
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                      const StreamSpec& stream, const ExpertParallel& experts);
  Experts(const std::string& name, const MoeSpec& spec, const SublayerOptions& options, ParamSet& params);

  /// saved.in -> the results [M, H] of this rank's slices.
  Tensor forward(Exec& ex, Saved& saved) const;
  /// dy: the gradient of the results. Adds to the weights' gradients; returns the gradient of saved.in.
  Tensor backward(Exec& ex, const Tensor& dy, ops::Write weight_grads, Saved& saved) const;

 private:
  void first_gemm(Exec& ex, Saved& saved) const;
  void activate(Exec& ex, Saved& saved) const;
  void activate_backward(Exec& ex, const Saved& saved, const Tensor& d_activated, const Tensor& d_up) const;

  Activation activation_;
  bool recomputes_activation_, recomputes_first_gemm_;
  Param &up_, &down_;
};

}  // namespace megalith::nn
