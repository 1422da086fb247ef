#include "megalith/tensor/graph.h"

#include "megalith/base/build.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tensor/cuda/device.h"
#include "megalith/tensor/exec.h"

namespace megalith {
namespace {

class DeviceGraph final : public Graph::Body {
 public:
  DeviceGraph(std::shared_ptr<void> handle, Index num_ops) : handle_(std::move(handle)), num_ops_(num_ops) {}
  void launch(Exec& ex) const override {
    if constexpr (build::has_cuda) cuda::launch(handle_.get(), ex.stream());
  }
  Index num_ops() const override { return num_ops_; }

 private:
  std::shared_ptr<void> handle_;
  Index num_ops_;
};

}  // namespace

class Capture::CallList final : public Graph::Body {
 public:
  void add(const char* name, Call call) { calls_.push_back({name, std::move(call)}); }
  void launch(Exec& ex) const override {
    for (const auto& [name, call] : calls_) ex.execute(name, call);
  }
  Index num_ops() const override { return static_cast<Index>(calls_.size()); }

 private:
  struct NamedCall {
    const char* name;
    Call call;
  };
  std::vector<NamedCall> calls_;
};

void Graph::launch(Exec& ex) const {
  if (ex.capture() != nullptr) ex.capture()->refuse("Graph::launch", "graphs do not nest");
  body_->launch(ex);
}

Index Graph::num_ops() const { return body_->num_ops(); }

void Capture::refuse(std::string_view what, std::string_view why) const {
  throw InternalError(str("[capture] ", place_, ": ", what, ": ", why));
}

bool Capture::holds(const Tensor& tensor) const {
  if (!tensor || tensor.bytes() == 0) return true;
  const std::less_equal<const std::byte*> at_or_before;
  const auto* begin = static_cast<const std::byte*>(tensor.raw());
  for (const std::span<const std::byte>& piece : memory_) {
    if (at_or_before(piece.data(), begin) && at_or_before(begin + tensor.bytes(), piece.data() + piece.size()))
      return true;
  }
  return false;
}

void Capture::check(const OpInfo& op) const {
  for (const std::initializer_list<Tensor>& tensors : {op.reads, op.writes}) {
    for (const Tensor& tensor : tensors) {
      if (holds(tensor)) continue;
      refuse(op.name, str("a tensor of shape ", tensor.shape(),
                          " lies outside the run's planned memory: its address may be another at the launch"));
    }
  }
}

void Capture::add(const char* name, Call call) {
  if (!calls_) calls_ = std::make_shared<CallList>();
  calls_->add(name, std::move(call));
}

Graph Capture::end(Device device, Stream stream) {
  if (device == Device::cpu) return Graph(calls_ ? std::move(calls_) : std::make_shared<CallList>());
  if constexpr (build::has_cuda)
    return Graph(std::make_shared<DeviceGraph>(cuda::end_capture(stream), num_ops_));
  else
    throw InternalError("[Capture::end] a build without CUDA has no such device");
}

}  // namespace megalith
