#include <utility>

#include "megalith/config/run_plan.h"
#include "megalith/grid/group_catalog.h"

// What follows from a resolved plan.

namespace megalith::config {

int RunPlan::sub_batches() const {
  const bool is_default = device == Device::cuda && size_of(train.policy().compute) == 2;
  const bool wanted = tp_overlap == TpOverlap::halves || (tp_overlap == TpOverlap::automatic && is_default);
  const bool are_equal = train.micro_batch % 2 == 0 && train.micro_batch / 2 * model.seq_len % row_shares() == 0;
  return wanted && grid.tp > 1 && are_equal && !model.moe.has_experts() ? 2 : 1;
}

std::vector<std::string> RunPlan::warnings() const {
  const std::pair<bool, const char*> idle[] = {
      {sequence_parallel && grid.tp == 1, "parallel.sequence_parallel = true: does nothing with parallel.tp = 1"},
      {tp_overlap == TpOverlap::halves && grid.tp == 1,
       "parallel.tp_overlap = halves: does nothing with parallel.tp = 1"},
      {optimizer.sharding == Sharding::optimizer && grid.dp * grid.cp == 1,
       "optimizer.distributed = true: does nothing with one model copy (dp * cp = 1)"}};
  std::vector<std::string> all = recipe_warnings;
  if (optimizer.warmup_steps > train.steps) {
    all.push_back(str("optimizer.warmup_steps = ", optimizer.warmup_steps, ": more than train.steps = ", train.steps,
                      ", so the learning rate never reaches optimizer.lr"));
  }
  for (const auto& [holds, text] : idle) all.insert(all.end(), holds ? 1 : 0, text);
  if (ranks_per_node == 0) return all;
  for (std::string& warning : grid::placement_warnings(grid::GroupCatalog(grid), ranks_per_node))
    all.push_back(std::move(warning));
  return all;
}

capture::RunFacts RunPlan::run_facts() const {
  const Index moe_layers = model.num_moe_layers();
  return {.dense_layers = model.num_layers - moe_layers,
          .moe_layers = moe_layers,
          .num_stages = grid.pp,
          .num_experts = model.moe.num_experts,
          .recomputes_layers = recompute.mode == nn::RecomputeMode::full};
}

}  // namespace megalith::config
