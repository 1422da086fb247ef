#include <utility>

#include "megalith/config/moe_rules.h"
#include "megalith/config/run_plan.h"
#include "megalith/grid/group_catalog.h"

// What follows from a resolved plan.

namespace megalith::config {
namespace {

capture::Capacity capacity_fact(nn::ExpertCapacity capacity) {
  switch (capacity) {
    case nn::ExpertCapacity::none:
      return capture::Capacity::dropless;
    case nn::ExpertCapacity::drop:
      return capture::Capacity::dropping;
    case nn::ExpertCapacity::pad:
      return capture::Capacity::padded;
  }
  return capture::Capacity::dropless;
}

}  // namespace

int RunPlan::sub_batches() const {
  const bool is_default = device == Device::cuda && size_of(train.policy().compute) == 2;
  const bool wanted = tp_overlap == TpOverlap::halves || (tp_overlap == TpOverlap::automatic && is_default);
  const bool are_equal = train.micro_batch % 2 == 0 && train.micro_batch / 2 * model.seq_len % row_shares() == 0;
  return wanted && grid.tp > 1 && are_equal && !model.moe.has_experts() ? 2 : 1;
}

bool RunPlan::has_fp8_experts() const {
  return model.moe.has_experts() && nn::expert_format(train.policy().gemms, fp8, model.hidden_size) == GemmFormat::e4m3;
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
  if (model.moe.gemm == nn::ExpertGemm::grouped) {
    if (const std::string why = why_no_grouped_gemm(*this); !why.empty())
      all.push_back("moe.gemm = grouped: runs as loop, a GEMM for each expert: " + why);
  }
  if (train.policy().gemms == GemmFormat::e4m3 && model.moe.has_experts() && fp8.experts == nn::Fp8Experts::wide &&
      !has_fp8_experts()) {
    all.push_back(str("fp8.experts = wide: experts stay in bf16, which is faster below model.hidden_size = ",
                      nn::kFp8ExpertWidth));
  }
  if (ranks_per_node == 0) return all;
  for (std::string& warning : grid::placement_warnings(grid::GroupCatalog(grid), ranks_per_node))
    all.push_back(std::move(warning));
  return all;
}

capture::RunFacts RunPlan::run_facts() const {
  using nn::RecomputeModule;
  const Index moe_layers = model.num_moe_layers();
  const bool is_on_gpus = device == Device::cuda;
  return {.dense_layers = model.num_layers - moe_layers,
          .moe_layers = moe_layers,
          .num_stages = grid.pp,
          .num_experts = model.moe.num_experts,
          .capacity = capacity_fact(model.moe.capacity),
          .dispatcher = capture::Dispatcher::all_to_all,  // its rules are the stricter ones
          .pads_routing = false,                          // FP8 pads the groups of rows, not the routing
          .sizes_stay_on_device = why_no_evaluation_graph(*this).empty(),
          .device_sizes_by = settings_without_host_sizes(*this),
          .overlaps_experts = sub_batches() > 1 && moe_layers > 0,
          .echo = model.moe.echo.slots > 0 && grid.ep > 1,
          .echo_stops_at_boundary = true,  // no host reads a plan before the graph ends
          .recomputes_layers = recompute.mode == nn::RecomputeMode::full,
          .recomputes_groups = recompute.mode == nn::RecomputeMode::full &&
                               recompute.method == nn::RecomputeMethod::uniform && recompute.layers > 1,
          .recomputes_experts = moe_layers > 0 && recompute.has(RecomputeModule::mlp),
          .offloads_activations = false,  // not built
          .varying_lengths = false,       // samples may have lengths of their own, but tensors keep their sizes
          .for_inference = false,         // plans are of training
          .hybrid_context_parallel = false,
          .ramps_batch = train.ramp.has_value(),
          .records_again = true,
          .random_on_host = false,  // seed, step and site lie in device memory
          .maps_memory = is_on_gpus && grid.world_size > 1,
          .nccl_registers = false};  // the program sets NCCL_GRAPH_REGISTER = 0
}

}  // namespace megalith::config
