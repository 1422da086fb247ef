#include "megalith/nn/moe/all_to_all_dispatcher.h"

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"

namespace megalith::nn {
namespace {

AllToAllDispatcher::Saved& own(Dispatcher::Saved& saved) { return static_cast<AllToAllDispatcher::Saved&>(saved); }

Index sum_of(const std::vector<Index>& counts) { return std::accumulate(counts.begin(), counts.end(), Index{0}); }

}  // namespace

AllToAllDispatcher::AllToAllDispatcher(const ExpertParallel& experts, const DispatchSizes& sizes,
                                       const HostCopies& copies)
    : experts_(experts),
      sizes_(sizes),
      copies_(copies),
      ranks_{.local_experts = sizes.num_experts / experts.ep().size(),
             .slices = experts.slices(),
             .expert_stride = experts.ep_stride(),
             .slice_stride = experts.etp_stride()} {}

std::unique_ptr<Dispatcher::Saved> AllToAllDispatcher::make_saved() const {
  auto saved = std::make_unique<Saved>();
  const auto ranks = static_cast<std::size_t>(experts_.dispatch().size());
  saved->host_bytes = bytes_of({experts_.dispatch().size(), num_destinations()}, DType::i64);
  saved->sends.resize(ranks);
  saved->receives.resize(ranks);
  saved->sizes.resize(static_cast<std::size_t>(ranks_.local_experts));
  return saved;
}

bool AllToAllDispatcher::places() const { return ranks_.slices > 1 || ranks_.expert_stride != 1; }

Index AllToAllDispatcher::rows_to_send(Index rows, const Saved& kept) const {
  return kept.padded > 0 ? num_destinations() * kept.padded : rows * choices();
}

Index AllToAllDispatcher::rows_to_receive(Index rows, const Saved& kept) const {
  if (is_alone() || kept.padded > 0) return rows_to_send(rows, kept);
  return experts_.max_rows(rows, sizes_.top_k, sizes_.num_experts);
}

void AllToAllDispatcher::preprocess(Exec& ex, const Tensor& experts, Mode mode, Dispatcher::Saved& saved) const {
  Saved& kept = own(saved);
  const Index rows = experts.dim(0);
  kept.padded = sizes_.pads() && mode == Mode::train ? rows / sizes_.run * sizes_.capacity : 0;
  kept.destinations = experts;
  if (places()) {
    kept.destinations = ex.tensor({rows, choices()}, DType::i32);
    ops::place_choices(ex, {.experts = experts, .destinations = kept.destinations, .ranks = ranks_});
  }
  kept.counts = ex.tensor({num_destinations()}, DType::i64);
  kept.offsets = ex.tensor({num_destinations()}, DType::i64);
  kept.row_of = ex.tensor({rows, choices()}, DType::i32);
  kept.pair_of = ex.tensor({rows_to_send(rows, kept)}, DType::i32);
  ops::build_rows(ex, {.experts = kept.destinations,
                       .counts = kept.counts,
                       .offsets = kept.offsets,
                       .row_of = kept.row_of,
                       .pair_of = kept.pair_of,
                       .rows_per_expert = kept.padded});
  exchange_counts(ex, kept);
  const Index arrive = rows_to_receive(rows, kept);
  if (ex.recording() && kept.padded == 0) assume_sizes(rows_to_send(rows, kept), arrive, kept);
  if (!regroups()) return;
  kept.regrouped = ex.tensor({arrive, 1}, DType::i32);
  kept.arrived_at = ex.tensor({arrive}, DType::i32);
  ops::regroup_rows(ex, {.counts = kept.all_counts,
                         .row_of = kept.regrouped,
                         .arrived_at = kept.arrived_at,
                         .sources = experts_.dispatch().size(),
                         .first = experts_.dispatch().rank() * ranks_.local_experts,
                         .local_experts = ranks_.local_experts,
                         .each = kept.padded});
}

void AllToAllDispatcher::exchange_counts(Exec& ex, Saved& kept) const {
  const comm::Group& group = experts_.dispatch();
  kept.all_counts = {};
  if (kept.padded > 0) return set_padded_sizes(kept);
  kept.all_counts = ex.tensor({group.size(), num_destinations()}, DType::i64);
  comm::all_gather(ex, group, kept.counts.reshaped({1, num_destinations()}), kept.all_counts).wait(ex);
}

void AllToAllDispatcher::reach(Exec& ex, MoePoint point, Saved& kept) const {
  if (ex.recording() || kept.padded > 0) return;
  if (copies_.issue == point) copy_counts(ex, kept);
  if (copies_.wait == point) await_counts(kept);
}

void AllToAllDispatcher::copy_counts(Exec& ex, Saved& kept) const {
  if (kept.host.bytes() == 0) throw InternalError("[AllToAllDispatcher] Saved::take_host_memory was not called");
  ex.copy(kept.host.data(), kept.all_counts.raw(), kept.all_counts.bytes());
  kept.copied.record(ex.stream());
}

void AllToAllDispatcher::await_counts(Saved& kept) const {
  comm::host_wait(experts_.dispatch(), kept.copied);
  set_sizes(
      {reinterpret_cast<const std::int64_t*>(kept.host.data()), static_cast<std::size_t>(kept.all_counts.numel())},
      kept);
}

void AllToAllDispatcher::set_sizes(std::span<const std::int64_t> all_counts, Saved& kept) const {
  const auto ranks = static_cast<std::size_t>(experts_.dispatch().size());
  const auto here = static_cast<std::size_t>(experts_.dispatch().rank());
  const auto local = static_cast<std::size_t>(ranks_.local_experts), columns = ranks * local;
  std::ranges::fill(kept.sends, 0);
  std::ranges::fill(kept.receives, 0);
  std::ranges::fill(kept.sizes, 0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t l = 0; l < local; ++l) {
      const Index arrive = all_counts[rank * columns + here * local + l];
      kept.sends[rank] += all_counts[here * columns + rank * local + l];
      kept.receives[rank] += arrive;
      kept.sizes[l] += arrive;
    }
  }
}

void AllToAllDispatcher::set_padded_sizes(Saved& kept) const {
  std::ranges::fill(kept.sends, ranks_.local_experts * kept.padded);
  std::ranges::fill(kept.receives, ranks_.local_experts * kept.padded);
  std::ranges::fill(kept.sizes, experts_.dispatch().size() * kept.padded);
}

void AllToAllDispatcher::assume_sizes(Index sent, Index arrived, Saved& kept) const {
  if (is_alone()) return;
  const std::size_t other = experts_.dispatch().rank() == 0 ? 1 : 0;
  std::ranges::fill(kept.sends, 0);
  std::ranges::fill(kept.receives, 0);
  kept.sends[other] = sent;
  kept.receives[other] = arrived;
}

void AllToAllDispatcher::permute(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const {
  Saved& kept = own(saved);
  reach(ex, MoePoint::before_permutation_1, kept);
  kept.sent = ex.tensor({kept.pair_of.numel(), x.dim(1)}, x.dtype());
  ops::permute_rows(ex,
                    {.x = x, .pair_of = kept.pair_of, .rows = kept.sent, .top_k = choices(), .unused = unused(kept)});
}

ExpertRows AllToAllDispatcher::dispatch(Exec& ex, Dispatcher::Saved& saved) const {
  Saved& kept = own(saved);
  reach(ex, MoePoint::before_ep_alltoall, kept);
  const Tensor rows = to_experts(ex, kept.sent, kept);
  reach(ex, MoePoint::before_permutation_2, kept);  // the host waits here only where nothing is sent or regrouped
  reach(ex, MoePoint::before_finish, kept);
  return {rows, kept.sizes};
}

Tensor AllToAllDispatcher::to_experts(Exec& ex, const Tensor& sent, const Saved& kept) const {
  if (is_alone()) return sent;
  const Tensor arrived = ex.tensor({rows_to_receive(kept.row_of.dim(0), kept), sent.dim(1)}, sent.dtype());
  comm::all_to_all(ex, experts_.dispatch(), sent.rows(0, sum_of(kept.sends)), kept.sends,
                   arrived.rows(0, sum_of(kept.receives)), kept.receives)
      .wait(ex);
  if (!regroups()) return arrived;
  const Tensor rows = ex.tensor_like(arrived);
  ops::permute_rows(ex, {.x = arrived, .pair_of = kept.arrived_at, .rows = rows});
  return rows;
}

Tensor AllToAllDispatcher::to_sources(Exec& ex, const Tensor& rows, const Saved& kept) const {
  if (is_alone()) return rows;
  Tensor leaving = rows;
  if (regroups()) {
    leaving = ex.tensor_like(rows);
    ops::permute_rows(ex, {.x = rows, .pair_of = kept.regrouped.reshaped({rows.dim(0)}), .rows = leaving});
  }
  const Tensor returned = ex.tensor({kept.pair_of.numel(), rows.dim(1)}, rows.dtype());
  comm::all_to_all(ex, experts_.dispatch(), leaving.rows(0, sum_of(kept.receives)), kept.receives,
                   returned.rows(0, sum_of(kept.sends)), kept.sends)
      .wait(ex);
  return returned;
}

void AllToAllDispatcher::return_rows(Exec& ex, const Tensor& rows, Dispatcher::Saved& saved) const {
  own(saved).returned = to_sources(ex, rows, own(saved));
}

Tensor AllToAllDispatcher::of_slices(Exec& ex, const Tensor& weights) const {
  if (ranks_.slices == 1) return weights;
  const Tensor repeated = ex.tensor({weights.dim(0), choices()}, weights.dtype());
  ops::repeat_choices(ex, weights, repeated);
  return repeated;
}

void AllToAllDispatcher::combine(Exec& ex, const Tensor& weights, const Tensor& y, Dispatcher::Saved& saved) const {
  const Saved& kept = own(saved);
  ops::sum_rows(ex, {.rows = kept.returned, .row_of = kept.row_of, .weights = of_slices(ex, weights), .y = y});
}

void AllToAllDispatcher::combine_backward(Exec& ex, const Tensor& dy, const Tensor& weights, const Tensor& d_weights,
                                          Dispatcher::Saved& saved) const {
  Saved& kept = own(saved);
  const Tensor repeated = of_slices(ex, weights);
  const Tensor d_repeated = ranks_.slices == 1 ? d_weights : ex.tensor_like(repeated);
  kept.d_returned = ex.tensor_like(kept.returned);
  ops::sum_rows_backward(ex, {.dy = dy,
                              .rows = kept.returned,
                              .row_of = kept.row_of,
                              .pair_of = kept.pair_of,
                              .weights = repeated,
                              .d_rows = kept.d_returned,
                              .d_weights = d_repeated,
                              .unused = unused(kept)});
  if (ranks_.slices > 1) ops::sum_slices(ex, d_repeated, d_weights);
}

ExpertRows AllToAllDispatcher::return_rows_backward(Exec& ex, Dispatcher::Saved& saved) const {
  const Saved& kept = own(saved);
  return {to_experts(ex, kept.d_returned, kept), kept.sizes};
}

void AllToAllDispatcher::dispatch_backward(Exec& ex, const Tensor& rows, Dispatcher::Saved& saved) const {
  own(saved).d_sent = to_sources(ex, rows, own(saved));
}

void AllToAllDispatcher::permute_backward(Exec& ex, const Tensor& dx, Dispatcher::Saved& saved) const {
  const Saved& kept = own(saved);
  ops::sum_rows(ex, {.rows = kept.d_sent, .row_of = kept.row_of, .weights = {}, .y = dx});
}

}  // namespace megalith::nn
