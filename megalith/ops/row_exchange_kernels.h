#pragma once
#include <algorithm>

#include "megalith/ops/row_exchange.h"

namespace megalith::ops {

// experts: (R, n, K) : (n K, K, 1) i32.  groups.begin, groups.rows: (L) : (1).  Of both pulls, counts: (2) : (1),
// sources: (P, 2) : (2, 1), begin: (P + 1) : (1), wants: (M) : (1).  places: (n K P, 2) : (2, 1).  row_begin: (n + 1) :
// (1), pair_begin: (n K + 1) : (1).

namespace cpu {
/// first [2, R, E] i64: the first row of each expert's rows from each rank, and after the last.
void plan_exchange(const PlanExchange& args, const Tensor& first);
}  // namespace cpu

namespace cuda {
/// The pairs of each rank are cut into parts, and each part counts its experts. A warp goes through a part, so parts
/// are short. Scratch grows with their number, so there are at most 512 of a rank.
inline Index pairs_of_exchange_part(Index pairs) { return std::max<Index>(512, round_up(ceil_div(pairs, 512), 32)); }

/// The lists of a plan that no other op reads, in one tensor [numbers()] i32.
struct ExchangeScratch {
  explicit ExchangeScratch(const PlanExchange& args)
      : ranks(args.experts.dim(0)),
        num_experts(args.num_experts),
        local_experts(args.ranks.local_experts),
        pairs(args.experts.dim(1) * args.experts.dim(2)),
        parts(ceil_div(pairs, pairs_of_exchange_part(pairs))),
        row_blocks(ceil_div(ranks * args.experts.dim(1), kRowsOfBlock)) {}
  static constexpr Index kRowsOfBlock = 256;

  Index ranks, num_experts, local_experts, pairs, parts, row_blocks;

  Index columns() const { return ranks * num_experts; }
  Index empty_ranges() const { return local_experts * (ranks + 1); }
  /// totals of blocks [2 row_blocks], as numbers of 64 bits; counts of parts [R, E, parts]; totals, then first rows
  /// [R, E]; whether experts are here [E]; empty ranges [L (R + 1), 3]; rows of pairs [R, n K].
  Index counts_at() const { return 2 * row_blocks; }
  Index first_at() const { return counts_at() + columns() * parts; }
  Index here_at() const { return first_at() + columns(); }
  Index empty_at() const { return here_at() + num_experts; }
  Index rows_at() const { return empty_at() + 3 * empty_ranges(); }
  Index numbers() const { return rows_at() + ranks * pairs; }
};

void plan_exchange(Stream stream, const PlanExchange& args, const Tensor& scratch);
}  // namespace cuda

}  // namespace megalith::ops
