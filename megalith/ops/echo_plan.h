#pragma once
#include "megalith/ops/group_rows.h"
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// ECHO evens out the load of ranks that hold experts. A rank has S slots beside its own experts. For one layer and one
// microbatch the planner copies ("clones") experts of overloaded ranks into slots of other ranks, and decides how many
// pairs of token and expert move there. It uses integers only, and is a function of the counts, S, `balance` and
// `min_pairs`. So every rank of a group makes the same plan by itself.
//
// R ranks, E experts, L = E / R. Rank q holds the experts q L .. (q + 1) L - 1, and the slots q S .. (q + 1) S - 1.

inline constexpr Index kMaxEchoRanks = 256, kMaxEchoExperts = 1024, kMaxEchoSlots = 8;
/// The slots of a rank with which experts and the slots of all ranks are at most kMaxGroups.
constexpr Index max_echo_slots(Index ranks, Index experts) {
  return experts < kMaxGroups ? (kMaxGroups - experts) / ranks : 0;
}

enum class EchoBalance : std::uint8_t {
  /// Pairs above the mean load leave the largest experts of a rank. The largest of these parts go to the ranks with the
  /// most room. What remains of the division by R stays home.
  greedy,
  /// The N mod R most loaded ranks are to compute floor(N / R) + 1 pairs, all others floor(N / R). The rank that lacks
  /// most takes all of it from the rank that exceeds its own target most, from that rank's largest experts, and is
  /// complete. So a rank takes from one other rank, and at most L slots and R - 1 pairs of ranks are needed. With fewer
  /// slots than that it takes what they hold, and the rest counts as dropped.
  exact,
};

/// A plan. Its size does not depend on the counts.
struct EchoPlan {
  Tensor avg;           // [1] i32: floor(N / R)
  Tensor plan_dropped;  // [1] i32: pairs that were to move and stay home, for want of a slot or below min_pairs
  Tensor src, cap;      // [R S] i32: the expert cloned into a slot (-1: none), and the pairs that move there
  Tensor take;          // [R, R S] i32: how many of them come from each source rank
  Tensor rows;        // [R, E + R S] i32: pairs by source rank and column: of each rank its L experts, then its S slots
  Tensor load_after;  // [R] i32: pairs that a rank computes
  Tensor hash;        // [1] i64: FNV-1a of R, E, S, avg, src, cap, take as little-endian i32; or undefined
};

/// The planner's intermediate results, for people and tests. All are defined, or none is.
struct EchoStages {
  Tensor expert_total, load;        // [E], [R] i32: pairs of each expert, and of each rank before
  Tensor spill, spare;              // [E], [R] i32: pairs that are to leave an expert, and that a rank lacks
  Tensor spill_index, spare_index;  // [E], [R] i32: descending by spill and spare, the lower number first
  Tensor wanted;                    // [R] i32: the slots with which nothing is dropped but parts below min_pairs; of
                                    // `exact` with too few slots, the fewest with which that may be
  Tensor moves;                     // [E + R, 3] i32: expert, rank and pairs of what is to move; -1 after the last
  Tensor breadth;                   // [R, R S] i32: the part of `take` that was shared out in proportion
  Tensor room;                      // [R S] i32: what of `cap` was left after that
};

/// Writes a plan for counts [R, E] i32: the pairs of each source rank for each expert. N, their sum, must be below
/// 2^31. A slot receives at least `min_pairs` pairs, or stays empty; `exact` takes no min_pairs. 1 <= R <= 256,
/// E <= 1024 is a multiple of R, and 0 <= S <= 8. Throws ShapeError; on the CPU InputError for counts that are negative
/// or too many.
///
/// Slots hold the S largest entries of their rank. Among equal ones the expert goes first that is first in
/// `spill_index`. A slot's pairs come from source ranks in proportion to C[r][e] (floor, in 64 bits); what the floors
/// left over comes from ranks in ascending order.
/// Source: ECHO of Megatron-LM (its issue 2368), with the ties and roundings that it leaves open fixed here; `exact`
/// and min_pairs are ours.
struct PlanEcho {
  Tensor counts;           // in
  EchoPlan plan;           // out
  EchoStages stages = {};  // out
  EchoBalance balance = EchoBalance::greedy;
  Index min_pairs = 0;
  Tensor step_state =
      {};                // in  u8 [sizeof(StepState)]: the hash is made in steps that are multiples of hash_every, and
  Index hash_every = 1;  //     keeps its bits in others; undefined: always
};
void plan_echo(Exec& ex, const PlanEcho& args);

/// Tensors for plan_echo(), from `ex`.
EchoPlan make_echo_plan(Exec& ex, Index ranks, Index experts, Index slots);
EchoStages make_echo_stages(Exec& ex, Index ranks, Index experts, Index slots);

}  // namespace megalith::ops
