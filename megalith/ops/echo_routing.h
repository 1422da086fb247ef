#pragma once
#include "megalith/ops/echo_plan.h"

namespace megalith::ops {

// What follows from a plan of echo_plan.h: where pairs of token and expert go, and which rows of weights and gradients
// move. Names as there: R ranks, E experts, L = E / R, S slots of each rank.

/// counts[r, e] = the pairs of rank r for expert e.
struct CountPairs {
  Tensor experts;  // in   [R, n, K] i32: the choices of all ranks; -1: no expert
  Tensor counts;   // out  [R, E] i32
};
/// Throws InputError on the CPU for an expert outside [-1, E); on a GPU it counts as none.
void count_pairs(Exec& ex, const CountPairs& args);

/// The columns of pairs: those of rank q are q (L + S) to q (L + S) + L - 1 for its experts, then its slots. On each
/// source rank, of the pairs of an expert in ascending order of tokens, the first take[r, k] go to its lowest slot k,
/// the next ones to the slot after that, and the rest stay home. A pair keeps its place among its token's choices.
struct RewriteChoices {
  Tensor experts;    // in   [R, n, K] i32
  Tensor src, take;  // in   [R S], [R, R S] i32: of an EchoPlan
  Tensor columns;    // out  [R, n, K] i32; -1 where `experts` is
  Index num_experts = 1;
};
void rewrite_choices(Exec& ex, const RewriteChoices& args);

/// Which rows of a matrix [L, W] with a row for each expert of a rank move because of a plan, seen from one rank:
/// weights to slots, and gradients of slots [S, W] home. Entries that stand for nothing are kUnusedRow (ops/rows.h).
/// The gradients of a rank's clones come in ascending order of their slots.
struct CloneLists {
  // Ranks that read each other's rows (comm::RowPulls and comm::RowSums):
  Tensor counts;     // out  [2] i32: active slots of this rank, twice
  Tensor sources;    // out  [S, 2] i32: (home, row there), by slot
  Tensor begin;      // out  [S + 1] i32
  Tensor wants;      // out  [S] i32: the slots
  Tensor sum_begin;  // out  [L + 1] i32: the first clone of each expert of this rank
  Tensor places;     // out  [R S, 2] i32: (rank, slot there) of each clone
  // A copy of all slots on every rank:
  Tensor image;  // out  [R S] i32: the row that goes into a slot, where the expert is this rank's, else kZeroRow
  Tensor slots;  // out  [R S] i32: the slot of each clone, of those of all ranks
  // Rows that are sent, those of a rank by the slot where they arrive or come from:
  Tensor sent;      // out  [R S] i32: rows in the order in which they are sent
  Tensor received;  // out  [S] i32: the received row of each slot
  Tensor returned;  // out  [S] i32: slots in the order in which their gradients are sent
  Tensor arrived;   // out  [R S] i32: the received gradient of each clone
};
struct ListClones {
  Tensor src;  // in   [R S] i32: of an EchoPlan
  CloneLists lists;
  Index num_experts = 1, ranks = 1, rank = 0;
};
void list_clones(Exec& ex, const ListClones& args);
/// Tensors for list_clones(), from `ex`.
CloneLists make_clone_lists(Exec& ex, Index ranks, Index experts, Index slots);

/// grads[l] += rows[order[i]] for i from begin[l] to begin[l + 1] - 1, one after the other. f32 or f64.
struct AddRows {
  Tensor rows;   // in   [P, W]
  Tensor begin;  // in   [L + 1] i32
  Tensor order;  // in   [J] i32
  Tensor grads;  // in, out  [L, W]
};
void add_rows(Exec& ex, const AddRows& args);

/// What plans of a layer add up, for reports. `wanted`: plans that need so many slots on some rank, from 0 on; the last
/// number counts those that need more than kMaxEchoSlots.
enum class EchoTotal : std::uint8_t { plans, mean_load, load_before, load_after, moved, clones, dropped, wanted };
inline constexpr Index kEchoTotals = static_cast<Index>(EchoTotal::wanted) + kMaxEchoSlots + 2;

/// totals += the numbers of one plan. Loads are those of the most loaded rank.
struct AddEchoTotals {
  EchoPlan plan;      // in
  EchoStages stages;  // in
  Tensor totals;      // in, out  [kEchoTotals] f64
};
void add_echo_totals(Exec& ex, const AddEchoTotals& args);

}  // namespace megalith::ops
