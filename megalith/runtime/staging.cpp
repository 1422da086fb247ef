#include "megalith/runtime/staging.h"

namespace megalith {

Staging::Staging(Device device, Index block_bytes, int depth) {
  if (device == Device::cpu) return;
  for (int i = 0; i < depth; ++i) blocks_.push_back({Buffer(block_bytes, device, Side::host), Event(device)});
}

Staging::Block& Staging::next_block() {
  Block& block = blocks_[next_];
  next_ = (next_ + 1) % blocks_.size();
  block.uploaded.wait();
  return block;
}

}  // namespace megalith
