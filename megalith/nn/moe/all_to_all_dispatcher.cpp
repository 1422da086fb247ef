#include "megalith/nn/moe/all_to_all_dispatcher.h"

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/echo_routing.h"

namespace megalith::nn {
namespace {

AllToAllDispatcher::Saved& own(Dispatcher::Saved& saved) { return static_cast<AllToAllDispatcher::Saved&>(saved); }

Index sum_of(const std::vector<Index>& counts) { return std::accumulate(counts.begin(), counts.end(), Index{0}); }

}  // namespace

void check_counts(std::string_view group, std::span<const std::int32_t> counts, const CountedRows& rows) {
  const auto refuse = [&](const std::string& rule) {
    throw CollectiveError(str("[counts of experts] group ", group, ": ", rule,
                              "; the ranks do not route one batch, or memory is damaged"));
  };
  for (const std::int32_t count : counts) {
    if (count < 0) refuse(str("a count is ", count, ": must be at least 0"));
  }
  if (rows.sent > rows.pairs) refuse(str("this rank sends ", rows.sent, " rows: it has ", rows.pairs, " pairs"));
  if (rows.arrived > rows.room) refuse(str(rows.arrived, " rows come here: there is room for ", rows.room));
}

AllToAllDispatcher::AllToAllDispatcher(const ExpertParallel& experts, const DispatchSizes& sizes,
                                       const HostCopies& copies)
    : experts_(experts), sizes_(sizes), copies_(copies), ranks_(expert_ranks(experts, sizes)) {}

std::unique_ptr<Dispatcher::Saved> AllToAllDispatcher::make_saved() const {
  auto saved = std::make_unique<Saved>();
  const auto ranks = static_cast<std::size_t>(experts_.dispatch().size());
  saved->on_host = HostNumbers(experts_.dispatch().size() * num_destinations());
  saved->sends.resize(ranks);
  saved->receives.resize(ranks);
  saved->host_groups.resize(static_cast<std::size_t>(2 * ranks_.local_experts));
  return saved;
}

bool AllToAllDispatcher::places() const { return ranks_.slices > 1 || ranks_.expert_stride != 1; }

Index AllToAllDispatcher::rows_to_send(Index rows, const Saved& kept) const {
  return kept.padded > 0 ? num_destinations() * kept.padded : rows * choices();
}

Index AllToAllDispatcher::rows_to_receive(Index rows, const Saved& kept) const {
  if (kept.padded > 0) return rows_to_send(rows, kept);
  return experts_.max_rows(rows, sizes_.top_k, sizes_.num_experts);
}

void AllToAllDispatcher::preprocess(Exec& ex, const RoutedPairs& routed, Dispatcher::Saved& saved) const {
  const Tensor& experts = routed.experts;
  Saved& kept = own(saved);
  const Index rows = experts.dim(0);
  kept.padded = sizes_.padded(rows, routed.mode);
  kept.destinations = experts;
  if (places()) {
    kept.destinations = ex.tensor({rows, choices()}, DType::i32);
    ops::place_choices(ex, {.experts = experts, .destinations = kept.destinations, .ranks = ranks_});
  }
  kept.counts = ex.tensor({num_destinations()}, DType::i32);
  kept.offsets = ex.tensor({num_destinations()}, DType::i32);
  kept.row_of = ex.tensor({rows, choices()}, DType::i32);
  kept.pair_of = ex.tensor({rows_to_send(rows, kept)}, DType::i32);
  ops::build_rows(ex, {.experts = kept.destinations,
                       .groups = {.begin = kept.offsets, .rows = kept.counts},
                       .row_of = kept.row_of,
                       .pair_of = kept.pair_of,
                       .rows_per_expert = kept.padded});
  kept.all_counts = {};
  if (kept.padded > 0) {
    set_padded_sizes(kept);
  } else {
    kept.all_counts = ex.tensor({experts_.dispatch().size(), num_destinations()}, DType::i32);
    if (routed.of_all && !places())
      ops::count_pairs(ex, {.experts = routed.of_all, .counts = kept.all_counts});
    else
      comm::all_gather(ex, experts_.dispatch(), kept.counts.reshaped({1, num_destinations()}), kept.all_counts)
          .wait(ex);
  }
  const Index arrive = rows_to_receive(rows, kept);
  if (ex.recording() && kept.padded == 0) assume_sizes(rows_to_send(rows, kept), arrive, kept);
  group_rows(ex, arrive, kept);
}

void AllToAllDispatcher::group_rows(Exec& ex, Index arrive, Saved& kept) const {
  const Index local = ranks_.local_experts;
  kept.table = ex.tensor({2, local}, DType::i32);
  kept.groups = groups_of(kept.table, sizes_.alignment);
  kept.groups.host = ops::HostGroups(kept.host_groups);
  kept.regrouped = ex.tensor({arrive, 1}, DType::i32);
  kept.arrived_at = ex.tensor({ops::capacity_of_groups(arrive, local, sizes_.alignment)}, DType::i32);
  ops::regroup_rows(ex, {.counts = kept.all_counts,
                         .groups = kept.groups,
                         .row_of = kept.regrouped,
                         .arrived_at = kept.arrived_at,
                         .sources = experts_.dispatch().size(),
                         .first = experts_.dispatch().rank() * local,
                         .local_experts = local,
                         .each = kept.padded});
}

void AllToAllDispatcher::reach(Exec& ex, MoePoint point, Saved& kept) const {
  if (kept.padded > 0) return;
  if (copies_.wait == point) HostNumbers::keep_until_here(ex, kept.all_counts);
  if (ex.recording()) return;
  if (copies_.issue == point) kept.on_host.copy(ex, kept.all_counts);
  if (copies_.wait == point) set_sizes(kept.on_host.wait(experts_.dispatch()), kept);
}

void AllToAllDispatcher::set_sizes(std::span<const std::int32_t> all_counts, Saved& kept) const {
  const auto ranks = static_cast<std::size_t>(experts_.dispatch().size());
  const auto here = static_cast<std::size_t>(experts_.dispatch().rank());
  const auto local = static_cast<std::size_t>(ranks_.local_experts), columns = ranks * local;
  Index end = 0, arrived = 0;
  std::ranges::fill(kept.sends, 0);
  std::ranges::fill(kept.receives, 0);
  for (std::size_t l = 0; l < local; ++l) {
    Index size = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Index arrive = all_counts[rank * columns + here * local + l];
      kept.sends[rank] += all_counts[here * columns + rank * local + l];
      kept.receives[rank] += arrive;
      size += arrive;
    }
    end = set_group(kept.host_groups, static_cast<Index>(l), end, size, sizes_.alignment);
    arrived += size;
  }
  check_counts(
      experts_.dispatch().name(), all_counts,
      {.sent = sum_of(kept.sends), .pairs = kept.pair_of.numel(), .arrived = arrived, .room = kept.regrouped.dim(0)});
}

void AllToAllDispatcher::set_padded_sizes(Saved& kept) const {
  std::ranges::fill(kept.sends, ranks_.local_experts * kept.padded);
  std::ranges::fill(kept.receives, ranks_.local_experts * kept.padded);
  Index end = 0;
  for (Index l = 0; l < ranks_.local_experts; ++l)
    end = set_group(kept.host_groups, l, end, experts_.dispatch().size() * kept.padded, sizes_.alignment);
}

void AllToAllDispatcher::assume_sizes(Index sent, Index arrived, Saved& kept) const {
  const std::size_t other = experts_.dispatch().rank() == 0 ? 1 : 0;
  std::ranges::fill(kept.sends, 0);
  std::ranges::fill(kept.receives, 0);
  kept.sends[other] = sent;
  kept.receives[other] = arrived;
}

void AllToAllDispatcher::permute(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const {
  Saved& kept = own(saved);
  reach(ex, MoePoint::before_permutation_1, kept);
  kept.sent = permuted(ex, x, kept.pair_of, choices(), kept.row_of);
}

InFlight AllToAllDispatcher::dispatch(Exec& ex, Dispatcher::Saved& saved, LaterRows&) const {
  Saved& kept = own(saved);
  reach(ex, MoePoint::before_ep_alltoall, kept);
  InFlight in_flight;
  kept.rows = send(ex, kept.sent, kept, in_flight);
  return in_flight;
}

ExpertRows AllToAllDispatcher::arrived(Exec& ex, Dispatcher::Saved& saved) const {
  Saved& kept = own(saved);
  kept.rows = by_expert(ex, kept.rows, kept);
  return {kept.rows, kept.groups};
}

Tensor AllToAllDispatcher::send(Exec& ex, const Tensor& sent, const Saved& kept, InFlight& in_flight) const {
  const Tensor received = ex.tensor({kept.regrouped.dim(0), sent.dim(1)}, sent.dtype());
  in_flight.add(comm::all_to_all(ex, experts_.dispatch(), sent.rows(0, sum_of(kept.sends)), kept.sends,
                                 received.rows(0, sum_of(kept.receives)), kept.receives));
  return received;
}

Tensor AllToAllDispatcher::by_expert(Exec& ex, const Tensor& received, const Saved& kept) const {
  return regroups() ? permuted(ex, received, kept.arrived_at, 1) : received;
}

Tensor AllToAllDispatcher::to_experts(Exec& ex, const Tensor& sent, const Saved& kept) const {
  InFlight in_flight;
  const Tensor received = send(ex, sent, kept, in_flight);
  in_flight.wait(ex);
  return by_expert(ex, received, kept);
}

Tensor AllToAllDispatcher::to_sources(Exec& ex, const Tensor& rows, const Saved& kept, InFlight& in_flight) const {
  Tensor leaving = rows;
  if (regroups()) leaving = permuted(ex, rows, kept.regrouped.reshaped({kept.regrouped.dim(0)}), 1);
  const Tensor returned = ex.tensor({kept.pair_of.numel(), rows.dim(1)}, rows.dtype());
  in_flight.add(comm::all_to_all(ex, experts_.dispatch(), leaving.rows(0, sum_of(kept.receives)), kept.receives,
                                 returned.rows(0, sum_of(kept.sends)), kept.sends));
  return returned;
}

void AllToAllDispatcher::return_rows(Exec& ex, const Tensor& rows, Dispatcher::Saved& saved) const {
  InFlight in_flight;
  own(saved).returned = to_sources(ex, rows, own(saved), in_flight);
  in_flight.wait(ex);
}

void AllToAllDispatcher::combine(Exec& ex, const Tensor& weights, const Tensor& y, Dispatcher::Saved& saved) const {
  const Saved& kept = own(saved);
  ops::sum_rows(
      ex,
      {.rows = kept.returned, .row_of = kept.row_of, .weights = weights_of_slices(ex, weights, ranks_.slices), .y = y});
}

void AllToAllDispatcher::combine_backward(Exec& ex, const Tensor& dy, const Tensor& weights,
                                          Dispatcher::Saved& saved) const {
  Saved& kept = own(saved);
  const Tensor of_slices = weights_of_slices(ex, weights, ranks_.slices);
  kept.grads = {permuted(ex, dy, kept.pair_of, choices(), kept.row_of), permuted_weights(ex, of_slices, kept.pair_of)};
}

RowGrads AllToAllDispatcher::return_rows_backward(Exec& ex, Dispatcher::Saved& saved, LaterRows&) const {
  const Saved& kept = own(saved);
  return {to_experts(ex, kept.grads.rows, kept), to_experts(ex, kept.grads.weights, kept)};
}

ExpertRows AllToAllDispatcher::dispatched(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const {
  const Saved& kept = own(saved);
  if (sizes_.backward_rows == BackwardRows::kept) return {kept.rows, kept.groups};
  return {to_experts(ex, permuted(ex, x, kept.pair_of, choices(), kept.row_of), kept), kept.groups};
}

InFlight AllToAllDispatcher::dispatch_backward(Exec& ex, const RowGrads& rows, const SourceGrads&,
                                               Dispatcher::Saved& saved) const {
  Saved& kept = own(saved);
  InFlight in_flight;
  kept.grads.rows = to_sources(ex, rows.rows, kept, in_flight);
  kept.grads.weights = to_sources(ex, rows.weights, kept, in_flight);
  return in_flight;
}

void AllToAllDispatcher::permute_backward(Exec& ex, const SourceGrads& sources, Dispatcher::Saved& saved) const {
  const Saved& kept = own(saved);
  const Tensor& d_weights = sources.weights;
  const Tensor of_slices = ranks_.slices == 1 ? d_weights : ex.tensor({d_weights.dim(0), choices()}, d_weights.dtype());
  sum_grads(ex, kept.grads, kept.row_of, sources.x, of_slices);
  if (ranks_.slices > 1) ops::sum_slices(ex, of_slices, d_weights);
}

}  // namespace megalith::nn
