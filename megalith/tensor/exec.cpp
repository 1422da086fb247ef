#include "megalith/tensor/exec.h"

#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith {

void Exec::begin(const PhasePlan& phase, std::byte* saved, std::byte* scratch) {
  if (recording_ != nullptr || phase_ != nullptr) throw InternalError("[Exec::begin] a phase is already open");
  phase_ = &phase;
  saved_ = saved;
  scratch_ = scratch;
  next_tensor_ = next_op_ = 0;
}

void Exec::end() {
  if (phase_ == nullptr) throw InternalError("[Exec::end] no phase is open");
  if (next_tensor_ != phase_->tensors.size()) {
    throw InternalError(str("[Exec::end] the phase asked for ", next_tensor_, " tensors, its plan has ",
                            phase_->tensors.size(), ": it must run as it was recorded"));
  }
  phase_ = nullptr;
}

Tensor Exec::tensor(const Shape& shape, DType dtype) {
  const Index bytes = bytes_of(shape, dtype);
  if (recording_ != nullptr) return {nullptr, shape, dtype, recording_->add_tensor(bytes)};
  std::byte* data = nullptr;
  if (phase_ != nullptr) {
    if (next_tensor_ >= phase_->tensors.size() || phase_->tensors[next_tensor_].bytes != bytes) {
      throw InternalError(str("[Exec::tensor] tensor ", next_tensor_, " of shape ", shape,
                              " differs from the recorded one: a phase must run as it was recorded"));
    }
    const Allocation& allocation = phase_->tensors[next_tensor_++];
    data = (allocation.region == Region::saved ? saved_ : scratch_) + allocation.offset;
  } else {
    heap_.emplace_back(bytes, device_);
    data = heap_.back().data();
  }
  if (poison_ && bytes > 0) device::fill_bytes(device_, data, 0xff, bytes, stream_.get());
  return {data, shape, dtype};
}

void Exec::check_order(const OpInfo& op) {
  if (phase_ == nullptr) return;
  if (next_op_ >= phase_->ops.size() || std::strcmp(phase_->ops[next_op_], op.name) != 0) {
    throw InternalError(str("[Exec::run] op ", next_op_, " is ", op.name, ", recorded was ",
                            next_op_ < phase_->ops.size() ? phase_->ops[next_op_] : "nothing",
                            ": a phase must run as it was recorded"));
  }
  ++next_op_;
}

}  // namespace megalith
