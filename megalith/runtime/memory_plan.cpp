#include "megalith/runtime/memory_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith {
namespace {

bool alive_together(const Allocation& a, const Allocation& b) { return a.first <= b.last && b.first <= a.last; }

/// The lowest offset at which `wanted` fits between the tensors already placed that are alive with it.
Index lowest_gap(const Allocation& wanted, const std::vector<const Allocation*>& placed) {
  std::vector<const Allocation*> neighbours;
  for (const Allocation* other : placed) {
    if (alive_together(wanted, *other)) neighbours.push_back(other);
  }
  std::sort(neighbours.begin(), neighbours.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  Index offset = 0;
  for (const Allocation* other : neighbours) {
    if (offset + wanted.bytes <= other->offset) break;
    offset = std::max(offset, round_up(other->offset + other->bytes, kAlignment));
  }
  return offset;
}

Index place_scratch(PhasePlan& phase) {
  std::vector<Allocation*> by_size;
  for (Allocation& tensor : phase.tensors) {
    if (tensor.region == Region::scratch) by_size.push_back(&tensor);
  }
  std::stable_sort(by_size.begin(), by_size.end(), [](auto* a, auto* b) { return a->bytes > b->bytes; });
  std::vector<const Allocation*> placed;
  Index end = 0;
  for (Allocation* tensor : by_size) {
    tensor->offset = lowest_gap(*tensor, placed);
    placed.push_back(tensor);
    end = std::max(end, round_up(tensor->offset + tensor->bytes, kAlignment));
  }
  return end;
}

/// The most bytes of scratch tensors that are alive at one op.
Index most_alive(const PhasePlan& phase) {
  std::map<int, Index> changes;  // by op
  for (const Allocation& tensor : phase.tensors) {
    if (tensor.region != Region::scratch) continue;
    changes[tensor.first] += round_up(tensor.bytes, kAlignment);
    changes[tensor.last + 1] -= round_up(tensor.bytes, kAlignment);
  }
  Index alive = 0, most = 0;
  for (const auto& [op, change] : changes) most = std::max(most, alive += change);
  return most;
}

}  // namespace

TensorId Recording::add_tensor(Index bytes, Index layer, const char* owner) {
  const int next_op = static_cast<int>(ops_.size());
  tensors_.push_back({bytes, phase_, next_op, next_op, phase_, "", -1, layer, owner});
  return static_cast<TensorId>(tensors_.size()) - 1;
}

void Recording::touch(const Tensor& tensor) {
  if (tensor.id() == kExternal) return;
  TensorRecord& record = tensors_[static_cast<std::size_t>(tensor.id())];
  record.last = static_cast<int>(ops_.size());
  record.last_phase = phase_;
}

void Recording::add_op(const char* name, std::initializer_list<Tensor> reads, std::initializer_list<Tensor> writes,
                       const Tensor& scratch) {
  OpRecord op{name, phase_, {}, {}};
  for (const Tensor& tensor : reads) {
    touch(tensor);
    op.reads.push_back(tensor.id());
  }
  const auto write = [&](const Tensor& tensor) {
    touch(tensor);
    op.writes.push_back(tensor.id());
    if (tensor.id() == kExternal) return;
    TensorRecord& record = tensors_[static_cast<std::size_t>(tensor.id())];
    if (record.made >= 0) return;
    record.maker = name;
    record.made = static_cast<int>(ops_.size());
  };
  for (const Tensor& tensor : writes) write(tensor);
  write(scratch);
  ops_.push_back(std::move(op));
}

MemoryPlan make_plan(const Recording& recording) {
  MemoryPlan plan;
  plan.phases.resize(static_cast<std::size_t>(recording.num_phases()));
  for (const Recording::TensorRecord& tensor : recording.tensors()) {
    Allocation allocation{Region::scratch, 0,           tensor.bytes, tensor.first, tensor.last,
                          tensor.maker,    tensor.made, tensor.layer, tensor.owner};
    if (tensor.last_phase != tensor.phase) {
      allocation.region = Region::saved;
      allocation.offset = plan.saved_bytes;
      plan.saved_bytes = round_up(plan.saved_bytes + tensor.bytes, kAlignment);
    }
    plan.phases[static_cast<std::size_t>(tensor.phase)].tensors.push_back(allocation);
  }
  for (const Recording::OpRecord& op : recording.ops())
    plan.phases[static_cast<std::size_t>(op.phase)].ops.push_back(op.name);
  for (PhasePlan& phase : plan.phases) {
    plan.scratch_bytes = std::max(plan.scratch_bytes, place_scratch(phase));
    plan.alive_bytes = std::max(plan.alive_bytes, most_alive(phase));
  }
  check_plan(plan);
  return plan;
}

Index MemoryPlan::saved_bytes_of(std::string_view owner) const {
  Index bytes = 0;
  for (const PhasePlan& phase : phases) {
    for (const Allocation& tensor : phase.tensors) {
      if (tensor.region == Region::saved && tensor.owner == owner) bytes += round_up(tensor.bytes, kAlignment);
    }
  }
  return bytes;
}

void check_plan(const MemoryPlan& plan) {
  std::vector<const Allocation*> saved;
  for (const PhasePlan& phase : plan.phases) {
    std::vector<const Allocation*> scratch;
    for (const Allocation& tensor : phase.tensors)
      (tensor.region == Region::saved ? saved : scratch).push_back(&tensor);
    for (std::vector<const Allocation*>* region : {&scratch, &saved}) {
      std::sort(region->begin(), region->end(), [](auto* a, auto* b) { return a->offset < b->offset; });
      for (std::size_t i = 0; i < region->size(); ++i) {
        const Allocation& a = *(*region)[i];
        for (std::size_t j = i + 1; j < region->size() && (*region)[j]->offset < a.offset + a.bytes; ++j) {
          const Allocation& b = *(*region)[j];
          if (b.bytes == 0 || (region == &scratch && !alive_together(a, b))) continue;
          throw InternalError(str("[plan] tensors of ", a.maker, " and ", b.maker, " share bytes from ", b.offset,
                                  " while both are alive (ops ", b.first, "..", b.last, ")"));
        }
      }
    }
  }
}

}  // namespace megalith
