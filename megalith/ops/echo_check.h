#pragma once
#include "megalith/ops/echo_plan.h"

namespace megalith::ops {

/// What a rank keeps of the first plans that differ: 1 for `found`, the chunk and the layer in which they were made,
/// StepState::first_sample of their microbatch, and from `hashes` on those of all ranks of the group.
enum class PlanDifference : std::uint8_t { found, chunk, layer, first_sample, hashes };
inline constexpr Index kPlanDifference = static_cast<Index>(PlanDifference::hashes) + kMaxEchoRanks;

/// Compares the plans of a group's ranks in the steps that PlanEcho::hash_every has, before any row moves. Where they
/// differ, no pair has an expert any more, and no slot a clone: so no row moves between ranks, and the host may learn
/// of it at the end of the step. All ranks of the group see the same hashes, and do the same.
struct CheckEchoPlans {
  Tensor hashes;          // in       [R] i64: EchoPlan::hash of each rank
  Tensor step_state;      // in       u8 [sizeof(StepState)]
  Tensor experts;         // in, out  [R, n, K] i32: the choices of all ranks
  Tensor src, cap, take;  // in, out  of the EchoPlan
  Tensor found;           // in, out  [kPlanDifference] i64: a PlanDifference, if its first number is 0
  Index every = 1;
  int chunk = 0;
  Index layer = 0;  ///< of the model
};
/// Throws ShapeError.
void check_echo_plans(Exec& ex, const CheckEchoPlans& args);

}  // namespace megalith::ops
