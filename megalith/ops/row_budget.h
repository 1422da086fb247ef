#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// Ranks of experts have room for a number of rows each. Every rank of an exchange knows the choices of all, so that
/// all take away the same pairs of token and expert: of each rank those beyond its room, in the order of its rows, by
/// (expert, source rank, row, choice).
struct LimitRows {
  Tensor experts;        // in, out  [R, n, K] i32: of rank r's row t; -1: no expert, and of pairs beyond the room
  Tensor overflow = {};  // in, out  [2] i64: adds the pairs of rank `rank` beyond the room; the most rows that a rank
                         //          would need, so far. Undefined: they are not counted
  Tensor dropped = {};   // in, out  [1] i64: adds these pairs, too; may be undefined
  Index num_experts = 1;
  Index local_experts = 1;  ///< expert e is on ranks with number e / local_experts
  Index room = 0;           ///< rows of a rank
  Index rank = 0;           ///< of this process in the exchange; -1: its pairs are not counted
};
/// Throws InputError on the CPU for an expert outside [-1, E); on a GPU it counts as none.
void limit_rows(Exec& ex, const LimitRows& args);

/// The least capacity factor, in thousandths, with whose ceil(pairs * factor) rows `needed` rows have room.
constexpr Index factor_for_rows(Index needed, Index pairs) { return needed <= 0 ? 0 : (needed - 1) * 1000 / pairs + 1; }
/// ceil(pairs * thousandths / 1000)
constexpr Index rows_of_factor(Index pairs, Index thousandths) { return ceil_div(pairs * thousandths, 1000); }

}  // namespace megalith::ops
