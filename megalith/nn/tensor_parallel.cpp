#include "megalith/nn/tensor_parallel.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::nn {

void InFlight::wait(Exec& ex) {
  for (comm::Pending& message : messages_) message.wait(ex);
  count_ = 0;
}

TensorParallel::TensorParallel(comm::Group group, Rows rows, int parts)
    : group_(std::move(group)), rows_(group_.size() > 1 ? rows : Rows::whole), parts_(parts) {
  if (parts < 1 || parts > kMostParts)
    throw InternalError(str("[TensorParallel] parts = ", parts, ": must be 1 or ", kMostParts));
}

grid::Placement TensorParallel::outside_placement() const {
  if (group_.size() == 1) return grid::kSharded;
  return rows_ == Rows::whole ? grid::kReplicated : grid::kReplicatedPartial;
}

Index TensorParallel::rows_outside(Index tokens) const {
  if (rows_ == Rows::whole) return tokens;
  if (tokens % (group_.size() * parts_) != 0) {
    throw ConfigError(str("train.micro_batch * model.seq_len = ", tokens,
                          ": must be divisible by parallel.tp * parts = ", group_.size(), " * ", parts_,
                          " with parallel.sequence_parallel = true: every rank holds as many rows of each part"));
  }
  return tokens / group_.size();
}

TensorParallel::Entered TensorParallel::enter(Exec& ex, const Tensor& x, const Part& part, comm::Where where) const {
  if (rows_ == Rows::whole) return {x, {}};
  Entered entered{ex.tensor({x.dim(0) * group_.size(), x.dim(1)}, x.dtype()), {}};
  for (Part run{0, runs(part)}; run.index < run.count; ++run.index)
    entered.messages.add(comm::all_gather(ex, group_, run.of(x), run.of(entered.x), comm::Haste::awaited, where));
  return entered;
}

Tensor TensorParallel::before_leaving(Exec& ex, const Tensor& out) const {
  return rows_ == Rows::whole ? out : ex.tensor({out.dim(0) * group_.size(), out.dim(1)}, out.dtype());
}

InFlight TensorParallel::leave(Exec& ex, const Tensor& sums, const Tensor& out, const Part& part,
                               comm::Where where) const {
  InFlight messages;
  if (rows_ == Rows::whole) {
    messages.add(comm::all_reduce(ex, group_, out, comm::Reduce::sum, comm::Haste::awaited, where));
    return messages;
  }
  for (Part run{0, runs(part)}; run.index < run.count; ++run.index)
    messages.add(
        comm::reduce_scatter(ex, group_, run.of(sums), run.of(out), comm::Reduce::sum, comm::Haste::awaited, where));
  return messages;
}

Tensor TensorParallel::through_dropout(Exec& ex, const Microbatch& microbatch, const DropoutSite& site,
                                       const Tensor& dout) const {
  if (site.probability == 0) return dout;
  Tensor dx = ex.tensor(dout.shape(), dout.dtype());
  for_runs(microbatch, site, [&](const Part& run, const ops::Dropout& dropout) {
    ops::dropout_backward(ex, {.dout = run.of(dout), .dx = run.of(dx), .dropout = dropout});
  });
  return dx;
}

}  // namespace megalith::nn
