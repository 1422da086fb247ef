#include "megalith/nn/tensor_parallel.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::nn {

void InFlight::wait(Exec& ex) {
  for (comm::Pending& message : messages_) message.wait(ex);
  count_ = 0;
}

TensorParallel::TensorParallel(comm::Group group, SequenceParallel sequence_parallel, int sub_batches)
    : group_(std::move(group)),
      sequence_parallel_(group_.size() > 1 ? sequence_parallel : SequenceParallel::off),
      sub_batches_(sub_batches) {
  if (sub_batches < 1 || sub_batches > kMaxSubBatches)
    throw InternalError(str("[TensorParallel] sub_batches = ", sub_batches, ": must be 1 or ", kMaxSubBatches));
}

grid::Placement TensorParallel::outside_placement() const {
  if (group_.size() == 1) return grid::kSharded;
  return sequence_parallel_ == SequenceParallel::off ? grid::kReplicated : grid::kReplicatedPartial;
}

Index TensorParallel::rows_outside(Index tokens) const {
  if (sequence_parallel_ == SequenceParallel::off) return tokens;
  if (tokens % (group_.size() * sub_batches_) != 0) {
    throw ConfigError(
        str("train.micro_batch * model.seq_len = ", tokens,
            ": must be divisible by parallel.tp * sub-microbatches = ", group_.size(), " * ", sub_batches_,
            " with parallel.sequence_parallel = true: every rank holds as many rows of each sub-microbatch"));
  }
  return tokens / group_.size();
}

TensorParallel::InRegion TensorParallel::to_region(Exec& ex, const Tensor& x, const SubBatch& sub_batch,
                                                   comm::Where where) const {
  if (sequence_parallel_ == SequenceParallel::off) return {x, {}};
  InRegion in_region{ex.tensor({x.dim(0) * group_.size(), x.dim(1)}, x.dtype()), {}};
  for (SubBatch block{0, num_blocks(sub_batch)}; block.index < block.count; ++block.index)
    in_region.messages.add(
        comm::all_gather(ex, group_, block.of(x), block.of(in_region.x), comm::Priority::awaited, where));
  return in_region;
}

Tensor TensorParallel::region_sums(Exec& ex, const Tensor& out) const {
  return sequence_parallel_ == SequenceParallel::off ? out
                                                     : ex.tensor({out.dim(0) * group_.size(), out.dim(1)}, out.dtype());
}

InFlight TensorParallel::from_region(Exec& ex, const Tensor& sums, const Tensor& out, const SubBatch& sub_batch,
                                     comm::Where where) const {
  InFlight messages;
  if (sequence_parallel_ == SequenceParallel::off) {
    messages.add(comm::all_reduce(ex, group_, out, comm::Reduce::sum, comm::Priority::awaited, where));
    return messages;
  }
  for (SubBatch block{0, num_blocks(sub_batch)}; block.index < block.count; ++block.index)
    messages.add(comm::reduce_scatter(ex, group_, block.of(sums), block.of(out), comm::Reduce::sum,
                                      comm::Priority::awaited, where));
  return messages;
}

Tensor TensorParallel::through_dropout(Exec& ex, const Microbatch& microbatch, const DropoutSite& site,
                                       const Tensor& dout) const {
  if (site.probability == 0) return dout;
  Tensor dx = ex.tensor_like(dout);
  for_blocks(microbatch, site, [&](const SubBatch& block, const ops::Dropout& dropout) {
    ops::dropout_backward(ex, {.dout = block.of(dout), .dx = block.of(dx), .dropout = dropout});
  });
  return dx;
}

}  // namespace megalith::nn
