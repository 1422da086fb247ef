#pragma once
#include "megalith/ops/masters.h"
#include "megalith/params/policy.h"

namespace megalith::train {

/// Host memory through which values of a device pass, block by block. On GPUs 64 MiB, taken at the first use. The CPU
/// works on tensors in place; it takes memory for split masters only, at most as much.
class HostStaging {
 public:
  static constexpr Index kBytes = Index{64} << 20;
  /// Bytes that a rank takes at most.
  static Index bytes(Device device, const Policy& policy) {
    return device == Device::cpu && !policy.splits_masters() ? 0 : kBytes;
  }

  /// Elements [first, first + count) of what a device holds, at most kBytes, valid until the next call. Waits for
  /// all earlier ops. Throws IoError if the host has no memory left.
  Tensor read(Exec& ex, const MasterValues& values, Index first, Index count) {
    const MasterValues part = values.rows(first, count);
    if (is_in_place(ex, part)) return part.whole;
    const Tensor host = on_host(ex.device(), part);
    if (part.is_split())
      ops::read_masters(ex, part, host);
    else
      ex.copy(host.raw(), part.whole.raw(), host.bytes());
    ex.synchronize();
    return host;
  }
  Tensor read(Exec& ex, const Tensor& tensor, Index first, Index count) {
    return read(ex, MasterValues{.whole = tensor}, first, count);
  }
  /// fill(host tensor) writes the new values of the same elements. A copy of whole values is not written.
  template <class Fill>
  void write(Exec& ex, const MasterValues& values, Index first, Index count, Fill&& fill) {
    const MasterValues part = values.rows(first, count);
    if (is_in_place(ex, part)) return fill(part.whole);
    const Tensor host = on_host(ex.device(), part);
    fill(host);
    if (part.is_split())
      ops::write_masters(ex, host, part);
    else
      ex.copy(part.whole.raw(), host.raw(), host.bytes());
    ex.synchronize();
  }

 private:
  static bool is_in_place(const Exec& ex, const MasterValues& part) {
    return ex.device() == Device::cpu && !part.is_split();
  }
  Tensor on_host(Device device, const MasterValues& part) {
    const Index needed = device == Device::cpu ? part.whole_bytes() : kBytes;
    if (memory_.bytes() < needed) memory_ = Buffer(needed, device, Side::host);
    return memory_.view({part.numel()}, part.dtype());
  }

  Buffer memory_;
};

}  // namespace megalith::train
