#include "megalith/runtime/memory_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith {
namespace {

/// Placed scratch tensors, found by the ops between which they are alive. A pass of n tensors takes about n log n
/// steps. A tensor is stored at its first op, and at O(log ops) nodes of a segment tree over the ops after it.
class PlacedTensors {
 public:
  explicit PlacedTensors(int num_ops) : begun_(static_cast<std::size_t>(num_ops)), tree_(2 * begun_.size()) {}

  void add(const Allocation& tensor) {
    begun_[static_cast<std::size_t>(tensor.first)].push_back(&tensor);
    std::size_t first = static_cast<std::size_t>(tensor.first) + 1 + begun_.size(),
                end = static_cast<std::size_t>(tensor.last) + 1 + begun_.size();
    for (; first < end; first /= 2, end /= 2) {
      if (first % 2 == 1) tree_[first++].push_back(&tensor);
      if (end % 2 == 1) tree_[--end].push_back(&tensor);
    }
  }
  /// The tensors that are alive at an op where `wanted` is, each once.
  std::vector<const Allocation*> alive_with(const Allocation& wanted) const {
    std::vector<const Allocation*> found;
    const auto append = [&](const std::vector<const Allocation*>& more) {
      found.insert(found.end(), more.begin(), more.end());
    };
    for (std::size_t node = static_cast<std::size_t>(wanted.first) + begun_.size(); node > 0; node /= 2)
      append(tree_[node]);
    for (int op = wanted.first; op <= wanted.last; ++op) append(begun_[static_cast<std::size_t>(op)]);
    return found;
  }

 private:
  std::vector<std::vector<const Allocation*>> begun_, tree_;
};

/// The lowest offset at which `wanted` fits between the tensors already placed that are alive with it.
Index lowest_gap(const Allocation& wanted, const PlacedTensors& placed) {
  std::vector<const Allocation*> neighbours = placed.alive_with(wanted);
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
  int num_ops = 0;
  for (Allocation& tensor : phase.tensors) {
    if (tensor.region != Region::scratch) continue;
    by_size.push_back(&tensor);
    num_ops = std::max(num_ops, std::max(tensor.first, tensor.last) + 1);
  }
  std::stable_sort(by_size.begin(), by_size.end(), [](auto* a, auto* b) { return a->bytes > b->bytes; });
  PlacedTensors placed(num_ops);
  Index end = 0;
  for (Allocation* tensor : by_size) {
    tensor->offset = lowest_gap(*tensor, placed);
    placed.add(*tensor);
    end = std::max(end, round_up(tensor->offset + tensor->bytes, kAlignment));
  }
  return end;
}

/// Throws unless `a`, which begins no higher than `b`, ends before it.
void expect_apart(const Allocation& a, const Allocation& b) {
  if (b.offset >= a.offset + a.bytes) return;
  throw InternalError(str("[plan] tensors of ", a.maker, " and ", b.maker, " share bytes from ", b.offset,
                          " while both are alive (ops ", b.first, "..", b.last, ")"));
}

/// Checks tensors that are all alive together.
void check_saved(std::vector<const Allocation*> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < tensors.size(); ++i) expect_apart(*tensors[i - 1], *tensors[i]);
}

/// Goes through the ops with the tensors that are alive, which do not overlap. A further one must fit between two of
/// them.
void check_scratch(std::vector<const Allocation*> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](auto* a, auto* b) { return a->first < b->first; });
  const auto ends_later = [](const Allocation* a, const Allocation* b) { return a->last > b->last; };
  std::priority_queue<const Allocation*, std::vector<const Allocation*>, decltype(ends_later)> next_to_end(ends_later);
  std::map<Index, const Allocation*> alive;  // by offset
  for (const Allocation* tensor : tensors) {
    for (; !next_to_end.empty() && next_to_end.top()->last < tensor->first; next_to_end.pop())
      alive.erase(next_to_end.top()->offset);
    const auto above = alive.lower_bound(tensor->offset);
    if (above != alive.end()) expect_apart(*tensor, *above->second);
    if (above != alive.begin()) expect_apart(*std::prev(above)->second, *tensor);
    alive.emplace(tensor->offset, tensor);
    next_to_end.push(tensor);
  }
}

/// The maximal number of bytes of scratch tensors that are alive at one op.
Index max_alive(const PhasePlan& phase) {
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
    plan.alive_bytes = std::max(plan.alive_bytes, max_alive(phase));
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
    for (const Allocation& tensor : phase.tensors) {
      if (tensor.bytes > 0) (tensor.region == Region::saved ? saved : scratch).push_back(&tensor);
    }
    check_scratch(std::move(scratch));
  }
  check_saved(std::move(saved));
}

}  // namespace megalith
