#include "megalith/runtime/exec.h"

#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tensor/cuda/device.h"
#include "megalith/tensor/has_cuda.h"

namespace megalith {

std::string describe(const CallSite& place) {
  std::string text;
  const auto add = [&text](const char* what, Index number) {
    if (number >= 0) text += str(", ", what, ' ', number);
  };
  add("chunk", place.chunk);
  add("microbatch", place.microbatch);
  add("layer", place.layer);
  return text;
}

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
    refuse_change("Exec::end",
                  str("the phase asked for ", next_tensor_, " tensors, its plan has ", phase_->tensors.size()));
  }
  phase_ = nullptr;
}

Tensor Exec::tensor(const Shape& shape, DType dtype) {
  const Index bytes = bytes_of(shape, dtype);
  if (recording_ != nullptr) return {nullptr, shape, dtype, recording_->add_tensor(bytes, call_site_.layer, owner_)};
  std::byte* data = nullptr;
  if (phase_ != nullptr) {
    if (next_tensor_ >= phase_->tensors.size() || phase_->tensors[next_tensor_].bytes != bytes) {
      refuse_change("Exec::tensor",
                    str("tensor ", next_tensor_, " of shape ", shape, " differs from the recorded one"));
    }
    const Allocation& allocation = phase_->tensors[next_tensor_++];
    data = (allocation.region == Region::saved ? saved_ : scratch_) + allocation.offset;
  } else {
    if (capture_ != nullptr) capture_->refuse("Exec::tensor", "a graph's tensors come from a plan, not from the heap");
    heap_.emplace_back(bytes, device_);
    data = heap_.back().data();
  }
  const Tensor tensor(data, shape, dtype);
  if (new_tensors_ != NewTensors::undefined && bytes > 0) fill_new(tensor);
  return tensor;
}

void Exec::fill_new(const Tensor& tensor) {
  const int byte = new_tensors_ == NewTensors::nan ? 0xff : 0;
  const auto fill = [tensor, byte](Exec& ex, Stream stream) {
    device::fill_bytes(ex.device(), tensor.raw(), byte, tensor.bytes(), stream);
  };
  if (capture_ == nullptr) return fill(*this, stream_.get());
  if (device_ == Device::cpu) return capture_->add_poison(fill);
  capture_->within("poison", [&] { fill(*this, stream_.get()); });
}

void Exec::copy(void* to, const void* from, Index bytes, Stream stream) {
  if (capture_ != nullptr) capture_->refuse("Exec::copy", "copies from and to the host stay outside of graphs");
  device::copy(device_, to, from, bytes, stream);
}

void Exec::synchronize() {
  if (capture_ != nullptr) capture_->refuse("Exec::synchronize", "inside a graph the host cannot wait for the device");
  device::synchronize(device_, stream_.get());
}

void Exec::set_tracer(Tracer* tracer) {
  if (tracer_ != nullptr) tracer_->stop(stream_.get());
  tracer_ = tracer;
  if (tracer_ != nullptr) tracer_->start(stream_.get());
}

void Exec::begin_capture(Capture& capture) {
  if (recording_ != nullptr || capture_ != nullptr) throw InternalError("[Exec::begin_capture] one is under way");
  capture.follow(call_site_, device_);
  if (tracer_ != nullptr) capture.refuse("Exec::set_tracer", "ops inside a graph cannot be timed one by one");
  if constexpr (build::has_cuda) {
    if (device_ == Device::cuda) cuda::begin_capture(stream_.get());
  }
  capture.enter();
  capture_ = &capture;
}

void Exec::abandon_capture() noexcept {
  if constexpr (build::has_cuda) {
    if (device_ == Device::cuda) cuda::abandon_capture(stream_.get());
  }
  if (capture_ != nullptr) capture_->leave();
  capture_ = nullptr;
  phase_ = nullptr;
}

Graph Exec::end_capture() { return std::exchange(capture_, nullptr)->end(device_, stream_.get()); }

void Exec::check_order(const OpInfo& op) {
  if (phase_ == nullptr) return;
  if (next_op_ >= phase_->ops.size() || std::strcmp(phase_->ops[next_op_], op.name) != 0) {
    refuse_change("Exec::run", str("op ", next_op_, " is ", op.name, ", recorded was ",
                                   next_op_ < phase_->ops.size() ? phase_->ops[next_op_] : "nothing"));
  }
  ++next_op_;
}

void Exec::check_capture(const OpInfo& op) const {
  if (const CaptureGuard* other = CaptureGuard::active(device_); other != nullptr && other != capture_)
    other->refuse(op.name, "an op of another Exec is no part of the graph");
}

void Exec::refuse_change(const char* where, const std::string& what) const {
  constexpr const char* kRule = ": a phase must run as it was recorded";
  if (capture_ != nullptr) capture_->refuse(where, what + kRule);
  throw InternalError(str("[", where, "] ", what, describe(call_site_), kRule));
}

}  // namespace megalith
