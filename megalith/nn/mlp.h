#pragma once
#include <string>
#include <vector>

#include "megalith/nn/block_config.h"
#include "megalith/nn/linear.h"

namespace megalith::nn {

/// down(gelu(up(x))): x [T, H] -> [T, F/tp] -> y [T, H], before the bias of `down`. The first product is split by
/// output features because gelu of a sum is not the sum of gelus. One all-reduce forward, one backward. Source: Shoeybi
/// et al. 2019, arXiv:1909.08053, section 3.
class Mlp {
 public:
  struct Saved {
    ColumnParallelLinear::Saved up;
    RowParallelLinear::Saved down;  ///< its x is gelu(up.y) [T, F/tp], its y the result
  };
  static void declare(std::vector<ParamSpec>& specs, const std::string& name, const BlockConfig& config,
                      const comm::Group& tp);
  Mlp(const std::string& name, const comm::Group& tp, ParamBuffer& params);

  /// Wait for the result before saved.down.y is read.
  [[nodiscard]] comm::Pending forward(Exec& ex, const Tensor& x, Saved& saved, const Part& part) const;
  /// dy [T, H] -> dx [T, H] (overwritten); adds to the weights' gradients.
  void backward(Exec& ex, const Tensor& dy, const Saved& saved, const Tensor& dx, ops::Write write) const;
  const Tensor& out_bias() const { return down_.bias(); }

 private:
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

}  // namespace megalith::nn
