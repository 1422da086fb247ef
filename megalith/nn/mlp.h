#pragma once
#include <string>
#include <vector>

#include "megalith/nn/block_config.h"
#include "megalith/nn/linear.h"

namespace megalith::nn {

/// down(gelu(up(x))): x [O, H] -> [T, F/tp] -> y [O, H], before the bias of `down`; O rows of T as in linear.h. The
/// first product is split by output features because gelu of a sum is not the sum of gelus. One region of
/// TensorParallel. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
class Mlp {
 public:
  struct Saved {
    ColumnParallelLinear::Saved up;
    RowParallelLinear::Saved down;  ///< its x is gelu(up.y) [T, F/tp], its y the result
  };
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                      const comm::Group& tp);
  Mlp(const std::string& name, const TensorParallel& tp, ParamBuffer& params);

  // Forward, in three steps; wait for what a step returns before the part's next one.
  InFlight enter(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const {
    return up_.enter(ex, x, saved.up, part);
  }
  void work(Exec& ex, Saved& saved, const Part& part) const { up_.forward_gelu(ex, saved.down.x, saved.up, part); }
  InFlight leave(Exec& ex, Saved& saved, const Part& part) const {
    return down_.forward(ex, saved.down.x, saved.down, part);
  }

  // Backward, in three steps: what is read of all rows enters; dy [O, H] -> dx [O, H] (overwritten), with the weight
  // gradients but the one that hides the entering of the region that comes next; that one.
  [[nodiscard]] EnteredBackward enter_backward(Exec& ex, const SummedGrad& dy, const Saved& saved) const {
    return {down_.enter_backward(ex, dy.grad), up_.enter_backward(ex, saved.up), static_cast<bool>(dy.row_sums)};
  }
  void backward(Exec& ex, EnteredBackward& entered, const Saved& saved, const Tensor& dx, ops::Write write) const;
  void finish_backward(Exec& ex, const EnteredBackward& entered, const Saved& saved, ops::Write write) const;
  const Tensor& out_bias() const { return down_.bias(); }
  const Tensor& out_bias_grad() const { return down_.bias_grad(); }

 private:
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

}  // namespace megalith::nn
