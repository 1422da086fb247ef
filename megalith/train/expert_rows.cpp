#include "megalith/train/expert_rows.h"

#include <algorithm>
#include <numeric>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/config/moe_rules.h"
#include "megalith/nn/moe/moe.h"

namespace megalith::train {
namespace {

constexpr double kCapacityFactor = 1.25;

/// The same run with experts that are padded to a usual capacity.
config::RunPlan with_capacity(config::RunPlan plan) {
  nn::MoeConfig& moe = plan.model.moe;
  moe.capacity = nn::ExpertCapacity::pad;
  moe.capacity_factor = kCapacityFactor;
  // Runs are whole on every rank: a rank may hold one of tp shares of the rows.
  const Index rows = plan.train.micro_batch * plan.model.seq_len;
  moe.capacity_run = std::gcd(plan.model.seq_len, rows % plan.grid.tp == 0 ? rows / plan.grid.tp : rows);
  return plan;
}

/// "moe.rank_capacity_factor = 2 takes N, ", if ranks that read each other's rows have room for more.
std::string budget_text(const config::RunPlan& plan, const PlannedBytes& planned, Index now) {
  if (!config::limits_rows(plan)) return "";
  config::RunPlan limited = plan;
  limited.model.moe.rank_capacity_factor = config::usual_rank_capacity(config::budget_facts(plan));
  const Index then = expert_rows_in(planned(limited));
  if (then >= now) return "";
  return str("moe.rank_capacity_factor = ", limited.model.moe.rank_capacity_factor.text(), " takes ", human_bytes(then),
             ", ");
}

/// "moe.capacity = pad with moe.capacity_factor = 1.25 takes N, ", if that is less.
std::string capacity_text(const config::RunPlan& plan, const PlannedBytes& planned, Index now) {
  if (plan.model.moe.capacity == nn::ExpertCapacity::pad)
    return str("a moe.capacity_factor below ", plan.model.moe.capacity_factor, " or ");
  const config::RunPlan padded = with_capacity(plan);
  const Index then = expert_rows_in(planned(padded));
  if (then >= now) return "";
  const Index run = padded.model.moe.capacity_run;
  return str("moe.capacity = pad with moe.capacity_factor = ", kCapacityFactor,
             run == plan.model.seq_len ? "" : str(" and moe.capacity_run = ", run), " takes ", human_bytes(then),
             ", and ");
}

}  // namespace

Index expert_rows_in(const BytesByOwner& bytes) {
  const auto found = bytes.find(nn::Moe::kRowsOwner);
  return found == bytes.end() ? 0 : found->second;
}

std::string expert_rows_advice(const config::RunPlan& plan, const BytesByOwner& bytes, const PlannedBytes& planned,
                               Index missing) {
  const Index rows = expert_rows_in(bytes);
  const bool is_largest = std::ranges::all_of(bytes, [&](const auto& owner) { return owner.second <= rows; });
  if (rows == 0 || (rows < missing && !is_largest)) return "";
  const bool is_limited = config::limits_rows(plan) && !plan.model.moe.rank_capacity_factor.is_worst_case();
  const bool is_worst_case =
      plan.grid.ep * plan.grid.etp > 1 && plan.model.moe.capacity != nn::ExpertCapacity::pad && !is_limited;
  return str("; of this, expert rows take ", human_bytes(rows),
             is_worst_case ? ", for the case that all tokens choose the experts of one rank: " : ": ",
             budget_text(plan, planned, rows), capacity_text(plan, planned, rows),
             "a smaller train.micro_batch takes less in proportion");
}

}  // namespace megalith::train
