#include "megalith/nn/moe/dispatcher.h"

namespace megalith::nn {

ops::GroupRows groups_of(const Tensor& table, Index alignment) {
  const Index count = table.dim(1);
  return {
      .begin = table.rows(0, 1).reshaped({count}), .rows = table.rows(1, 1).reshaped({count}), .alignment = alignment};
}

Index set_group(std::span<std::int32_t> table, Index group, Index begin, Index rows, Index alignment) {
  const auto at = static_cast<std::size_t>(group);
  table[at] = static_cast<std::int32_t>(begin);
  table[table.size() / 2 + at] = static_cast<std::int32_t>(rows);
  return begin + round_up(rows, alignment);
}

Tensor permuted(Exec& ex, const Tensor& x, const Tensor& pair_of, Index top_k, const Tensor& row_of) {
  const Tensor rows = ex.tensor({pair_of.numel(), x.dim(1)}, x.dtype());
  ops::permute_rows(ex, {.x = x, .pair_of = pair_of, .row_of = row_of, .rows = rows, .top_k = top_k});
  return rows;
}

Tensor permuted_weights(Exec& ex, const Tensor& weights, const Tensor& pair_of) {
  return permuted(ex, weights.reshaped({weights.numel(), 1}), pair_of, 1);
}

void sum_grads(Exec& ex, const RowGrads& grads, const Tensor& row_of, const Tensor& dx, const Tensor& d_weights) {
  ops::sum_rows(ex, {.rows = grads.rows, .row_of = row_of, .weights = {}, .y = dx});
  const Shape pairs{d_weights.numel(), 1};
  ops::sum_rows(
      ex, {.rows = grads.weights, .row_of = row_of.reshaped(pairs), .weights = {}, .y = d_weights.reshaped(pairs)});
}

ops::PullTables make_pulls(Exec& ex, Index capacity, Index rows) {
  return {.counts = ex.tensor({2}, DType::i32),
          .sources = ex.tensor({capacity, 2}, DType::i32),
          .begin = ex.tensor({capacity + 1}, DType::i32),
          .wants = ex.tensor({rows}, DType::i32)};
}

void make_lists(Exec& ex, ops::PlanExchange& plan) {
  const Index ranks = plan.experts.dim(0), rows = plan.experts.dim(1), pairs = rows * plan.experts.dim(2);
  const Index arrive = ops::pairs_to_receive(plan);
  const Index results = ops::capacity_of_groups(arrive, plan.ranks.local_experts, plan.groups.alignment);
  plan.rows = make_pulls(ex, ranks * rows, results);
  if (plan.first_groups > 0) plan.rest = make_pulls(ex, ranks * rows, results);
  plan.pairs = make_pulls(ex, arrive, results);
  plan.places = ex.tensor({pairs * plan.ranks.slices, 2}, DType::i32);
  plan.row_begin = ex.tensor({rows + 1}, DType::i32);
  plan.pair_begin = ex.tensor({pairs + 1}, DType::i32);
}

comm::Pending pull(Exec& ex, const comm::Group& group, const Tensor& mine, const ops::PullTables& pulls,
                   const Tensor& rows) {
  return comm::gather_rows(
      ex, group, mine, {.counts = pulls.counts, .sources = pulls.sources, .begin = pulls.begin, .wants = pulls.wants},
      rows);
}

ops::ExpertRanks expert_ranks(const ExpertParallel& experts, const DispatchSizes& sizes) {
  return {.local_experts = sizes.num_experts / experts.ep().size(),
          .slices = experts.slices(),
          .expert_stride = experts.ep_stride(),
          .slice_stride = experts.etp_stride()};
}

Tensor weights_of_slices(Exec& ex, const Tensor& weights, Index slices) {
  if (slices == 1) return weights;
  const Tensor repeated = ex.tensor({weights.dim(0), weights.dim(1) * slices}, weights.dtype());
  ops::repeat_choices(ex, weights, repeated);
  return repeated;
}

}  // namespace megalith::nn
