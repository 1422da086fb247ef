#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::train {

/// Host memory through which tensors of a device are copied, block by block: 64 MiB, taken at the first use. None on
/// the CPU, where the host works on tensors in place.
class HostStaging {
 public:
  static constexpr Index kBytes = Index{64} << 20;
  /// Bytes that a rank takes.
  static Index bytes(Device device) { return device == Device::cpu ? 0 : kBytes; }

  /// Elements [first, first + count) of a tensor of the device, at most kBytes, valid until the next call. Waits for
  /// all earlier ops. Throws IoError if the host has no memory left.
  Tensor read(Exec& ex, const Tensor& tensor, Index first, Index count) {
    const Tensor part = tensor.reshaped({tensor.numel()}).rows(first, count);
    if (ex.device() == Device::cpu) return part;
    const Tensor host = on_host(ex.device(), part);
    ex.copy(host.raw(), part.raw(), part.bytes());
    ex.synchronize();
    return host;
  }
  /// fill(host tensor) writes the new values of the same elements.
  template <class Fill>
  void write(Exec& ex, const Tensor& tensor, Index first, Index count, Fill&& fill) {
    const Tensor part = tensor.reshaped({tensor.numel()}).rows(first, count);
    if (ex.device() == Device::cpu) return fill(part);
    const Tensor host = on_host(ex.device(), part);
    fill(host);
    ex.copy(part.raw(), host.raw(), part.bytes());
    ex.synchronize();
  }

 private:
  Tensor on_host(Device device, const Tensor& part) {
    if (memory_.data() == nullptr) memory_ = Buffer(kBytes, device, Side::host);
    return memory_.view(part.shape(), part.dtype());
  }

  Buffer memory_;
};

}  // namespace megalith::train
