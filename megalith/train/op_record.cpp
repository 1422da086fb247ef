#include "megalith/train/op_record.h"

#include <algorithm>
#include <set>
#include <span>
#include <string_view>

#include "megalith/base/str.h"
#include "megalith/tensor/memory.h"
#include "megalith/train/state_pieces.h"

namespace megalith::train {
namespace {

const std::byte* begin_of(const Tensor& tensor) { return static_cast<const std::byte*>(tensor.raw()); }
const std::byte* end_of(const Tensor& tensor) { return begin_of(tensor) + tensor.bytes(); }

bool has_memory(const Tensor& tensor) { return tensor && tensor.raw() != nullptr && tensor.bytes() > 0; }
bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values(static_cast<std::size_t>(tensor.numel()));
  dispatch_float(tensor.dtype(), "OpRecorder", [&]<class T>() {
    std::ranges::transform(tensor.span<T>(), values.begin(), [](T value) { return converted<double>(value); });
  });
  return values;
}

bool is_of_experts(const OpInfo& op) { return std::string_view(op.name).starts_with("grouped_matmul"); }

bool is_pass(StepPhase phase) { return phase == StepPhase::forward || phase == StepPhase::backward; }

}  // namespace

std::string describe(const OpKey& key, Index num_layers) {
  return str(name_of(key.phase), ", ", key.sample == kAllSamples ? "all samples" : str("sample ", key.sample), ", ",
             key.layer < 0             ? std::string("before the layers")
             : key.layer >= num_layers ? std::string("after the layers")
                                       : str("layer ", key.layer));
}

OpRecorder::OpRecorder(Engine& engine, RankOps& ops) : engine_(engine), ops_(ops) {
  ops_ = {.on_dense = engine.mesh().coordinates(grid::GridKind::dense),
          .on_experts = engine.mesh().coordinates(grid::GridKind::expert)};
  const auto extent = [](const Tensor& tensor, const Param& param) {
    return Extent{begin_of(tensor), end_of(tensor), &param};
  };
  for (const ParamBuffer& buffer : engine.stage().params().buffers()) {
    for (const Param& param : buffer.params()) {
      if (param.value.bytes() == 0) continue;
      parameters_.push_back(extent(param.value, param));
      if (!buffer.has_gradients()) continue;
      std::vector<Extent>& gradients = param.grad_in_window ? gradients_in_windows_[param.spec.layer] : gradients_;
      gradients.push_back(extent(param.grad, param));
      ops_.placements[param.name()] = param.spec.placement;
    }
  }
  for (std::vector<Extent>* const extents : {&parameters_, &gradients_})
    std::ranges::sort(*extents, {}, &Extent::begin);
  for (auto& [layer, extents] : gradients_in_windows_) std::ranges::sort(extents, {}, &Extent::begin);
}

const OpRecorder::Extent* OpRecorder::extent_of(const std::vector<Extent>& extents, const Tensor& tensor) {
  if (!has_memory(tensor)) return nullptr;
  auto after = std::ranges::upper_bound(extents, begin_of(tensor), {}, &Extent::begin);
  if (after == extents.begin()) return nullptr;
  const Extent& found = *std::prev(after);
  return end_of(tensor) <= found.end ? &found : nullptr;
}

const OpRecorder::Extent* OpRecorder::gradient_of(const Tensor& tensor) const {
  if (const Extent* const whole = extent_of(gradients_, tensor)) return whole;
  const auto of_layer = gradients_in_windows_.find(engine_.exec().call_site().layer);
  return of_layer == gradients_in_windows_.end() ? nullptr : extent_of(of_layer->second, tensor);
}

bool OpRecorder::adds_to(const Extent& gradient, const OpInfo& op) {
  if (!gradient.param->grad_in_window) return true;
  return std::ranges::any_of(op.reads, [&](const Tensor& tensor) {
    return has_memory(tensor) && gradient.begin <= begin_of(tensor) && end_of(tensor) <= gradient.end;
  });
}

TensorSlice OpRecorder::slice_of(const Extent& extent, const Tensor& tensor) {
  TensorSlice slice = extent.param->spec.slice;
  const Index bytes_of_row = (extent.end - extent.begin) / extent.param->spec.held[0], local = slice.local[0];
  const Index begin = begin_of(tensor) - extent.begin;
  if (begin % bytes_of_row != 0 || tensor.bytes() % bytes_of_row != 0) return {};
  slice.offset[0] += begin / bytes_of_row;
  slice.local.set(0, std::min(tensor.bytes() / bytes_of_row, local - begin / bytes_of_row));  // without padding
  return slice;
}

/// The begins and numbers of rows of the groups are the last two lists of numbers that the op reads.
std::vector<RowsOfExpert> OpRecorder::groups_of(const OpInfo& op) const {
  Index first = -1;
  std::vector<std::span<const std::int32_t>> lists;
  for (const Tensor& tensor : op.reads) {
    if (const Extent* const weight = extent_of(parameters_, tensor)) first = slice_of(*weight, tensor).offset[0];
    if (has_memory(tensor) && tensor.dtype() == DType::i32) lists.push_back(tensor.span<std::int32_t>());
  }
  for (const Tensor& tensor : op.writes)
    if (const Extent* const gradient = gradient_of(tensor)) first = slice_of(*gradient, tensor).offset[0];
  std::vector<RowsOfExpert> groups;
  const auto begin = lists[lists.size() - 2], rows = lists[lists.size() - 1];
  for (std::size_t g = 0; g < begin.size(); ++g)
    groups.push_back(
        {.expert = first < 0 ? first : first + static_cast<Index>(g), .begin = begin[g], .count = rows[g]});
  return groups;
}

OpKey OpRecorder::key_of(const CallSite& site, const OpInfo& op) {
  const model::Stage& stage = engine_.stage();
  const Index layers = stage.config().model.num_layers;
  const Index samples_of_rank = stage.step_batch() / engine_.mesh().dp.size();
  OpKey key{.phase = site.phase, .op = op.name};
  key.sample = engine_.mesh().dp_rank() * samples_of_rank + std::max(site.microbatch, 0) * stage.config().micro_batch;
  bool& seen = seen_layers_[{site.phase, site.chunk, site.microbatch}];
  seen = seen || site.layer >= 0;
  const bool is_after = seen == (site.phase == StepPhase::forward);
  key.layer = site.layer >= 0 ? site.layer : is_after ? layers : Index{-1};
  for (const Tensor& tensor : op.reads)
    if (const Extent* const value = extent_of(parameters_, tensor)) key.parameters.push_back(value->name());
  if (is_of_experts(op)) {
    for (const Tensor& tensor : op.writes)
      if (const Extent* const gradient = gradient_of(tensor)) key.parameters.push_back(gradient->name());
  }
  key.occurrence = occurrences_[key]++;
  return key;
}

std::vector<std::size_t> OpRecorder::writers_of(const Tensor& tensor) const {
  std::vector<std::size_t> writers;
  if (!has_memory(tensor)) return writers;
  auto at = written_.upper_bound(begin_of(tensor));
  if (at != written_.begin()) --at;
  for (; at != written_.end() && at->first < end_of(tensor); ++at)
    if (at->second.first > begin_of(tensor)) writers.push_back(at->second.second);
  return writers;
}

void OpRecorder::note_write(const Tensor& tensor, std::size_t op) {
  if (!has_memory(tensor)) return;
  const std::byte *const begin = begin_of(tensor), *const end = end_of(tensor);
  auto at = written_.upper_bound(begin);
  if (at != written_.begin()) --at;
  while (at != written_.end() && at->first < end) {
    const auto [first, extent] = *at;
    if (extent.first <= begin) {
      ++at;
      continue;
    }
    at = written_.erase(at);
    if (first < begin) written_[first] = {begin, extent.second};
    if (extent.first > end) written_[end] = extent;
  }
  written_[begin] = {end, op};
}

void OpRecorder::run(Exec& ex, const OpInfo& op, const Capture::Call& call) {
  OpRecord record{.key = key_of(ex.call_site(), op), .kind = op.kind, .sources = {}, .results = {}};
  std::set<std::size_t> sources;
  for (const Tensor& tensor : op.reads)
    for (const std::size_t writer : writers_of(tensor)) sources.insert(writer);
  record.sources.assign(sources.begin(), sources.end());
  const bool is_recorded = op.kind == OpKind::local && is_pass(record.key.phase);
  if (is_recorded && is_of_experts(op)) record.groups = groups_of(op);
  std::vector<std::vector<double>> before;
  for (const Tensor& tensor : op.writes) {
    const Extent* const gradient = gradient_of(tensor);
    const bool is_added = gradient != nullptr && adds_to(*gradient, op);
    before.push_back(is_recorded && is_added && is_float(tensor.dtype()) ? values_of(tensor) : std::vector<double>());
  }
  ex.execute(op.name, call, op.kind);
  const std::size_t number = ops_.ops.size();
  if (is_recorded) record.results.resize(op.writes.size());
  for (std::size_t i = 0; const Tensor& tensor : op.writes) {
    const std::vector<double>& was = before[i];
    const std::size_t result = i++;
    note_write(tensor, number);
    if (!is_recorded || !has_memory(tensor) || !is_float(tensor.dtype())) continue;
    const Extent* const gradient = gradient_of(tensor);
    // Other memory holds sums over the microbatches of a rank, and messages, which the next stage reads.
    if (gradient == nullptr && !lies_in(engine_.stage().work(), tensor.raw(), tensor.bytes())) continue;
    OpValue value;
    value.shape = tensor.shape();
    value.values = values_of(tensor);
    if (gradient != nullptr) {
      value.gradient_of = gradient->name();
      value.slice = slice_of(*gradient, tensor);
    }
    for (std::size_t k = 0; k < was.size(); ++k) value.values[k] -= was[k];
    record.results[result] = std::move(value);
  }
  ops_.ops.push_back(std::move(record));
}

void OpRecorder::note_last_writers() {
  for (const StateTensors tensors : {StateTensors::gradients, StateTensors::values_and_moments}) {
    for (const StatePiece& piece : updated_pieces(engine_.stage().params(), engine_.optimizers(), tensors))
      for (const std::size_t writer : writers_of(piece.values.is_split() ? piece.values.low : piece.values.whole))
        ops_.last_writers[piece.slice.name].insert(ops_.ops[writer].key.op);
  }
}

}  // namespace megalith::train
