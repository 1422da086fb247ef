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

void Optimizer::sum_of_squares(Exec& ex, const Tensor& sum_squares,
                               const std::function<void(std::size_t)>& await) const {
  const Index shards = params_.shards();
  const auto blocks_of = [&](const Bucket& bucket) {
    return ops::square_blocks(ex.device(), bucket.numel() / shards);  // of a shard
  };
  const auto kind_of = [](const Bucket& bucket) { return bucket.ownership == Ownership::owner ? 0u : 1u; };
  std::array<Index, 2> counts{};  // of the owned ones' blocks and, after them, of the replicas'
  for (const Bucket& bucket : params_.buckets()) counts[kind_of(bucket)] += shards * blocks_of(bucket);
  const Index count = counts[0] + counts[1];
  ops::fill(ex, sum_squares, 0);
  const Tensor sums = count == 0 ? Tensor() : ex.tensor({count}, DType::f64);  // of every bucket [shards, blocks]
  if (sums && params_.is_sharded()) ops::fill(ex, sums, 0);
  std::array<Index, 2> next{0, counts[0]};
  for (std::size_t b = 0; b < params_.buckets().size(); ++b) {
    if (await) await(b);
    const Bucket& bucket = params_.buckets()[b];
    const Index blocks = blocks_of(bucket);
    Index& first = next[kind_of(bucket)];
    const auto sum = [&](const Tensor& grads, Index rows, Index place) {
      ops::sum_of_squares(ex, grads.reshaped({rows, bucket.numel() / shards}),
                          sums.rows(place, rows * blocks).reshaped({rows, blocks}));
    };
    if (params_.is_sharded())
      sum(params_.own_shard(params_.grads(), bucket), 1, first + data_.rank() * blocks);
    else
      sum(params_.part(params_.grads(), bucket), shards, first);
    first += shards * blocks;
  }
  // Every block has been summed on one rank and is 0 on the others, so this is exact in any order.
  if (sums && params_.is_sharded()) comm::all_reduce(ex, data_, sums, comm::Reduce::sum).wait(ex);
  if (data_.rank() != 0) counts = {0, count};  // a copy of what the first model copy counts
  if (counts[0] > 0) ops::add_up(ex, sums.rows(0, counts[0]), sum_squares.rows(0, 1));
  if (counts[1] > 0) ops::add_up(ex, sums.rows(counts[0], counts[1]), sum_squares.rows(1, 1));
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
