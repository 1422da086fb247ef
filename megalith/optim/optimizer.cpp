#include "megalith/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "megalith/ops/elementwise.h"

namespace megalith::optim {

Optimizer::Optimizer(const OptimConfig& config, ParamBuffer& params, comm::Group data)
    : config_(config),
      params_(params),
      data_(std::move(data)),
      unsummed_(find_unsummed()),
      m_(nullptr, {params.own_numel()}, params.policy().master),
      v_(nullptr, {params.own_numel()}, params.policy().master),
      decays_(nullptr, {num_groups()}, DType::u8) {}

Index Optimizer::bytes() const { return 2 * moment_bytes() + num_groups(); }

void Optimizer::allocate(Exec& ex, MemoryLedger& ledger) {
  const DType dtype = params_.policy().master;
  memory_ = ledger.take("optimizer", bytes());
  m_ = memory_.view({params_.own_numel()}, dtype);
  v_ = memory_.view({params_.own_numel()}, dtype, moment_bytes());
  decays_ = memory_.view({num_groups()}, DType::u8, 2 * moment_bytes());
  std::vector<std::uint8_t> decays(static_cast<std::size_t>(ceil_div(params_.numel(), ops::kDecayGroup)));
  for (const Param& param : params_.params()) {
    if (param.spec.decay == Decay::no) continue;
    const Index first = param.offset / ops::kDecayGroup, last = param.offset + param.spec.held.numel();
    std::fill(decays.begin() + first, decays.begin() + ceil_div(last, ops::kDecayGroup), std::uint8_t{1});
  }
  for (const OwnRange& range : params_.own_ranges()) {
    const Tensor own = own_decays(range);
    ex.copy(own.raw(), decays.data() + range.in_whole / ops::kDecayGroup, own.numel());
  }
  ex.synchronize();
}

Tensor Optimizer::own_decays(const OwnRange& range) const {
  return decays_.rows(range.in_own / ops::kDecayGroup, ceil_div(range.count, ops::kDecayGroup));
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
      sum(params_.own_shard(params_.grads(), params_.buckets()[range.bucket]), 1, first + data_.rank() * blocks);
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
  for (const OwnRange& range : params_.own_ranges()) {
    ops::adamw(ex, {.value = params_.own_masters(range),
                    .m = range.of_own(m_),
                    .v = range.of_own(v_),
                    .copy = params_.has_copy() ? range.of_whole(params_.values()) : Tensor(),
                    .grad = range.of_whole(params_.grads()),
                    .decays = own_decays(range),
                    .verdict = verdict,
                    .beta1 = config_.beta1,
                    .beta2 = config_.beta2,
                    .eps = config_.eps,
                    .weight_decay = config_.weight_decay});
  }
}

}  // namespace megalith::optim
