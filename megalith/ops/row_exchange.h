#pragma once
#include "megalith/ops/expert_choices.h"
#include "megalith/ops/group_rows.h"

namespace megalith::ops {

/// Which rows a rank pulls, and where they go: in the layout of comm::RowPulls.
struct PullTables {
  Tensor counts;   // out  [2] i32: pulls, and entries of `wants`
  Tensor sources;  // out  [P, 2] i32: (rank, row there)
  Tensor begin;    // out  [P + 1] i32: the first entry of `wants` of each pull
  Tensor wants;    // out  [M] i32: rows of the result. Those after the last pull's become zeros
};

/// From the choices of all ranks of an exchange, what rank `rank` reads of the others, and where the results of its own
/// choices are. All ranks have n rows with K choices each. Slice s of expert e is on rank ranks.destination(e, s) /
/// local_experts. There the rows of an expert are a group, ordered by (source rank, row, choice). The same pair (t, k)
/// of a rank has the same place on every rank with a slice of its expert.
struct PlanExchange {
  Tensor experts;        // in   [R, n, K] i32: of rank r's row t; -1: no expert
  GroupRows groups;      // out  of the local experts
  PullTables rows;       // out  P = R n: each row once, wanted by a row of each local expert that it chose
  PullTables rest = {};  // out  with first_groups: P, M as of `rows`
  PullTables pairs;   // out  P = A: each pair (t, k) once, as row t K + k of a column [n K, 1]; those of `rows` first
  Tensor places;      // out  [n K P, 2] i32: where the result of slice s of choice k of row t is, at (t K + k) P + s;
                      //      (-1, -1): nowhere
  Tensor row_begin;   // out  [n + 1] i32: the first place of each row
  Tensor pair_begin;  // out  [n K + 1] i32: of each pair
  ExpertRanks ranks;
  Index num_experts = 1;
  Index rank = 0;
  /// 0: an expert has as many rows of each rank as chose it. Otherwise this many of each rank: pairs beyond them have
  /// no place, rows without a pair become zeros.
  Index rows_of_each = 0;
  Index most_pairs = 0;  ///< that come to one rank: the choices fit this (limit_rows); 0: any
  /// 0: `rows` has all. Otherwise only the rows that one of the first `first_groups` local experts wants, for all that
  /// want them, and the rows without a pair. `rest` has the others. Below local_experts.
  Index first_groups = 0;
};
/// The most pairs A that come to one rank, and the rows M = capacity_of_groups(A, local_experts, alignment).
Index pairs_to_receive(const PlanExchange& args);
/// Throws InputError on the CPU for an expert outside [-1, E); on a GPU such a pair has no place.
void plan_exchange(Exec& ex, const PlanExchange& args);

}  // namespace megalith::ops
