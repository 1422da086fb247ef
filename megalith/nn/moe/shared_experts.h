#pragma once
#include <memory>
#include <string>
#include <vector>

#include "megalith/nn/moe/expert_parallel.h"
#include "megalith/nn/sublayer_spec.h"

namespace megalith::nn {

/// An MLP of the dense grid that every token passes, in addition to its experts. With a gate its result is multiplied
/// by sigmoid(x w^T), one number a token. Communication as that of any MLP over tp.
class SharedExperts {
 public:
  struct Saved {
    std::unique_ptr<Sublayer::Saved> mlp;
    Tensor x;         ///< [O, H], alive until backward has read it
    Tensor gate;      ///< [O, 1] before the sigmoid
    Tensor d_shared;  ///< [O, H]
    Tensor d_gate;    ///< [O, 1]
  };
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const MoeSpec& spec,
                      const StreamSpec& stream, const TensorParallel& tp);
  SharedExperts(const std::string& name, const MoeSpec& spec, const SublayerOptions& options, const TensorParallel& tp,
                ParamSet& params);
  Saved make_saved() const { return {mlp_->make_saved(), {}, {}, {}, {}}; }

  /// Starts to gather x [O, H]. Wait before forward().
  InFlight gather(Exec& ex, const Microbatch& microbatch, const Tensor& x, Saved& saved) const;
  void forward(Exec& ex, const Microbatch& microbatch, Saved& saved) const;
  /// y [O, H] = routed + the (gated) result. y may be routed.
  void add_to(Exec& ex, const Tensor& routed, const Tensor& y, const Saved& saved) const;
  /// From dy [O, H] of add_to(). dx [O, H] is overwritten.
  void backward(Exec& ex, const Microbatch& microbatch, const Tensor& dy, const Tensor& dx, Saved& saved) const;
  void set_input(const Tensor& x, Saved& saved) const;

 private:
  std::unique_ptr<Sublayer> mlp_;
  std::vector<BackwardStage> backward_stages_;  // of mlp_, in their order
  Param* gate_;                                 // [1, H]; null: none
};

}  // namespace megalith::nn
