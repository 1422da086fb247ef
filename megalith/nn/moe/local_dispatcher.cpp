#include "megalith/nn/moe/local_dispatcher.h"

#include "megalith/ops/quantise_rows.h"

namespace megalith::nn {
namespace {

LocalDispatcher::Saved& local(Dispatcher::Saved& saved) { return static_cast<LocalDispatcher::Saved&>(saved); }

}  // namespace

std::unique_ptr<Dispatcher::Saved> LocalDispatcher::make_saved() const {
  auto saved = std::make_unique<Saved>();
  saved->on_host = HostNumbers(2 * sizes_.num_experts);
  saved->constants.resize(static_cast<std::size_t>(2 * sizes_.num_experts));
  return saved;
}

void LocalDispatcher::preprocess(Exec& ex, const RoutedPairs& routed, Dispatcher::Saved& saved) const {
  const Tensor& experts = routed.experts;
  Saved& kept = local(saved);
  const Index pairs = experts.numel(), count = sizes_.num_experts, padded = sizes_.padded(experts.dim(0), routed.mode);
  kept.table = ex.tensor({2, count}, DType::i32);
  kept.groups = groups_of(kept.table, sizes_.alignment);
  kept.row_of = ex.tensor(experts.shape(), DType::i32);
  kept.pair_of = ex.tensor({ops::rows_to_build(pairs, count, padded, sizes_.alignment)}, DType::i32);
  ops::build_rows(ex, {.experts = experts,
                       .groups = kept.groups,
                       .row_of = kept.row_of,
                       .pair_of = kept.pair_of,
                       .rows_per_expert = padded});
  if (padded == 0) return;
  Index end = 0;
  for (Index e = 0; e < count; ++e) end = set_group(kept.constants, e, end, padded, sizes_.alignment);
  kept.groups.host = ops::HostGroups(kept.constants);
}

void LocalDispatcher::reach(Exec& ex, MoePoint point, Saved& kept) const {
  const bool host_reads = ex.device() != Device::cpu && kept.groups.host.begin != kept.constants.data();
  if (!host_reads) return;
  if (copies_.issue && copies_.wait == point) HostNumbers::keep_until_here(ex, kept.table);
  if (ex.recording()) return;
  if (copies_.issue == point) kept.on_host.copy(ex, kept.table);
  if (copies_.issue && copies_.wait == point) kept.groups.host = ops::HostGroups(kept.on_host.wait(alone_));
}

ExpertRows LocalDispatcher::gathered(Exec& ex, const Tensor& x, const RowForms& forms, const Saved& kept) const {
  if (!forms.straight && !forms.turned) return {permuted(ex, x, kept.pair_of, sizes_.top_k, kept.row_of), kept.groups};
  const Index rows = kept.pair_of.numel(), hidden = x.dim(1);
  ExpertRows made{{}, kept.groups, {.is_made = true}};
  if (forms.numbers) made.rows = ex.tensor({rows, hidden}, x.dtype());
  if (forms.straight) made.operands.straight = ops::make_operand(ex, rows, hidden, ops::ScaleBlocks::vectors);
  if (forms.turned) made.operands.turned = ops::make_operand(ex, hidden, rows, ops::ScaleBlocks::vectors);
  ops::quantise_rows(ex, {.x = x,
                          .pair_of = kept.pair_of,
                          .rows = made.rows,
                          .straight = made.operands.straight,
                          .turned = made.operands.turned,
                          .top_k = sizes_.top_k});
  return made;
}

void LocalDispatcher::permute(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const {
  Saved& kept = local(saved);
  reach(ex, MoePoint::before_permutation_1, kept);
  kept.rows = gathered(ex, x, sizes_.forms.forward, kept);
}

InFlight LocalDispatcher::dispatch(Exec& ex, Dispatcher::Saved& saved, LaterRows&) const {
  Saved& kept = local(saved);
  reach(ex, MoePoint::before_ep_alltoall, kept);
  reach(ex, MoePoint::before_permutation_2, kept);
  reach(ex, MoePoint::before_finish, kept);
  return {};
}

ExpertRows LocalDispatcher::arrived(Exec&, Dispatcher::Saved& saved) const {
  const Saved& kept = local(saved);
  return {kept.rows.rows, kept.groups, kept.rows.operands};
}

void LocalDispatcher::return_rows(Exec&, const Tensor& rows, Dispatcher::Saved& saved) const {
  local(saved).returned = rows;
}

void LocalDispatcher::combine(Exec& ex, const Tensor& weights, const Tensor& y, Dispatcher::Saved& saved) const {
  const Saved& kept = local(saved);
  ops::sum_rows(ex, {.rows = kept.returned, .row_of = kept.row_of, .weights = weights, .y = y});
}

void LocalDispatcher::combine_backward(Exec& ex, const Tensor& dy, const Tensor& weights,
                                       Dispatcher::Saved& saved) const {
  Saved& kept = local(saved);
  const ExpertRows rows = gathered(ex, dy, sizes_.forms.grads, kept);
  kept.grads = {rows.rows, permuted_weights(ex, weights, kept.pair_of), rows.operands};
}

RowGrads LocalDispatcher::return_rows_backward(Exec&, Dispatcher::Saved& saved, LaterRows&) const {
  return local(saved).grads;
}

ExpertRows LocalDispatcher::dispatched(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const {
  return gathered(ex, x, sizes_.forms.again, local(saved));
}

InFlight LocalDispatcher::dispatch_backward(Exec&, const RowGrads& rows, const SourceGrads&,
                                            Dispatcher::Saved& saved) const {
  local(saved).grads = rows;
  return {};
}

void LocalDispatcher::permute_backward(Exec& ex, const SourceGrads& sources, Dispatcher::Saved& saved) const {
  const Saved& kept = local(saved);
  sum_grads(ex, kept.grads, kept.row_of, sources.x, sources.weights);
}

}  // namespace megalith::nn
