#pragma once
#include <array>

#include "megalith/comm/group.h"
#include "megalith/optim/optimizer.h"
#include "megalith/tensor/param.h"

namespace megalith::train {

/// The flat state that the ranks of dp have in common (master values and moments), whole, where the host reads and
/// writes it: in place on the CPU unless the optimizer is sharded, else in a copy of 3 numel() elements of host memory,
/// taken when it is first needed.
class HostState {
 public:
  /// That pull() and reserve() take on a rank.
  static Index copy_bytes(Device device, const ParamBuffer& params, const comm::Group& dp);

  HostState(Exec& ex, const ParamBuffer& params, const optim::Optimizer& optimizer, comm::Group dp);

  /// Takes the copy's memory where pull() will need it. Throws IoError where the host has none left.
  void reserve() {
    if (dp_.rank() == 0) held(0);
  }
  /// The copy of the first rank of dp becomes what is on the devices; waits for all ops before. With a sharded
  /// optimizer all ranks of dp come together: one flat tensor after the other is gathered into the gradients, which are
  /// lost, so that a device needs no more memory. Communicates 3 (n-1)/n numel() elements.
  void pull();
  /// What this rank's optimizer updates becomes what the copy says.
  void push();

  const Tensor& masters() { return held(0); }
  const Tensor& m() { return held(1); }
  const Tensor& v() { return held(2); }

 private:
  static bool is_in_place(Device device, const ParamBuffer& params) {
    return device == Device::cpu && !params.is_sharded();
  }
  bool in_place() const { return is_in_place(ex_.device(), params_); }
  /// The i-th of the three on the device, of the elements of own_ranges().
  Tensor on_device(std::size_t i, const OwnRange& range) const;
  const Tensor& held(std::size_t i);
  void gather(std::size_t i);

  Exec& ex_;
  const ParamBuffer& params_;
  comm::Group dp_;
  std::array<Tensor, 3> on_device_, whole_;
  Buffer memory_;
};

}  // namespace megalith::train
