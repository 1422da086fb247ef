#include "megalith/report/echo_run.h"

#include <algorithm>
#include <numeric>

namespace megalith::apps {
namespace {

Counts counts_of(const Tensor& tensor) {
  const std::span<std::int32_t> all = tensor.span<std::int32_t>();
  return {all.begin(), all.end()};
}

}  // namespace

Index EchoResult::pairs() const { return std::accumulate(load.begin(), load.end(), Index{0}); }
Index EchoResult::moved() const { return std::accumulate(cap.begin(), cap.end(), Index{0}); }
Index EchoResult::clones() const {
  return std::ranges::count_if(src, [](std::int32_t expert) { return expert >= 0; });
}
double EchoResult::max_over_mean(const Counts& of_ranks) const {
  const Index all = pairs();
  return all == 0 ? 1
                  : static_cast<double>(*std::ranges::max_element(of_ranks)) * static_cast<double>(of.ranks) /
                        static_cast<double>(all);
}

EchoResult run_echo(const EchoCounts& of, const EchoSettings& settings) {
  Exec ex;
  const Tensor counts = ex.tensor({of.ranks, of.experts}, DType::i32);
  std::copy(of.counts.begin(), of.counts.end(), counts.data<std::int32_t>());
  const ops::EchoPlan plan = ops::make_echo_plan(ex, of.ranks, of.experts, settings.slots);
  const ops::EchoStages stages = ops::make_echo_stages(ex, of.ranks, of.experts, settings.slots);
  ops::plan_echo(
      ex,
      {.counts = counts, .plan = plan, .stages = stages, .balance = settings.balance, .min_pairs = settings.min_pairs});
  return {.of = of,
          .settings = settings,
          .avg = *plan.avg.data<std::int32_t>(),
          .dropped = *plan.plan_dropped.data<std::int32_t>(),
          .src = counts_of(plan.src),
          .cap = counts_of(plan.cap),
          .take = counts_of(plan.take),
          .rows = counts_of(plan.rows),
          .load_after = counts_of(plan.load_after),
          .hash = static_cast<std::uint64_t>(*plan.hash.data<std::int64_t>()),
          .total = counts_of(stages.expert_total),
          .load = counts_of(stages.load),
          .spill = counts_of(stages.spill),
          .spare = counts_of(stages.spare),
          .spill_index = counts_of(stages.spill_index),
          .spare_index = counts_of(stages.spare_index),
          .wanted = counts_of(stages.wanted),
          .moves = counts_of(stages.moves),
          .breadth = counts_of(stages.breadth),
          .room = counts_of(stages.room)};
}

const char* name_of(ops::EchoBalance balance) { return balance == ops::EchoBalance::exact ? "exact" : "greedy"; }

}  // namespace megalith::apps
