#include "megalith/train/host_state.h"

namespace megalith::train {

HostState::HostState(Exec& ex, const ParamBuffer& params, const optim::Optimizer& optimizer)
    : ex_(ex), on_device_{params.masters(), optimizer.m(), optimizer.v()}, flat_(on_device_) {
  if (ex.device() == Device::cpu) return;
  memory_ = Buffer(3 * on_device_[0].bytes());
  for (std::size_t i = 0; i < flat_.size(); ++i) {
    const Tensor& there = on_device_[i];
    flat_[i] = memory_.view(there.shape(), there.dtype(), static_cast<Index>(i) * there.bytes());
  }
}

void HostState::pull() {
  for (std::size_t i = 0; i < flat_.size(); ++i) ex_.copy(flat_[i].raw(), on_device_[i].raw(), flat_[i].bytes());
  ex_.synchronize();
}

void HostState::push() {
  for (std::size_t i = 0; i < flat_.size(); ++i) ex_.copy(on_device_[i].raw(), flat_[i].raw(), flat_[i].bytes());
  ex_.synchronize();
}

}  // namespace megalith::train
