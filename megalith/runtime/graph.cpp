#include "megalith/runtime/graph.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/runtime/exec.h"
#include "megalith/tensor/cuda/device.h"
#include "megalith/tensor/has_cuda.h"

namespace megalith {
namespace {

std::atomic<std::uint64_t> captures_begun = 0;

[[noreturn]] void refuse_unprepared() { throw InternalError("[Graph::launch] before Graph::prepare"); }

class DeviceGraph final : public Graph::Body {
 public:
  explicit DeviceGraph(cuda::CapturedNodes nodes) : nodes_(std::move(nodes)) {}
  void prepare(Exec& ex) override {
    if constexpr (build::has_cuda) handle_ = cuda::instantiate(nodes_, ex.stream());
    nodes_ = {};
  }
  void launch(Exec& ex) const override {
    if (handle_ == nullptr) refuse_unprepared();
    ex.execute("graph", [this](Exec&, Stream stream) {
      if constexpr (build::has_cuda) cuda::launch(handle_.get(), stream);
    });
  }

 private:
  cuda::CapturedNodes nodes_;
  std::shared_ptr<void> handle_;
};

}  // namespace

/// The captured ops of a graph, in its order.
class CapturedOps {
 public:
  struct Op {
    const char* name = "";
    std::vector<Tensor> reads = {}, writes = {};
    Tensor scratch = {};
    OpKind kind = OpKind::local;
    bool of_host = true;  ///< requested by code, and not added by the Exec itself
    CallSite place = {};
    Capture::Call call = {};  ///< on the CPU
  };
  void add(Op op) { ops_.push_back(std::move(op)); }
  const std::vector<Op>& all() const { return ops_; }

 private:
  std::vector<Op> ops_;
};

namespace {

/// A graph on the CPU.
class CallList final : public Graph::Body {
 public:
  explicit CallList(std::shared_ptr<const CapturedOps> ops) : ops_(std::move(ops)) {}
  void prepare(Exec&) override { is_prepared_ = true; }
  void launch(Exec& ex) const override {
    if (!is_prepared_) refuse_unprepared();
    for (const CapturedOps::Op& op : ops_->all()) ex.execute(op.name, op.call);
  }

 private:
  std::shared_ptr<const CapturedOps> ops_;
  bool is_prepared_ = false;
};

}  // namespace

void Graph::prepare(Exec& ex) {
  const double begin_s = monotonic_s();
  try {
    body_->prepare(ex);
  } catch (Error& error) {
    error.put_in_front(str("[capture] ", what_, ": "));
    throw;
  }
  if (ex.device() == Device::cpu) return;
  stats_.instantiate_s += monotonic_s() - begin_s;
  stats_.capture_s += monotonic_s() - begin_s;
}

void Graph::launch(Exec& ex) const {
  if (ex.capture() != nullptr) ex.capture()->refuse("Graph::launch", "graphs do not nest");
  body_->launch(ex);
}

std::vector<Graph::Touched> Graph::touched() const {
  if (ops_ == nullptr) throw InternalError("[Graph::touched] there is no graph");
  std::vector<Touched> all;
  for (const CapturedOps::Op& op : ops_->all())
    all.push_back({op.name, op.reads, op.writes, op.scratch, op.kind == OpKind::wait, op.place.layer});
  return all;
}

void prepare_captures(Device device) {
  if constexpr (build::has_cuda) {
    if (device == Device::cuda) cuda::load_capture_kernels();
  }
}

GraphStats& GraphStats::operator+=(const GraphStats& other) {
  graphs += other.graphs;
  ops += other.ops;
  comm_calls += other.comm_calls;
  nodes += other.nodes;
  capture_s += other.capture_s;
  instantiate_s += other.instantiate_s;
  return *this;
}

Capture::Capture(std::string name, std::vector<std::span<const std::byte>> memory)
    : name_(std::move(name)),
      number_(++captures_begun),
      memory_(std::move(memory)),
      ops_(std::make_shared<CapturedOps>()),
      stats_{.graphs = 1},
      begun_s_(monotonic_s()) {}

std::string Capture::where() const {
  return str("[capture] ", name_, call_site_ == nullptr ? "" : describe(*call_site_), ": ",
             op_ == nullptr ? "" : str(op_, ": "));
}

void Capture::refuse(std::string_view what, std::string_view why) const {
  throw InternalError(str(where(), what, ": ", why));
}

void Capture::put_call_site(Error& error) const {
  if (std::string_view(error.what()).starts_with("rank ") || dynamic_cast<const AbortedError*>(&error) != nullptr)
    return;  // another rank's error
  if (std::string_view(error.what()).find("[capture] ") == std::string_view::npos) error.put_in_front(where());
}

bool Capture::holds(const Tensor& tensor) const {
  if (!tensor || tensor.bytes() == 0) return true;
  return std::ranges::any_of(
      memory_, [&](const std::span<const std::byte>& piece) { return lies_in(piece, tensor.raw(), tensor.bytes()); });
}

void Capture::check(const OpInfo& op) const {
  for (const std::span<const Tensor> tensors : {std::span(op.reads), std::span(op.writes), std::span(&op.scratch, 1)}) {
    for (const Tensor& tensor : tensors) {
      if (holds(tensor)) continue;
      refuse(op.name, str("a tensor of shape ", tensor.shape(),
                          " lies outside the run's planned memory: its address may be another at the launch"));
    }
  }
}

void Capture::add(const OpInfo& op, Call call) {
  ++stats_.ops;
  if (op.kind == OpKind::communication) ++stats_.comm_calls;
  ops_->add({.name = op.name,
             .reads = op.reads,
             .writes = op.writes,
             .scratch = op.scratch,
             .kind = op.kind,
             .place = *call_site_,
             .call = std::move(call)});
}

void Capture::add_poison(Call call) { ops_->add({.name = "poison", .of_host = false, .call = std::move(call)}); }

Graph Capture::end(Device device, Stream stream) {
  leave();
  const std::string what = str(name_, ops_->all().empty() ? "" : describe(ops_->all().front().place));
  if (device == Device::cpu) {
    stats_.nodes = static_cast<Index>(ops_->all().size());
    stats_.capture_s = monotonic_s() - begun_s_;
    return {std::make_shared<CallList>(ops_), ops_, stats_, what};
  }
  if constexpr (build::has_cuda) {
    cuda::CapturedNodes nodes = cuda::end_capture(stream);
    stats_.nodes = nodes.count;
    stats_.capture_s = monotonic_s() - begun_s_;
    return {std::make_shared<DeviceGraph>(std::move(nodes)), ops_, stats_, what};
  } else {
    throw InternalError("[Capture::end] a build without CUDA has no such device");
  }
}

GraphComparison::GraphComparison(const Graph& graph, std::string name)
    : captured_(*graph.ops_), name_(std::move(name)) {}

void GraphComparison::refuse(const CallSite& place, std::string_view op, std::string_view what) const {
  throw InternalError(str("[graph] ", name_, describe(place), ", op ", next_ + 1, " (", op, "): ", what));
}

void GraphComparison::end() {
  const std::vector<CapturedOps::Op>& ops = captured_.all();
  while (next_ < ops.size() && !ops[next_].of_host) ++next_;
  if (next_ < ops.size()) {
    refuse(ops[next_].place, ops[next_].name,
           "the graph has it, the host no longer submits it: a graph keeps the path of its capture");
  }
}

void GraphComparison::run(Exec& ex, const OpInfo& op, const Capture::Call& call) {
  const std::vector<CapturedOps::Op>& ops = captured_.all();
  while (next_ < ops.size() && !ops[next_].of_host) ++next_;
  if (next_ == ops.size() || std::string_view(ops[next_].name) != op.name) {
    refuse(ex.call_site(), op.name,
           str("the graph has ", next_ == ops.size() ? "nothing" : ops[next_].name,
               " there: a graph keeps the path of its capture, so what the host runs may not follow data"));
  }
  const auto expect_same = [&](std::span<const Tensor> now, std::span<const Tensor> captured) {
    if (now.size() != captured.size())
      refuse(ex.call_site(), op.name, str("it has ", now.size(), " tensors, captured were ", captured.size()));
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i].shape() != captured[i].shape() || now[i].dtype() != captured[i].dtype())
        refuse(ex.call_site(), op.name,
               str("a tensor of shape ", now[i].shape(), ", captured was ", captured[i].shape()));
      if (now[i].raw() != captured[i].raw())
        refuse(ex.call_site(), op.name,
               str("a tensor of shape ", now[i].shape(), " lies at another address than when captured"));
    }
  };
  expect_same(op.reads, ops[next_].reads);
  expect_same(op.writes, ops[next_].writes);
  expect_same({&op.scratch, 1}, {&ops[next_].scratch, 1});
  if (op.kind == OpKind::local && ex.device() == Device::cpu)
    compare_results(ex, next_, call);
  else
    ex.execute(op.name, call, op.kind);
  ++next_;
}

void GraphComparison::compare_results(Exec& ex, std::size_t place, const Capture::Call& call) const {
  const CapturedOps::Op& captured = captured_.all()[place];
  const auto contents = [&captured] {
    std::vector<std::vector<std::byte>> all;
    for (const Tensor& tensor : captured.writes) {
      const auto* bytes = static_cast<const std::byte*>(tensor.raw());
      all.emplace_back(bytes, bytes + (tensor ? tensor.bytes() : 0));
    }
    return all;
  };
  const auto before = contents();
  captured.call(ex, ex.stream());
  const auto launched = contents();
  for (std::size_t i = 0; i < before.size(); ++i)
    std::ranges::copy(before[i], static_cast<std::byte*>(captured.writes[i].raw()));
  ex.execute(captured.name, call);
  if (contents() != launched) {
    refuse(
        ex.call_site(), captured.name,
        "gives another result than when captured: what changes from step to step must come from memory, not by value");
  }
}

}  // namespace megalith
