#include "megalith/nn/moe/expert_rounds.h"

#include "megalith/ops/echo_routing.h"
#include "megalith/ops/rows.h"

namespace megalith::nn {
namespace {

/// What the loop reads in later rounds stays in its memory until here.
void end_rounds(Exec& ex, const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d) {
  ex.run({.name = "end_rounds", .reads = {a, b, c, d}, .writes = {}}, [](Exec&, Stream) {});
}

}  // namespace

ExpertRounds::ExpertRounds(const ExpertParallel& experts, const DispatchSizes& sizes)
    : experts_(experts), sizes_(sizes), ranks_(expert_ranks(experts, sizes)) {}

ExpertRounds::Saved ExpertRounds::make_saved() const {
  Saved saved;
  saved.round_of.resize(static_cast<std::size_t>(sizes_.num_experts));
  saved.counts_on_host = HostNumbers(experts_.dispatch().size() * sizes_.num_experts);
  saved.table_on_host = HostNumbers(2 * ranks_.local_experts);
  return saved;
}

void ExpertRounds::preprocess(Exec& ex, const RoutedPairs& routed, Saved& saved) const {
  const comm::Group& group = experts_.dispatch();
  const Index rows = routed.experts.dim(0), pairs = routed.experts.numel();
  saved.all = routed.of_all;
  if (!saved.all) {
    saved.all = ex.tensor({group.size(), rows, sizes_.top_k}, DType::i32);
    comm::all_gather(ex, group, routed.experts.reshaped({1, rows, sizes_.top_k}), saved.all).wait(ex);
  }
  saved.row_of = ex.tensor({rows, sizes_.top_k * slices()}, DType::i32);
  ops::number_pairs(ex, routed.experts, saved.row_of);
  saved.plan.ranks = ranks_;
  saved.plan.num_experts = sizes_.num_experts;
  saved.plan.rank = group.rank();
  saved.plan.most_pairs = sizes_.rank_rows(pairs * slices(), routed.mode);
  saved.plan.experts = saved.all;
  if (routed.overflow) {  // all have room: how many rows a rank would need
    ops::limit_rows(ex, {.experts = saved.all,
                         .overflow = routed.overflow,
                         .num_experts = sizes_.num_experts,
                         .local_experts = ranks_.local_experts,
                         .room = experts_.max_rows(rows, sizes_.top_k, sizes_.num_experts),
                         .rank = -1});
  }
  const Tensor counts = ex.tensor({group.size(), sizes_.num_experts}, DType::i32);
  ops::count_pairs(ex, {.experts = saved.all, .counts = counts});
  if (ex.recording()) return;
  saved.counts_on_host.copy(ex, counts);
  saved.count = ops::assign_rounds({.counts = saved.counts_on_host.wait(group),
                                    .round_of = saved.round_of,
                                    .local_experts = ranks_.local_experts,
                                    .room = ops::pairs_to_receive(saved.plan)});
}

void ExpertRounds::start_round(Exec& ex, std::int32_t round, Saved& saved) const {
  ops::PlanExchange& plan = saved.plan;
  const Index local = ranks_.local_experts;
  plan.experts = ex.tensor(saved.all.shape(), DType::i32);
  ops::choices_of_round(ex,
                        {.experts = saved.all, .of_round = plan.experts, .round_of = saved.round_of, .round = round});
  saved.table = ex.tensor({2, local}, DType::i32);
  plan.groups = groups_of(saved.table, sizes_.alignment);
  make_lists(ex, plan);
  ops::plan_exchange(ex, plan);
  const bool host_reads = ex.device() != Device::cpu && sizes_.alignment == 1;  // for loops over groups
  if (host_reads && !ex.recording()) {
    saved.table_on_host.copy(ex, saved.table);
    plan.groups.host = ops::HostGroups(saved.table_on_host.wait(experts_.dispatch()));
  }
  const Index results = plan.places.dim(0);
  saved.returns = make_pulls(ex, results, results);
  ops::pull_places(ex, plan.places, saved.returns);
}

ExpertRange ExpertRounds::range_of(std::int32_t round, const Saved& saved) const {
  const Index local = ranks_.local_experts, begin = experts_.ep().rank() * local;
  ExpertRange range;
  for (Index e = 0; e < local; ++e) {
    if (saved.round_of[static_cast<std::size_t>(begin + e)] != round) continue;
    if (range.count++ == 0) range.first = e;
  }
  return range;
}

template <class Body>
void ExpertRounds::for_rounds(Exec& ex, Saved& saved, Body&& body) const {
  const PhaseExtent begin = ex.phase_position();
  const std::int32_t count = ex.recording() ? 1 : saved.count;
  for (std::int32_t round = 0; round < count; ++round) {
    if (round > 0) ex.go_back(begin);
    start_round(ex, round, saved);
    body(range_of(round, saved));
  }
}

Tensor ExpertRounds::pulled(Exec& ex, const Tensor& of_sources, const ops::PullTables& pulls) const {
  const Tensor rows = ex.tensor({pulls.wants.dim(0), of_sources.dim(1)}, of_sources.dtype());
  pull(ex, experts_.dispatch(), of_sources, pulls, rows).wait(ex);
  return rows;
}

void ExpertRounds::give_back(Exec& ex, const Tensor& of_experts, const Tensor& of_pairs, const Saved& saved) const {
  pull(ex, experts_.dispatch(), of_experts, saved.returns, of_pairs).wait(ex);
}

void ExpertRounds::forward(Exec& ex, const Tensor& x, const Experts& experts, Experts::Saved& of_experts,
                           Saved& saved) const {
  saved.results = ex.tensor({saved.row_of.numel(), x.dim(1)}, x.dtype());
  ExpertClones* const clones = of_experts.clones;
  if (clones != nullptr) clones->begin_rounds(ex, ExpertClones::Rounds::forward);
  for_rounds(ex, saved, [&](const ExpertRange& range) {
    const ExpertRows in{pulled(ex, x, saved.plan.rows), saved.plan.groups};
    give_back(ex, experts.forward(ex, in, of_experts, range), saved.results, saved);
  });
  end_rounds(ex, x, saved.all, saved.results, saved.row_of);
  if (clones != nullptr) clones->end_rounds(ex);
}

void ExpertRounds::combine(Exec& ex, const Tensor& weights, const Tensor& y, Saved& saved) const {
  ops::sum_rows(
      ex, {.rows = saved.results, .row_of = saved.row_of, .weights = weights_of_slices(ex, weights, slices()), .y = y});
}

void ExpertRounds::backward(Exec& ex, const Backward& in, const Experts& experts, Experts::Saved& of_experts,
                            Saved& saved) const {
  const Index pairs = saved.row_of.numel();
  saved.grads = {ex.tensor({pairs, in.dy.dim(1)}, in.dy.dtype()), ex.tensor({pairs, 1}, in.weights.dtype())};
  const Tensor weights = in.weights.reshaped({in.weights.numel(), 1});
  ExpertClones* const clones = of_experts.clones;
  if (clones != nullptr) clones->begin_rounds(ex, ExpertClones::Rounds::backward);
  for_rounds(ex, saved, [&](const ExpertRange& range) {
    const RowGrads dy{pulled(ex, in.dy, saved.plan.rows), pulled(ex, weights, saved.plan.pairs)};
    const ExpertRows rows{pulled(ex, in.x, saved.plan.rows), saved.plan.groups};
    of_experts.groups = saved.plan.groups;
    const RowGrads d_rows = experts.backward_again(ex, rows, dy, in.weight_grads, of_experts, range);
    give_back(ex, d_rows.rows, saved.grads.rows, saved);
    give_back(ex, d_rows.weights, saved.grads.weights, saved);
  });
  end_rounds(ex, in.x, in.dy, in.weights, saved.all);
  if (clones != nullptr) clones->end_rounds(ex);
  experts.sum_grad_squares(ex, in.weight_grads, of_experts);
}

void ExpertRounds::sum_grads(Exec& ex, const Tensor& dx, const Tensor& d_weights, Saved& saved) const {
  const Tensor of_slices =
      slices() == 1 ? d_weights : ex.tensor({d_weights.dim(0), saved.row_of.dim(1)}, d_weights.dtype());
  nn::sum_grads(ex, saved.grads, saved.row_of, dx, of_slices);
  if (slices() > 1) ops::sum_slices(ex, of_slices, d_weights);
}

}  // namespace megalith::nn
