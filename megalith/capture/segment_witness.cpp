#include "megalith/capture/segment_witness.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::capture {
namespace {

/// More than a chunk has ops: what memory still holds of a microbatch is named with its bytes, and comes first.
constexpr Index kBehindMemory = Index{1} << 19;

}  // namespace

SegmentWitness::SegmentWitness(Device device, std::vector<MemoryLedger::Block> memory, Index num_layers)
    : memory_(std::move(memory)),
      num_layers_(num_layers),
      staged_(kStagedBytes, device, Side::host, Contents::undefined) {}

void SegmentWitness::keep_from_here() {
  compares_ = false;
  kept_.clear();
  compared_ = 0;
  first_.reset();
}

bool SegmentWitness::is_compared(const Tensor& tensor) const {
  if (!tensor || tensor.bytes() == 0) return false;
  return std::ranges::any_of(
      memory_, [&](const MemoryLedger::Block& piece) { return lies_in(piece.memory, tensor.raw(), tensor.bytes()); });
}

io::Hash128 SegmentWitness::checksum_of(Exec& ex, const Tensor& tensor) const {
  const auto* const begin = static_cast<const std::byte*>(tensor.raw());
  io::Hash128 all;
  for (Index done = 0; done < tensor.bytes(); done += kStagedBytes) {
    const Index count = std::min(kStagedBytes, tensor.bytes() - done);
    ex.copy(staged_.data(), begin + done, count);
    ex.synchronize();
    const io::Hash128 block = io::checksum({staged_.data(), static_cast<std::size_t>(count)});
    const std::array<std::uint64_t, 4> both = {all.high, all.low, block.high, block.low};
    all = io::checksum(std::as_bytes(std::span(both)));
  }
  return all;
}

SegmentWitness::Result SegmentWitness::result(const CallSite& place, const GraphCache::Key& key,
                                              const Graph::Touched& op, Index op_index, const Tensor& tensor) const {
  const bool is_forward = key.segment == GraphCache::Key::kForward;
  return {.tensor = tensor,
          .order = is_forward ? forward_order(place.microbatch, key.layer, num_layers_, kBehindMemory + op_index)
                              : backward_order(place.microbatch, key.layer, num_layers_, op_index),
          .text = str("result of ", op.op, is_forward ? "" : " in the backward pass"),
          // Where sub-microbatches alternate, a graph begins with ops of the layer before.
          .place = describe({.chunk = place.chunk, .microbatch = place.microbatch, .layer = op.layer})};
}

void SegmentWitness::see(Exec& ex, const GraphCache::Key& key, const Graph& graph) {
  const std::vector<Graph::Touched> ops = graph.touched();
  std::map<std::pair<const void*, Index>, Index> last_writers;  // by address and bytes
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const Tensor& tensor : ops[i].writes) {
      if (is_compared(tensor)) last_writers[{tensor.raw(), tensor.bytes()}] = static_cast<Index>(i);
    }
  }
  Index op_index = 0;
  for (const Graph::Touched& op : ops) {
    for (const Tensor& tensor : op.writes) {
      const auto written = last_writers.find({tensor.raw(), tensor ? tensor.bytes() : 0});
      if (written == last_writers.end() || written->second != op_index) continue;
      const io::Hash128 sum = checksum_of(ex, tensor);
      if (!compares_) {
        kept_.push_back(sum);
        continue;
      }
      const std::size_t number = compared_++;
      if (first_ || number >= kept_.size() || sum == kept_[number]) continue;
      first_ = result(ex.call_site(), key, op, op_index, tensor);
    }
    ++op_index;
  }
}

void SegmentWitness::require_same_count() const {
  if (compared_ == kept_.size()) return;
  throw InternalError(str("[SegmentWitness] pieces left ", kept_.size(), " results in the first run and ", compared_,
                          " in the second: both must run the same pieces"));
}

MemoryCopy::Difference SegmentWitness::named(const MemoryNames& names) const {
  const auto gradient = std::ranges::find_if(names, [this](const NamedMemory& name) {
    return name.order.part == StepOrder::Part::gradients &&
           lies_in({name.begin, static_cast<std::size_t>(name.bytes)}, first_->tensor.raw(), first_->tensor.bytes());
  });
  return {first_->order, (gradient == names.end() ? first_->text : gradient->name) + first_->place};
}

}  // namespace megalith::capture
