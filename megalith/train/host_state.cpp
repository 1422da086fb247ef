#include "megalith/train/host_state.h"

#include <utility>
#include <vector>

namespace megalith::train {

HostState::HostState(Exec& ex, const ParamBuffer& params, const optim::Optimizer& optimizer, comm::Group dp)
    : ex_(ex),
      params_(params),
      dp_(std::move(dp)),
      on_device_{params.masters(), optimizer.m(), optimizer.v()},
      whole_(on_device_) {}

Index HostState::copy_bytes(Device device, const ParamBuffer& params, const comm::Group& dp) {
  if (is_in_place(device, params) || dp.rank() != 0) return 0;
  return 3 * bytes_of({params.numel()}, params.policy().master);
}

const Tensor& HostState::held(std::size_t i) {
  if (!in_place() && memory_.data() == nullptr) {
    const Shape shape{params_.numel()};
    const DType dtype = params_.policy().master;
    memory_ = Buffer(3 * bytes_of(shape, dtype));
    for (std::size_t j = 0; j < whole_.size(); ++j)
      whole_[j] = memory_.view(shape, dtype, static_cast<Index>(j) * bytes_of(shape, dtype));
  }
  return whole_[i];
}

Tensor HostState::on_device(std::size_t i, const OwnRange& range) const {
  return i == 0 ? params_.own_masters(range) : range.of_own(on_device_[i]);
}

void HostState::gather(std::size_t i) {
  std::vector<comm::Pending> pending;
  for (std::size_t b = 0; b < params_.buckets().size(); ++b) {
    pending.push_back(comm::all_gather(ex_, dp_, on_device(i, params_.own_ranges()[b]),
                                       params_.part(params_.grads(), params_.buckets()[b])));
  }
  for (comm::Pending& one : pending) one.wait(ex_);
}

void HostState::pull() {
  for (std::size_t i = 0; i < on_device_.size(); ++i) {
    if (params_.is_sharded()) gather(i);
    if (in_place() || dp_.rank() != 0) continue;
    const Tensor& from = params_.is_sharded() ? params_.grads() : on_device_[i];
    ex_.copy(held(i).raw(), from.raw(), from.bytes());
  }
  ex_.synchronize();
}

void HostState::push() {
  for (std::size_t i = 0; i < on_device_.size() && !in_place(); ++i) {
    for (const OwnRange& range : params_.own_ranges()) {
      const Tensor to = on_device(i, range);
      ex_.copy(to.raw(), range.of_whole(held(i)).raw(), to.bytes());
    }
  }
  ex_.synchronize();
}

}  // namespace megalith::train
