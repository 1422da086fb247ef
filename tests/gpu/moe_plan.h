#pragma once
#include <memory>
#include <string>

#include "tests/train/moe_run.h"

// Plans of models with experts on GPUs, and two ways of dispatch side by side.

namespace megalith::support {

inline config::RunPlan plan_on(Device device, const MoeGrid& grid, const MoeModel& model,
                               const std::string& precision) {
  config::RunPlan plan = config::resolve(moe_config(grid, model, "fp32"));
  plan.device = device;
  if (device == Device::cuda) plan.model.moe.rank_capacity_factor = {};  // room for all rows
  plan.train.precision = precision;
  return plan;
}

/// Widths of whole vectors, as the kernel for all experts takes in 16 bits.
inline void fit_grouped_kernel(config::RunConfig& c) {
  c.model.hidden_size = 24;
  c.moe.ffn_hidden_size = 16;
}

/// Ranks with room for little more than their even share of rows. Routers prefer the first of 16
/// experts, so that one slot does not suffice either.
inline config::RunPlan plan_of_small_budget(Device device, const MoeGrid& grid, const std::string& precision,
                                            Index slots, Index microbatches) {
  constexpr MoeModel kModel{"Skewed", [](config::RunConfig& c) {
                              fit_grouped_kernel(c);
                              c.moe.num_experts = 16;
                              c.moe.top_k = 4;
                              c.moe.router_skew = 0.3;
                            }};
  config::RunPlan plan = plan_on(device, grid, kModel, precision);
  plan.train.steps = 6;
  plan.train.micro_batch = plan.train.global_batch * grid.tp * grid.pp / (grid.ranks * microbatches);
  plan.model.moe.dispatcher = nn::ExpertDispatcher::peer;
  plan.model.moe.rank_capacity_factor = {1020};
  if (slots > 0) plan.model.moe.echo = {.slots = slots, .min_pairs = 0};
  return plan;
}

/// Experts for the kernel, and of 12 units in a loop of GEMMs; padded; dropping.
inline constexpr MoeModel kSentAndRead[] = {{"Kernel", fit_grouped_kernel},
                                            {"Loop", [](config::RunConfig& c) { c.moe.pattern = "dm"; }},
                                            {"Padded",
                                             [](config::RunConfig& c) {
                                               c.moe.capacity = "pad";
                                               c.moe.capacity_factor = 1.25;
                                               c.moe.capacity_run = 8;
                                               c.moe.shared_ffn_hidden_size = 8;
                                             }},
                                            {"Dropping", [](config::RunConfig& c) {
                                               fit_grouped_kernel(c);
                                               c.moe.capacity = "drop";
                                               c.moe.capacity_factor = 1.0;
                                               c.moe.capacity_run = 4;
                                             }}};

/// Rows that are read have the bits of rows that are sent. run(plan): its record.
template <class Run>
void expect_peers_have_the_bits_of_all_to_all(const MoeGrid& grid, const Run& run) {
  for (const MoeModel& model : kSentAndRead) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(str(model.name, " ", precision));
      config::RunPlan plan = plan_on(Device::cuda, grid, model, precision);
      plan.train.steps = 12;
      plan.model.moe.dispatcher = nn::ExpertDispatcher::all_to_all;
      const auto want = run(plan);
      plan.model.moe.dispatcher = nn::ExpertDispatcher::peer;
      const auto got = run(plan);
      EXPECT_EQ(got->losses, want->losses);
      EXPECT_EQ(got->norms, want->norms);
      EXPECT_EQ(got->evaluated, want->evaluated);
      EXPECT_EQ(got->parameters.tensors(), want->parameters.tensors());
      plan.model.moe.overlap = true;
      const auto in_parts = run(plan);
      EXPECT_EQ(in_parts->losses, want->losses);
      EXPECT_EQ(in_parts->parameters.tensors(), want->parameters.tensors());
    }
  }
}

}  // namespace megalith::support
