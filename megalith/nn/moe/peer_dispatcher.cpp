#include "megalith/nn/moe/peer_dispatcher.h"

#include <utility>

namespace megalith::nn {
namespace {

PeerDispatcher::Saved& peer(Dispatcher::Saved& saved) { return static_cast<PeerDispatcher::Saved&>(saved); }

/// One row for each number.
Tensor as_column(const Tensor& tensor) { return tensor.reshaped({tensor.numel(), 1}); }
Tensor as_list(const Tensor& tensor) { return tensor.reshaped({tensor.numel()}); }

}  // namespace

PeerDispatcher::PeerDispatcher(const ExpertParallel& experts, const DispatchSizes& sizes, const HostCopies& copies)
    : experts_(experts), sizes_(sizes), copies_(copies), ranks_(expert_ranks(experts, sizes)) {}

std::unique_ptr<Dispatcher::Saved> PeerDispatcher::make_saved() const {
  auto saved = std::make_unique<Saved>();
  saved->on_host = HostNumbers(2 * ranks_.local_experts);
  saved->constants.resize(static_cast<std::size_t>(2 * ranks_.local_experts));
  return saved;
}

void PeerDispatcher::preprocess(Exec& ex, const RoutedPairs& routed, Dispatcher::Saved& saved) const {
  const Tensor& experts = routed.experts;
  Saved& kept = peer(saved);
  const comm::Group& group = experts_.dispatch();
  const Index rows = experts.dim(0), pairs = experts.numel(), local = ranks_.local_experts;
  Tensor all = routed.of_all;
  if (!all) {
    all = ex.tensor({group.size(), rows, sizes_.top_k}, DType::i32);
    comm::all_gather(ex, group, experts.reshaped({1, rows, sizes_.top_k}), all).wait(ex);
  }
  kept.table = ex.tensor({2, local}, DType::i32);
  ops::PlanExchange& plan = kept.plan;
  plan.experts = all;
  plan.groups = groups_of(kept.table, sizes_.alignment);
  plan.ranks = ranks_;
  plan.num_experts = sizes_.num_experts;
  plan.rank = group.rank();
  plan.rows_of_each = sizes_.padded(rows, routed.mode);
  plan.most_pairs = sizes_.rank_rows(pairs * slices(), routed.mode);
  plan.first_groups = sizes_.first_groups;
  if (plan.most_pairs > 0) limit_rows(ex, routed, plan);
  make_lists(ex, plan);
  ops::plan_exchange(ex, plan);
  if (plan.rows_of_each == 0) return;
  Index end = 0;
  for (Index l = 0; l < local; ++l)
    end = set_group(kept.constants, l, end, group.size() * plan.rows_of_each, sizes_.alignment);
  plan.groups.host = ops::HostGroups(kept.constants);
}

void PeerDispatcher::reach(Exec& ex, MoePoint point, Saved& kept) const {
  ops::GroupRows& groups = kept.plan.groups;
  const bool host_reads = ex.device() != Device::cpu && groups.host.begin != kept.constants.data();
  if (!host_reads) return;
  if (copies_.issue && copies_.wait == point) HostNumbers::keep_until_here(ex, kept.table);
  if (ex.recording()) return;
  if (copies_.issue == point) kept.on_host.copy(ex, kept.table);
  if (copies_.issue && copies_.wait == point) groups.host = ops::HostGroups(kept.on_host.wait(experts_.dispatch()));
}

void PeerDispatcher::limit_rows(Exec& ex, const RoutedPairs& routed, const ops::PlanExchange& plan) const {
  ops::limit_rows(ex, {.experts = plan.experts,
                       .overflow = routed.overflow,
                       .dropped = routed.dropped,
                       .num_experts = plan.num_experts,
                       .local_experts = ranks_.local_experts,
                       .room = ops::pairs_to_receive(plan),
                       .rank = experts_.counts_rows() ? plan.rank : -1});
}

PeerDispatcher::ComingRows PeerDispatcher::pull_rows(Exec& ex, const Tensor& of_sources, const ops::PlanExchange& plan,
                                                     LaterRows& later) const {
  ComingRows coming{.rows = ex.tensor({plan.rows.wants.dim(0), of_sources.dim(1)}, of_sources.dtype())};
  coming.in_flight.add(pull(ex, experts_.dispatch(), of_sources, plan.rows, coming.rows));
  later.first = plan.first_groups;
  if (later.first > 0) later.in_flight.add(pull(ex, experts_.dispatch(), of_sources, plan.rest, coming.rows));
  return coming;
}

comm::Pending PeerDispatcher::sum_places(Exec& ex, const Tensor& of_experts, const comm::RowSums& sums,
                                         const Tensor& out) const {
  return comm::gather_sum_rows(ex, experts_.dispatch(), of_experts, sums, out, comm::Write::overwrite);
}

void PeerDispatcher::permute(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const {
  reach(ex, MoePoint::before_permutation_1, peer(saved));
  peer(saved).x = x;
}

InFlight PeerDispatcher::dispatch(Exec& ex, Dispatcher::Saved& saved, LaterRows& later) const {
  Saved& kept = peer(saved);
  for (const MoePoint point : {MoePoint::before_ep_alltoall, MoePoint::before_permutation_2, MoePoint::before_finish})
    reach(ex, point, kept);
  ComingRows coming = pull_rows(ex, kept.x, kept.plan, later);
  kept.rows = coming.rows;
  return std::move(coming.in_flight);
}

ExpertRows PeerDispatcher::arrived(Exec&, Dispatcher::Saved& saved) const {
  const Saved& kept = peer(saved);
  return {kept.rows, kept.plan.groups};
}

void PeerDispatcher::return_rows(Exec&, const Tensor& rows, Dispatcher::Saved& saved) const {
  peer(saved).results = rows;
}

void PeerDispatcher::combine(Exec& ex, const Tensor& weights, const Tensor& y, Dispatcher::Saved& saved) const {
  const Saved& kept = peer(saved);
  sum_places(ex, kept.results,
             {.begin = kept.plan.row_begin,
              .places = kept.plan.places,
              .weights = as_list(weights_of_slices(ex, weights, slices()))},
             y)
      .wait(ex);
}

void PeerDispatcher::combine_backward(Exec&, const Tensor& dy, const Tensor& weights, Dispatcher::Saved& saved) const {
  Saved& kept = peer(saved);
  kept.dy = dy;
  kept.weights = weights;
}

RowGrads PeerDispatcher::return_rows_backward(Exec& ex, Dispatcher::Saved& saved, LaterRows& later) const {
  const Saved& kept = peer(saved);
  const Tensor of_pairs = as_column(kept.weights);
  const Tensor weights = ex.tensor({kept.plan.pairs.wants.dim(0), 1}, of_pairs.dtype());
  comm::Pending arriving = pull(ex, experts_.dispatch(), of_pairs, kept.plan.pairs, weights);
  ComingRows coming = pull_rows(ex, kept.dy, kept.plan, later);
  coming.in_flight.wait(ex);
  arriving.wait(ex);
  return {coming.rows, weights};
}

ExpertRows PeerDispatcher::dispatched(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const {
  const Saved& kept = peer(saved);
  if (sizes_.backward_rows == BackwardRows::kept) return {kept.rows, kept.plan.groups};
  LaterRows later;
  ComingRows coming = pull_rows(ex, x, kept.plan, later);
  coming.in_flight.wait(ex);
  later.in_flight.wait(ex);
  return {coming.rows, kept.plan.groups};
}

InFlight PeerDispatcher::dispatch_backward(Exec& ex, const RowGrads& rows, const SourceGrads& sources,
                                           Dispatcher::Saved& saved) const {
  const ops::PlanExchange& plan = peer(saved).plan;
  const auto sum = [&](const Tensor& of_experts, const Tensor& begin, const Tensor& out) {
    return sum_places(ex, of_experts, {.begin = begin, .places = plan.places, .weights = {}}, out);
  };
  InFlight in_flight;
  in_flight.add(sum(rows.rows, plan.row_begin, sources.x));
  in_flight.add(sum(rows.weights, plan.pair_begin, as_column(sources.weights)));
  return in_flight;
}

void PeerDispatcher::permute_backward(Exec&, const SourceGrads&, Dispatcher::Saved&) const {}

}  // namespace megalith::nn
