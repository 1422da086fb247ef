#pragma once
#include <span>

#include "megalith/comm/group.h"

namespace megalith::nn {

/// The stream on which an Exec copies numbers to the host, beside its ops.
struct HostCopyStream {
  explicit HostCopyStream(Exec& ex) : stream(ex.device()), ready(ex.device()) {}
  OwnedStream stream;
  Event ready;
};

/// Whole numbers of a pass that are copied from the device to the host, which then waits for them.
class HostNumbers {
 public:
  explicit HostNumbers(Index count = 0) : count_(count) {}

  void take_memory(Device device) {
    memory_ = Buffer(bytes_of({count_}, DType::i32), device, Side::host);
    copied_ = Event(device);
  }
  /// Starts to copy `numbers` i32, as many as there is room for. Ops until wait() run beside the copy:
  /// keep_until_here() must come before it where there are such ops.
  void copy(Exec& ex, const Tensor& numbers) {
    if (memory_.bytes() != numbers.bytes()) throw InternalError("[HostNumbers] take_memory() was not called");
    auto& side = ex.backend<HostCopyStream>();
    side.ready.record(ex.stream());
    side.ready.hold(side.stream.get());
    ex.copy(memory_.data(), numbers.raw(), numbers.bytes(), side.stream.get());
    copied_.record(side.stream.get());
  }
  /// An op that reads `numbers`, so that no tensor since copy() has their memory. Also while a pass is recorded.
  static void keep_until_here(Exec& ex, const Tensor& numbers) {
    ex.run({.name = "keep_host_numbers", .reads = {numbers}, .writes = {}}, [](Exec&, Stream) {});
  }
  /// The one place where a pass waits for the device. Throws what ends the group.
  std::span<const std::int32_t> wait(const comm::Group& group) {
    comm::host_wait(group, copied_);
    return {reinterpret_cast<const std::int32_t*>(memory_.data()), static_cast<std::size_t>(count_)};
  }

 private:
  Index count_;
  Buffer memory_;
  Event copied_;
};

}  // namespace megalith::nn
