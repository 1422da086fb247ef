#pragma once
#include <array>

#include "megalith/optim/optimizer.h"
#include "megalith/tensor/param.h"

namespace megalith::train {

/// The flat state of one rank (master values and moments) where the host reads and writes it: in place on the CPU, else
/// in a copy, which takes as much host memory as they take on the device.
class HostState {
 public:
  HostState(Exec& ex, const ParamBuffer& params, const optim::Optimizer& optimizer);

  /// The copy becomes what is on the device; waits for all ops before.
  void pull();
  /// And the other way round.
  void push();

  const Tensor& masters() const { return flat_[0]; }
  const Tensor& m() const { return flat_[1]; }
  const Tensor& v() const { return flat_[2]; }

 private:
  Exec& ex_;
  std::array<Tensor, 3> on_device_, flat_;
  Buffer memory_;
};

}  // namespace megalith::train
