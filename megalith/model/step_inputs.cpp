#include "megalith/model/step_inputs.h"

namespace megalith::model {

Index StepInputs::bytes(Device device, int microbatches, Index block_bytes) {
  return microbatches * block_bytes * (device == Device::cpu ? 1 : 2);
}

StepInputs::StepInputs(MemoryLedger& ledger, std::string_view owner, Device device, int microbatches, Index block_bytes)
    : device_(device),
      microbatches_(microbatches),
      block_bytes_(block_bytes),
      memory_(ledger.take(owner, bytes(device, microbatches, block_bytes))) {
  if (device == Device::cpu) return;
  upload_stream_ = OwnedStream(device);
  taken_ = Event(device);
  for (std::size_t i = 0; i < kHostBlocks; ++i)
    host_.push_back({Buffer(all_bytes(), device, Side::host), Event(device)});
}

std::byte* StepInputs::begin_load() {
  if (device_ == Device::cpu) return memory_.data();
  host_[next_].uploaded.wait();
  return host_[next_].memory.data();
}

void StepInputs::end_load(Exec& ex, Index bytes) {
  if (device_ == Device::cpu) return;
  HostBlocks& host = host_[next_];
  next_ = (next_ + 1) % host_.size();
  std::byte* on_the_way = memory_.data() + all_bytes();
  taken_.hold(upload_stream_.get());
  device::copy(device_, on_the_way, host.memory.data(), bytes, upload_stream_.get());
  host.uploaded.record(upload_stream_.get());
  host.uploaded.hold(ex.stream());
  ex.copy(memory_.data(), on_the_way, bytes);
  taken_.record(ex.stream());
}

Tensor StepInputs::block(int microbatch) const {
  return memory_.view({block_bytes_}, DType::u8, microbatch * block_bytes_);
}

}  // namespace megalith::model
