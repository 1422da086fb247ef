#include "megalith/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "megalith/ops/elementwise.h"

namespace megalith::optim {

Optimizer::Optimizer(const OptimConfig& config, ParamBuffer& params, comm::Group data, comm::Group tp,
                     std::uint64_t seed)
    : config_(config),
      params_(params),
      data_(std::move(data)),
      seed_(seed),
      unsummed_(find_unsummed()),
      m_(nullptr, {params.own_numel()}, moment_dtype()),
      decays_(nullptr, {num_groups()}, DType::u8) {
  if (rounds_moments()) {
    const auto count = static_cast<Index>(params.params().size());
    rounded_params_ = Tensor(nullptr, {count * Index{sizeof(ops::RoundedParam)}}, DType::u8);
    param_of_ = Tensor(nullptr, {num_groups()}, DType::i32);
  }
  if (config.type == OptimizerType::muon) muon_.emplace(config, params, data_, std::move(tp));
  divide();
  v_ = Tensor(nullptr, {numel_of_v()}, moment_dtype());
}

/// Parameters begin at multiples of ops::kDecayGroup. What lies between two of them is 0, and goes with the first.
void Optimizer::divide() {
  if (!muon_) {
    second_moments_ = adamw_ranges_ = params_.own_ranges();
    return;
  }
  std::vector<Index> bounds = {0, params_.numel()};
  for (const Param& param : params_.params()) bounds.push_back(param.offset);
  std::ranges::sort(bounds);
  const auto add = [](std::vector<OwnRange>& ranges, const OwnRange& range) {
    OwnRange* const last = ranges.empty() ? nullptr : &ranges.back();
    const bool continues =
        last != nullptr && last->in_whole + last->count == range.in_whole && last->in_own + last->count == range.in_own;
    if (continues)
      last->count += range.count;
    else
      ranges.push_back(range);
  };
  const auto is_of_muon = [&](Index element) {
    const auto found = std::ranges::find(params_.params(), element, &Param::offset);
    return found != params_.params().end() && Muon::takes(*found);
  };
  Index in_v = 0;
  for (const OwnRange& own : params_.own_ranges()) {
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
      const Index begin = std::max(own.in_whole, bounds[i]), end = std::min(own.in_whole + own.count, bounds[i + 1]);
      if (begin >= end) continue;
      const OwnRange range{begin, own.in_own + begin - own.in_whole, end - begin};
      if (is_of_muon(bounds[i])) {
        add(muon_ranges_, range);
        continue;
      }
      const std::size_t before = adamw_ranges_.size();
      add(adamw_ranges_, range);
      if (adamw_ranges_.size() == before)
        second_moments_.back().count += range.count;
      else
        second_moments_.push_back({range.in_whole, in_v, range.count});
      in_v += range.count;
    }
  }
}

Index Optimizer::numel_of_v() const {
  Index numel = 0;
  for (const OwnRange& range : second_moments_) numel += range.count;
  return numel;
}

Index Optimizer::bytes() const {
  Index bytes = m_.bytes() + v_.bytes() + decays_.bytes();
  if (rounds_moments()) bytes += rounded_params_.bytes() + param_of_.bytes();
  return bytes;
}

void Optimizer::allocate(Exec& ex, MemoryLedger& ledger) {
  memory_ = ledger.take("optimizer", bytes());
  Index offset = 0;
  for (Tensor* const tensor : {&m_, &v_, &rounded_params_, &param_of_, &decays_}) {  // wide elements first
    if (!*tensor) continue;
    *tensor = memory_.view(tensor->shape(), tensor->dtype(), offset);
    offset += tensor->bytes();
  }
  fill_decays(ex);
  if (rounds_moments()) fill_rounding(ex);
}

void Optimizer::fill_decays(Exec& ex) const {
  std::vector<std::uint8_t> decays(static_cast<std::size_t>(ceil_div(params_.numel(), ops::kDecayGroup)));
  for (const Param& param : params_.params()) {
    if (param.spec.decay == Decay::no) continue;
    const Index first = param.offset / ops::kDecayGroup, last = param.offset + param.spec.held.numel();
    std::fill(decays.begin() + first, decays.begin() + ceil_div(last, ops::kDecayGroup), std::uint8_t{1});
  }
  for (const OwnRange& range : params_.own_ranges()) {
    const Tensor own = own_groups(decays_, range);
    ex.copy(own.raw(), decays.data() + range.in_whole / ops::kDecayGroup, own.bytes());
  }
  ex.synchronize();
}

void Optimizer::fill_rounding(Exec& ex) const {
  std::vector<ops::RoundedParam> rounded;
  std::vector<std::int32_t> param_of(static_cast<std::size_t>(ceil_div(params_.numel(), ops::kDecayGroup)));
  for (const Param& param : params_.params()) {
    const Index first = param.offset / ops::kDecayGroup, last = param.offset + param.spec.held.numel();
    std::fill(param_of.begin() + first, param_of.begin() + ceil_div(last, ops::kDecayGroup),
              static_cast<std::int32_t>(rounded.size()));
    rounded.push_back(ops::RoundedParam::of(param.spec.slice, param.offset, seed_));
  }
  ex.copy(rounded_params_.raw(), rounded.data(), rounded_params_.bytes());
  for (const OwnRange& range : params_.own_ranges()) {
    const Tensor own = own_groups(param_of_, range);
    ex.copy(own.raw(), param_of.data() + range.in_whole / ops::kDecayGroup, own.bytes());
  }
  ex.synchronize();
}

Tensor Optimizer::own_groups(const Tensor& tensor, const OwnRange& range) {
  return tensor.rows(range.in_own / ops::kDecayGroup, ceil_div(range.count, ops::kDecayGroup));
}

ops::MomentRounding Optimizer::rounding_of(const OwnRange& range) const {
  if (!rounds_moments()) return {};
  return {.params = rounded_params_, .param_of = own_groups(param_of_, range), .first = range.in_whole};
}

std::vector<Optimizer::Unsummed> Optimizer::find_unsummed() const {
  std::vector<Unsummed> ranges;
  for (std::size_t b = 0; b < params_.buckets().size(); ++b) {
    const Bucket& bucket = params_.buckets()[b];
    Index begin = bucket.begin;
    const auto add_up_to = [&](Index end) {
      if (end > begin) ranges.push_back({b, begin, end});
    };
    for (const Param& param : params_.params()) {
      if (!param.grad_squares || param.offset < bucket.begin || param.offset >= bucket.end) continue;
      add_up_to(param.offset);
      begin = param.offset + param.grad.numel();
    }
    add_up_to(bucket.end);
  }
  return ranges;
}

/// 0: this rank counts the bucket's parameters in the norm; 1: another does.
std::size_t Optimizer::kind_of(std::size_t bucket) const {
  return params_.buckets()[bucket].ownership == Ownership::owner ? 0 : 1;
}

void Optimizer::sum_of_squares(Exec& ex, const Tensor& sum_squares,
                               const std::function<void(std::size_t)>& await) const {
  const Index shards = params_.shards();
  const auto blocks_of = [&](const Unsummed& range) {
    return ops::square_blocks(ex.device(), (range.end - range.begin) / shards);  // of a shard
  };
  std::array<Index, 2> counts{};  // of the owned ones' blocks and, after them, of the replicas'
  for (const Unsummed& range : unsummed_) counts[kind_of(range.bucket)] += shards * blocks_of(range);
  const Index count = counts[0] + counts[1];
  ops::fill(ex, sum_squares, 0);
  const Tensor sums = count == 0 ? Tensor() : ex.tensor({count}, DType::f64);  // of every bucket [shards, blocks]
  if (sums && params_.is_sharded()) ops::fill(ex, sums, 0);
  std::array<Index, 2> next{0, counts[0]};
  std::size_t awaited = 0;
  for (const Unsummed& range : unsummed_) {
    for (; await && awaited <= range.bucket; ++awaited) await(awaited);
    const Index blocks = blocks_of(range), numel = range.end - range.begin;
    Index& first = next[kind_of(range.bucket)];
    const auto sum = [&](const Tensor& grads, Index rows, Index place) {
      ops::sum_of_squares(ex, grads.reshaped({rows, numel / shards}),
                          sums.rows(place, rows * blocks).reshaped({rows, blocks}));
    };
    if (params_.is_sharded())
      sum(params_.own_grads(params_.buckets()[range.bucket]), 1, first + data_.rank() * blocks);
    else
      sum(params_.grads().rows(range.begin, numel), shards, first);
    first += shards * blocks;
  }
  for (; await && awaited < params_.buckets().size(); ++awaited) await(awaited);
  // Every block has been summed on one rank and is 0 on the others, so this is exact in any order.
  if (sums && params_.is_sharded()) comm::all_reduce(ex, data_, sums, comm::Reduce::sum).wait(ex);
  if (data_.rank() != 0) counts = {0, count};  // a copy of what the first model copy counts
  if (counts[0] > 0) ops::add_up(ex, sums.rows(0, counts[0]), sum_squares.rows(0, 1));
  if (counts[1] > 0) ops::add_up(ex, sums.rows(counts[0], counts[1]), sum_squares.rows(1, 1));
  for (const Param& param : params_.params()) {
    if (!param.grad_squares) continue;
    const auto bucket = std::ranges::find_if(
        params_.buckets(), [&](const Bucket& b) { return b.begin <= param.offset && param.offset < b.end; });
    const bool counts_here = bucket->ownership == Ownership::owner && data_.rank() == 0;
    ops::add_up(ex, param.grad_squares, sum_squares.rows(counts_here ? 0 : 1, 1));
  }
}

void Optimizer::step(Exec& ex, const Tensor& verdict) const {
  update_by_adamw(ex, verdict);
  if (muon_) update_by_muon(ex, verdict);  // last: it leaves other gradients undefined
}

void Optimizer::update_by_adamw(Exec& ex, const Tensor& verdict) const {
  for (std::size_t i = 0; i < adamw_ranges_.size(); ++i) {
    const OwnRange& range = adamw_ranges_[i];
    ops::adamw(ex, {.masters = params_.own_masters(range),
                    .m = range.of_own(m_),
                    .v = second_moments_[i].of_own(v_),
                    .rounding = rounding_of(range),
                    .grad = params_.own_grads(range),
                    .decays = own_groups(decays_, range),
                    .verdict = verdict,
                    .beta1 = config_.beta1,
                    .beta2 = config_.beta2,
                    .eps = config_.eps,
                    .weight_decay = config_.weight_decay});
  }
}

void Optimizer::update_by_muon(Exec& ex, const Tensor& verdict) const {
  for (const OwnRange& range : muon_ranges_) {
    ops::muon_momentum(ex, {.grad = range.of_whole(params_.grads()),
                            .m = range.of_own(m_),
                            .verdict = verdict,
                            .momentum = config_.muon_momentum});
  }
  muon_->orthogonalise(ex);
  for (const OwnRange& range : muon_ranges_) {
    ops::muon_update(ex, {.masters = params_.own_masters(range),
                          .update = range.of_whole(params_.grads()),
                          .decays = own_groups(decays_, range),
                          .verdict = verdict,
                          .weight_decay = config_.weight_decay});
  }
}

}  // namespace megalith::optim
