#pragma once
#include "megalith/ops/echo_plan.h"
#include "megalith/runtime/step_state.h"

namespace megalith::ops {

// counts: (R, E) : (E, 1).  avg, plan_dropped, hash: (1) : (1).  src, cap, room: (R, S) : (S, 1).
// take, breadth: (R, R, S) : (R S, S, 1).  rows: (R, R, L + S) : (R (L + S), L + S, 1).
// moves: (E + R, 3) : (3, 1).  load_after, load, spare, spare_index, wanted: (R) : (1).  expert_total, spill,
// spill_index: (E) : (1). scratch: (echo_scratch_words(R, E, S)) : (1) i64.

/// What the CPU needs: EchoScratch in cpu/echo_plan.cpp lays it out.
constexpr Index echo_scratch_words(Index ranks, Index experts, Index slots) {
  return 8 * experts + 7 * ranks + 2 * ranks * slots;
}

/// PlanEcho::hash_every.
constexpr bool has_hash(const StepState& state, Index every) {
  return state.step % static_cast<std::uint64_t>(every) == 0;
}

namespace cpu {
void plan_echo(const PlanEcho& args, const Tensor& scratch);
}  // namespace cpu

namespace cuda {
/// scratch: of the same words, i64. Counts below 0 count as 0, and sums of 2^31 or more are not noticed.
void plan_echo(Stream stream, const PlanEcho& args, const Tensor& scratch);
}  // namespace cuda

}  // namespace megalith::ops
