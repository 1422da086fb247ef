#include "megalith/nn/moe/expert_parallel.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::nn {
namespace {

bool have_same_ranks(const comm::Group& a, const comm::Group& b) {
  return std::ranges::equal(a.world_ranks(), b.world_ranks());
}

DispatchRows rows_kind(const TensorParallel& tp, const comm::Group& etp) {
  if (tp.group().size() == 1 || tp.is_sequence_parallel()) return DispatchRows::own;
  return have_same_ranks(tp.group(), etp) ? DispatchRows::replicated : DispatchRows::share;
}

/// Places in `all` between the first two members of `some`.
int stride_in(const comm::Group& all, const comm::Group& some) {
  if (some.size() == 1) return 1;
  const auto place = [&](int rank) { return std::ranges::find(all.world_ranks(), rank) - all.world_ranks().begin(); };
  return static_cast<int>(place(some.world_ranks()[1]) - place(some.world_ranks()[0]));
}

}  // namespace

ExpertParallel::ExpertParallel(const TensorParallel& tp, comm::Group ep, comm::Group etp, comm::Group etp_ep)
    : tp_(tp), ep_(std::move(ep)), etp_(std::move(etp)), etp_ep_(std::move(etp_ep)), rows_(rows_kind(tp, etp_)) {
  ep_stride_ = stride_in(dispatch(), ep_);
  etp_stride_ = rows_ == DispatchRows::replicated ? 1 : stride_in(dispatch(), etp_);
}

Index ExpertParallel::rows_of(Index tokens) const {
  if (rows_ != DispatchRows::share) return tp_.rows_outside(tokens);
  if (tokens % tp_.group().size() != 0)
    throw ConfigError(str("train.micro_batch * model.seq_len = ", tokens,
                          ": must be divisible by parallel.tp = ", tp_.group().size(),
                          " where these ranks are not those of parallel.etp: each rank routes a share of the rows"));
  return tokens / tp_.group().size();
}

Index ExpertParallel::first_row(Index tokens) const {
  const bool all = rows_ == DispatchRows::replicated || tp_.group().size() == 1;
  return all ? 0 : tp_.group().rank() * rows_of(tokens);
}

Index ExpertParallel::max_rows(Index rows, Index top_k, Index num_experts) const {
  const Index of_token = std::min(top_k, num_experts / ep_.size());
  return dispatch().size() * rows * of_token;
}

grid::Placement ExpertParallel::rows_placement() const {
  if (tp_.group().size() == 1) return grid::kSharded;
  return rows_ == DispatchRows::replicated ? grid::kReplicated : grid::kReplicatedPartial;
}

Tensor ExpertParallel::own_rows(const Tensor& outside) const {
  if (rows_ != DispatchRows::share) return outside;
  const Index rows = outside.dim(0) / tp_.group().size();
  return outside.rows(tp_.group().rank() * rows, rows);
}

}  // namespace megalith::nn
