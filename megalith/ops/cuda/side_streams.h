#pragma once
#include <array>
#include <cstddef>

#include "megalith/tensor/device.h"

namespace megalith::ops::cuda {

/// Additional streams of an Exec, for an op of many kernels that each do not fill the GPU. Between fork() and join()
/// the op's kernels run in any of them. They start after the work that the Exec's stream holds at fork(). Work that
/// enters that stream after join() starts after all of them. tensor/stream_budget.h counts these streams.
class SideStreams {
 public:
  /// The Exec's own stream among them.
  static constexpr std::size_t kCount = 4;

  void fork(Stream own);
  /// 0: the Exec's own.
  Stream at(std::size_t lane);
  void join();

 private:
  struct Side {
    OwnedStream stream;
    Event end;
    bool used = false;  ///< since fork()
  };
  Side& side(std::size_t lane) { return sides_[lane - 1]; }

  Stream own_;
  Event start_{Device::cuda};
  std::array<Side, kCount - 1> sides_;
};

inline void SideStreams::fork(Stream own) {
  own_ = own;
  start_.record(own);
  for (Side& side : sides_) side.used = false;
}

inline Stream SideStreams::at(std::size_t lane) {
  if (lane == 0) return own_;
  Side& taken = side(lane);
  if (taken.stream.get().handle == nullptr) taken = {OwnedStream(Device::cuda), Event(Device::cuda), false};
  if (!taken.used) start_.hold(taken.stream.get());
  taken.used = true;
  return taken.stream.get();
}

inline void SideStreams::join() {
  for (Side& taken : sides_) {
    if (!taken.used) continue;
    taken.end.record(taken.stream.get());
    taken.end.hold(own_);
  }
}

}  // namespace megalith::ops::cuda
