#include "megalith/params/param_buffer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith {
namespace {

/// Elements: every parameter starts on a cache line and, in any dtype, where the widest loads of a GPU may.
constexpr Index kParamAlignment = 128;
static_assert(kParamAlignment % MasterValues::kCarries == 0);

/// What other ranks hold too goes first: of it sums are complete last, and buckets are finished from the end.
int position_of(const grid::Placement& placement) {
  const std::optional<grid::GroupKind> replicas = grid::replica_group(placement);
  if (!replicas) return 2;
  return *replicas == grid::GroupKind::embd ? 0 : 1;
}

}  // namespace

ParamBuffer::ParamBuffer(std::vector<ParamSpec> specs, const Policy& policy)
    : ParamBuffer(std::move(specs), policy, {.bucket_elements = std::numeric_limits<Index>::max()}) {}

ParamBuffer::ParamBuffer(std::vector<ParamSpec> specs, const Policy& policy, const Partition& partition,
                         ParamContents contents)
    : policy_(policy), partition_(partition), contents_(contents) {
  if (!specs.empty()) grid_ = specs.front().placement.grid;
  for (const ParamSpec& spec : specs) {
    grid::check(spec.placement);
    if (spec.placement.grid != grid_)
      throw InternalError(str("[ParamBuffer] parameter ", spec.slice.name, ": is on the other grid"));
  }
  std::stable_sort(specs.begin(), specs.end(), [this](const ParamSpec& a, const ParamSpec& b) {
    const auto order = [this](const ParamSpec& s) {
      return std::tuple(gets_window(s), position_of(s.placement), !grid::is_partial_along_tp(s.placement),
                        s.first_grad != FirstGrad::overwritten);
    };
    return order(a) < order(b);
  });
  for (ParamSpec& spec : specs) {
    Param param;
    param.spec = std::move(spec);
    param.grad_in_window = gets_window(param.spec);
    param.value = Tensor(nullptr, param.spec.held, policy.compute);
    if (has_gradients()) param.grad = Tensor(nullptr, param.spec.held, policy.master);
    if (has_gradients() && param.spec.grad_squares > 0 && partition.one_microbatch && partition.shards == 1)
      param.grad_squares = Tensor(nullptr, {param.spec.grad_squares}, DType::f64);
    params_.push_back(std::move(param));
  }
  for (Param& param : params_) by_name_.try_emplace(param.name(), &param);
  place();
  place_windows();
  values_ = Tensor(nullptr, {numel_}, policy.compute);
  masters_ = has_copy() ? Tensor(nullptr, {own_numel()}, policy.master) : values_;
  if (policy.splits_masters()) {
    masters_ = Tensor(nullptr, {own_numel(), 2}, DType::u8);
    carries_ = Tensor(nullptr, {own_numel() / MasterValues::kCarries}, DType::u64);
  }
  if (has_gradients()) grads_ = Tensor(nullptr, {whole_numel_}, policy.master);
  for (Param& param : params_) param.masters = masters_of(param);
}

bool ParamBuffer::gets_window(const ParamSpec& spec) const {
  return shards_gradients() && spec.layer >= 0 && spec.first_grad == FirstGrad::overwritten &&
         !grid::replica_group(spec.placement);
}

/// Backward finishes layers from the last to the first, which is the flat buffer from its end: so buckets are made, and
/// parameters placed, from there. A bucket ends where it is large enough, where the placement changes, where layers
/// stop or begin, and where their numbers jump up (the buffer holds the layers' matrices and, apart from
/// them, their vectors). With windows, a bucket ends with every layer, so that a window is small and a bucket belongs
/// to one backward pass.
void ParamBuffer::place() {
  const Index unit = partition_.shards * kParamAlignment;
  // Until the size is known, places are counted back from the end.
  Index from_end = 0, layer_above = -1;
  int windows = 0;
  for (std::size_t i = params_.size(); i-- > 0;) {
    Param& param = params_[i];
    const Index layer = param.spec.layer;
    const bool full = !buckets_.empty() && from_end + buckets_.back().end >= partition_.bucket_elements;
    const bool in_same_window = !buckets_.empty() && buckets_.back().has_window() == param.grad_in_window &&
                                (!param.grad_in_window || layer == layer_above);
    const bool continues =
        in_same_window && (layer < 0 ? layer_above < 0 : layer <= layer_above && !(full && layer < layer_above));
    if (!continues || buckets_.back().placement != param.spec.placement) {
      from_end = round_up(from_end, unit);
      const bool owns = grid::owns_in_copy(param.spec.placement, partition_.place);
      buckets_.push_back({.end = -from_end,
                          .placement = param.spec.placement,
                          .ownership = owns ? Ownership::owner : Ownership::replica,
                          .window = param.grad_in_window ? windows++ % kGradWindows : Bucket::kNoWindow});
    }
    from_end += round_up(param.spec.held.numel(), kParamAlignment);
    param.offset = -from_end;
    Bucket& bucket = buckets_.back();
    if (layer >= 0 && (bucket.layers.empty() || bucket.layers.back() != layer)) bucket.layers.push_back(layer);
    layer_above = layer;
  }
  numel_ = round_up(from_end, unit);
  for (Param& param : params_) param.offset += numel_;
  Index begin = 0;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    bucket->begin = std::exchange(begin, bucket->end + numel_);
    bucket->end = begin;
    if (!grid::is_partial_along_tp(bucket->placement)) continue;
    if (partial_numel_ == 0) partial_begin_ = bucket->begin;
    partial_numel_ = bucket->end - partial_begin_;
  }
  if (!is_sharded()) {
    own_ranges_ = {{0, 0, numel_}};
    return;
  }
  for (const Bucket& bucket : buckets_) {
    const Index count = bucket.numel() / partition_.shards;
    own_ranges_.push_back({bucket.begin + partition_.own * count, bucket.begin / partition_.shards, count});
  }
}

void ParamBuffer::place_windows() {
  whole_numel_ = numel_;
  std::array<Index, kGradWindows> numel{};
  for (const Bucket& bucket : buckets_) {
    if (!bucket.has_window()) continue;
    whole_numel_ -= bucket.numel();
    Index& of_window = numel.at(static_cast<std::size_t>(bucket.window));
    of_window = std::max(of_window, bucket.numel());
  }
  if (whole_numel_ == numel_) return;
  grad_shards_ = Tensor(nullptr, {(numel_ - whole_numel_) / partition_.shards}, policy_.master);
  for (const Index of_window : numel) {
    if (of_window > 0) grad_windows_.emplace_back(nullptr, Shape{of_window}, policy_.master);
  }
}

Index ParamBuffer::squares_bytes() const {
  Index bytes = 0;
  for (const Param& param : params_) {
    if (param.grad_squares) bytes += param.grad_squares.bytes();
  }
  return bytes;
}

Index ParamBuffer::windows_bytes() const {
  Index bytes = 0;
  for (const Tensor& window : grad_windows_) bytes += window.bytes();
  return bytes;
}

BytesByOwner ParamBuffer::bytes() const {
  BytesByOwner bytes = {{"parameters", masters_.bytes() + (carries_ ? carries_.bytes() : 0)}};
  if (has_gradients()) bytes["gradients"] = grads_.bytes() + shards_bytes() + squares_bytes();
  if (shards_gradients()) bytes[kGradWindowsOwner] = windows_bytes();
  if (has_copy()) bytes["parameter copies"] = values_.bytes();
  return bytes;
}

void ParamBuffer::allocate(MemoryLedger& ledger) {
  const BytesByOwner wanted = bytes();
  master_memory_ = ledger.take("parameters", wanted.at("parameters"));
  const Index carries_at = masters_.bytes();
  masters_ = master_memory_.view(masters_.shape(), masters_.dtype());
  if (carries_) carries_ = master_memory_.view(carries_.shape(), DType::u64, carries_at);
  if (has_gradients()) allocate_gradients(ledger);
  values_ = masters_;
  if (has_copy()) {
    copy_memory_ = ledger.take("parameter copies", wanted.at("parameter copies"));
    values_ = copy_memory_.view({numel_}, policy_.compute);
  }
  Index squares_at = grads_.bytes() + shards_bytes();
  for (Param& param : params_) {
    if (param.grad_squares) {
      param.grad_squares = grad_memory_.view(param.grad_squares.shape(), DType::f64, squares_at);
      squares_at += param.grad_squares.bytes();
    }
    param.value = part(values_, param);
    param.masters = masters_of(param);
    if (has_gradients() && !param.grad_in_window) param.grad = part(grads_, param);
  }
}

void ParamBuffer::allocate_gradients(MemoryLedger& ledger) {
  const BytesByOwner wanted = bytes();
  grad_memory_ = ledger.take("gradients", wanted.at("gradients"));
  grads_ = grad_memory_.view({whole_numel_}, policy_.master);
  added_grads_ = find_added_grads();
  if (!shards_gradients()) return;
  if (grad_shards_) grad_shards_ = grad_memory_.view(grad_shards_.shape(), policy_.master, grads_.bytes());
  window_memory_ = ledger.take(kGradWindowsOwner, wanted.at(kGradWindowsOwner));
  Index offset = 0;
  for (Tensor& window : grad_windows_) {
    window = window_memory_.view(window.shape(), policy_.master, offset);
    offset += window.bytes();
  }
  for (Param& param : params_) {
    if (!param.grad_in_window) continue;
    const Bucket& bucket = bucket_of(param);
    param.grad = grads_of(bucket).rows(param.offset - bucket.begin, param.spec.held.numel()).reshaped(param.spec.held);
  }
  window_gaps_.clear();
  for (const Bucket& bucket : buckets_)
    window_gaps_.push_back(bucket.has_window() ? gaps_of(bucket) : std::vector<Tensor>());
}

const Bucket& ParamBuffer::bucket_of(const Param& param) const {
  return *std::ranges::find_if(
      buckets_, [&](const Bucket& bucket) { return bucket.begin <= param.offset && param.offset < bucket.end; });
}

std::vector<Tensor> ParamBuffer::gaps_of(const Bucket& bucket) const {
  std::vector<Tensor> gaps;
  const Tensor window = grads_of(bucket);
  Index end = bucket.begin;  // of the parameter before
  const auto add_up_to = [&](Index begin) {
    if (begin > end) gaps.push_back(window.rows(end - bucket.begin, begin - end));
  };
  for (const Param& param : params_) {  // ascending
    if (param.offset < bucket.begin || param.offset >= bucket.end) continue;
    add_up_to(param.offset);
    end = param.offset + param.spec.held.numel();
  }
  add_up_to(bucket.end);
  return gaps;
}

std::vector<Tensor> ParamBuffer::find_added_grads() const {
  std::vector<Tensor> ranges;
  const auto is_added = [](const Param& param) { return param.spec.first_grad == FirstGrad::added; };
  for (auto first = params_.begin(); (first = std::find_if(first, params_.end(), is_added)) != params_.end();) {
    const auto last = std::find_if_not(first, params_.end(), is_added);
    const Index end = last == params_.end() ? whole_numel_ : std::min(last->offset, whole_numel_);
    ranges.push_back(grads_.rows(first->offset, end - first->offset));
    first = last;
  }
  return ranges;
}

Param* ParamBuffer::find(std::string_view name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Param& ParamBuffer::at(std::string_view name) {
  if (Param* const param = find(name)) return *param;
  throw InternalError(str("[ParamBuffer::at] parameter ", name, ": this rank holds none of that name"));
}

Tensor ParamBuffer::own_shard(const Tensor& flat, const Bucket& bucket) const {
  const Index count = bucket.numel() / partition_.shards;
  return flat.rows(bucket.begin + partition_.own * count, count);
}

MasterValues ParamBuffer::own_masters(const OwnRange& range) const {
  if (!has_copy()) return {.whole = range.of_whole(masters_)};
  if (!carries_) return {.whole = range.of_own(masters_), .copy = range.of_whole(values_)};
  const Index first = range.in_own / MasterValues::kCarries;
  const Index last = ceil_div(range.in_own + range.count, MasterValues::kCarries);
  return {.copy = range.of_whole(values_),
          .low = range.of_own(masters_),
          .carries = carries_.rows(first, last - first),
          .first_carry = range.in_own % MasterValues::kCarries};
}

MasterValues ParamBuffer::masters_of(const Param& param) const {
  if (has_copy() && is_sharded()) return {};
  const OwnRange all{param.offset, param.offset, param.spec.held.numel()};
  MasterValues masters = own_masters(all);
  if (masters.whole) masters.whole = masters.whole.reshaped(param.spec.held);
  return masters;
}

Tensor ParamBuffer::grads_of(const Bucket& bucket) const {
  if (!bucket.has_window()) return part(grads_, bucket);
  return grad_windows_[static_cast<std::size_t>(bucket.window)].rows(0, bucket.numel());
}

Tensor ParamBuffer::own_shard_of_grads(const Bucket& bucket) const {
  const Index count = bucket.numel() / partition_.shards;
  return grads_of(bucket).rows(partition_.own * count, count);
}

Tensor ParamBuffer::own_grads(const Bucket& bucket) const {
  if (!bucket.has_window()) return own_shard(grads_, bucket);
  return grad_shards_.rows((bucket.begin - whole_numel_) / partition_.shards, bucket.numel() / partition_.shards);
}

Tensor ParamBuffer::own_grads(const OwnRange& range) const {
  if (range.in_whole < whole_numel_) return range.of_whole(grads_);
  return grad_shards_.rows(range.in_own - whole_numel_ / partition_.shards, range.count);
}

std::vector<OwnRange> ParamBuffer::shard_ranges() const {
  std::vector<OwnRange> ranges;
  for (const OwnRange& range : own_ranges_) {
    if (range.in_whole >= whole_numel_)
      ranges.push_back({range.in_whole, range.in_own - whole_numel_ / partition_.shards, range.count});
  }
  return ranges;
}

std::vector<Tensor> ParamBuffer::kept_grads(const Param& param) const {
  if (!param.grad_in_window) return {param.grad};
  std::vector<Tensor> kept;
  for (const OwnRange& range : shard_ranges()) {
    const Index begin = std::max(param.offset, range.in_whole);
    const Index end = std::min(param.offset + param.spec.held.numel(), range.in_whole + range.count);
    if (begin < end) kept.push_back(grad_shards_.rows(range.in_own + begin - range.in_whole, end - begin));
  }
  return kept;
}

Index ParamBuffer::sum_bytes(Index microbatches) const {
  if (!has_gradients() || partition_.shards == 1) return 0;
  const Index windowed = numel_ - whole_numel_, calls_of_whole = is_sharded() ? 1 : 2;
  const Index numel = calls_of_whole * whole_numel_ + microbatches * windowed;
  return numel / partition_.shards * (partition_.shards - 1) * size_of(policy_.master);
}

Tensor ParamBuffer::part(const Tensor& flat, const Param& param) const {
  return flat.rows(param.offset, param.spec.held.numel()).reshaped(param.spec.held);
}

}  // namespace megalith
