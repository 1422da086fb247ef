#include "megalith/train/op_record.h"

#include <algorithm>
#include <set>

#include "megalith/base/str.h"
#include "megalith/tensor/memory.h"

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

bool is_pass(StepPhase phase) { return phase == StepPhase::forward || phase == StepPhase::backward; }

}  // namespace

std::string describe(const OpKey& key, Index num_layers) {
  return str(name_of(key.phase), ", sample ", key.sample, ", ",
             key.layer < 0             ? std::string("before the layers")
             : key.layer >= num_layers ? std::string("after the layers")
                                       : str("layer ", key.layer));
}

OpRecorder::OpRecorder(Engine& engine, RankOps& ops) : engine_(engine), ops_(ops) {
  ops_ = {.tp_rank = engine.mesh().tp_rank(), .ops = {}, .last_on_gradients = {}};
  const auto extent = [](const Tensor& tensor, const std::string& name) {
    return Extent{begin_of(tensor), end_of(tensor), name};
  };
  for (const ParamBuffer& buffer : engine.stage().params().buffers()) {
    for (const Param& param : buffer.params()) {
      if (param.value.bytes() == 0) continue;
      parameters_.push_back(extent(param.value, param.name()));
      if (buffer.has_gradients()) gradients_.push_back(extent(param.grad, param.name()));
    }
  }
  for (std::vector<Extent>* const extents : {&parameters_, &gradients_})
    std::ranges::sort(*extents, {}, &Extent::begin);
}

std::string OpRecorder::name_in(const std::vector<Extent>& extents, const Tensor& tensor) {
  if (!has_memory(tensor)) return "";
  auto after = std::ranges::upper_bound(extents, begin_of(tensor), {}, &Extent::begin);
  if (after == extents.begin()) return "";
  const Extent& found = *std::prev(after);
  return end_of(tensor) <= found.end ? found.name : "";
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
    if (std::string name = name_in(parameters_, tensor); !name.empty()) key.parameters.push_back(std::move(name));
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
  std::vector<std::vector<double>> before;
  bool is_on_gradients = false;
  for (const Tensor& tensor : op.writes) {
    const std::string name = name_in(gradients_, tensor);
    before.push_back(is_recorded && !name.empty() && is_float(tensor.dtype()) ? values_of(tensor)
                                                                              : std::vector<double>());
    is_on_gradients =
        is_on_gradients || (has_memory(tensor) && !gradients_.empty() && begin_of(tensor) < gradients_.back().end &&
                            end_of(tensor) > gradients_.front().begin);
  }
  ex.execute(op.name, call, op.kind);
  const std::size_t number = ops_.ops.size();
  if (is_recorded) record.results.resize(op.writes.size());
  for (std::size_t i = 0; const Tensor& tensor : op.writes) {
    const std::vector<double>& was = before[i];
    const std::size_t result = i++;
    note_write(tensor, number);
    if (!is_recorded || !has_memory(tensor) || !is_float(tensor.dtype())) continue;
    std::string gradient = name_in(gradients_, tensor);
    // Other memory holds sums over the microbatches of a rank, and messages, which the next stage reads.
    if (gradient.empty() && !lies_in(engine_.stage().work(), tensor.raw(), tensor.bytes())) continue;
    OpValue value{.gradient_of = std::move(gradient), .shape = tensor.shape(), .values = values_of(tensor)};
    for (std::size_t k = 0; k < was.size(); ++k) value.values[k] -= was[k];
    record.results[result] = std::move(value);
  }
  if (is_on_gradients && op.kind != OpKind::local) ops_.last_on_gradients.push_back(number);
  ops_.ops.push_back(std::move(record));
}

}  // namespace megalith::train
