#pragma once
#include <span>

#include "megalith/ops/row_exchange.h"

namespace megalith::ops {

// An exchange in rounds: the rows of some experts of every rank at a time, so that they fit a buffer.

/// round_of[e] = the round of expert e: neighbouring experts of a rank share a round while their rows fit `room`. All
/// ranks of the exchange find the same. Returns the number of rounds, at least 1. Throws InputError for an expert with
/// more rows than `room`.
struct AssignRounds {
  std::span<const std::int32_t> counts;  // in   [R, E]: the pairs of rank r for expert e (ops/echo_routing.h)
  std::span<std::int32_t> round_of;      // out  [E]
  Index local_experts = 1, room = 0;     ///< expert e is on ranks with number e / local_experts
};
std::int32_t assign_rounds(const AssignRounds& args);

/// of_round = experts, with -1 in place of those of other rounds. At most kMaxGroups experts.
struct ChoicesOfRound {
  Tensor experts, of_round;  // in, out  [R, n, K] i32
  std::span<const std::int32_t> round_of;
  std::int32_t round = 0;
};
void choices_of_round(Exec& ex, const ChoicesOfRound& args);

/// row_of[j] = j, or kZeroRow where the pair j / P has no expert.
void number_pairs(Exec& ex, const Tensor& experts, const Tensor& row_of);  // in [n, K] i32, out [n, K P] i32

/// The rows at `places` [J, 2] i32 (PlanExchange), pulled into the rows of their numbers. Other rows keep what they
/// hold.
void pull_places(Exec& ex, const Tensor& places, const PullTables& pulls);  // P = M = J

}  // namespace megalith::ops
