#pragma once
#include <vector>

#include "megalith/runtime/exec.h"

namespace megalith {

/// Copies host data into device memory without waiting for the device, through a ring of blocks of page-locked host
/// memory. On the CPU there is no copy: data is written in place.
class Staging {
 public:
  Staging() = default;
  /// `depth` blocks: this many uploads may be in flight before the host waits.
  Staging(Device device, Index block_bytes, int depth);
  /// Calls write(std::byte* host), which fills `bytes` bytes, and uploads them to `to` in the order of the ops.
  template <class Write>
  void upload(Exec& ex, std::byte* to, Index bytes, Write&& write) {
    if (ex.device() == Device::cpu) return write(to);
    Block& block = next_block();
    write(block.memory.data());
    ex.copy(to, block.memory.data(), bytes);
    block.uploaded.record(ex.stream());
  }

 private:
  struct Block {
    Buffer memory;
    Event uploaded;
  };
  /// Waits until the block is free.
  Block& next_block();

  std::vector<Block> blocks_;
  std::size_t next_ = 0;
};

}  // namespace megalith
