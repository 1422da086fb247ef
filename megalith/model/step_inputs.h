#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "megalith/runtime/exec.h"

namespace megalith::model {

/// The inputs of all microbatches of a step from the host (tokens, step states), at addresses that never change, so
/// that graphs may read them. There is one block of equal size per microbatch. On a GPU they are uploaded on their own
/// stream into a second set while the step before still runs. Only a copy within the GPU remains between two steps.
/// Device memory: two sets on a GPU; one on the CPU, where inputs are written in place.
class StepInputs {
 public:
  StepInputs() = default;
  static Index bytes(Device device, int microbatches, Index block_bytes);
  StepInputs(MemoryLedger& ledger, std::string_view owner, Device device, int microbatches, Index block_bytes);

  /// Calls fill(microbatch, std::span<std::byte> host) for the first `count` blocks. Later work of `ex` reads them. On
  /// a GPU the host waits at most for the upload before the last one.
  template <class Fill>
  void load(Exec& ex, int count, Fill&& fill) {
    std::byte* host = begin_load();
    for (int i = 0; i < count; ++i) fill(i, std::span(host + i * block_bytes_, static_cast<std::size_t>(block_bytes_)));
    end_load(ex, count * block_bytes_);
  }
  /// u8 [block_bytes], the same address for the whole run.
  Tensor block(int microbatch) const;

 private:
  static constexpr std::size_t kHostBlocks = 2;
  struct HostBlocks {
    Buffer memory;
    Event uploaded;
  };
  std::byte* begin_load();
  void end_load(Exec& ex, Index bytes);
  Index all_bytes() const { return microbatches_ * block_bytes_; }

  Device device_ = Device::cpu;
  int microbatches_ = 0;
  Index block_bytes_ = 0;
  Buffer memory_;  // the blocks; on a GPU, after them those that are being uploaded
  OwnedStream upload_stream_;
  std::vector<HostBlocks> host_;
  std::size_t next_ = 0;
  Event taken_;  // the copy from the second set is complete
};

}  // namespace megalith::model
