#pragma once
#include "megalith/ops/pair_parts.h"
#include "megalith/ops/row_exchange.h"

namespace megalith::ops {

// experts: (R, n, K) : (n K, K, 1) i32.  groups.begin, groups.rows: (L) : (1).  Of both pulls, counts: (2) : (1),
// sources: (P, 2) : (2, 1), begin: (P + 1) : (1), wants: (M) : (1).  places: (n K P, 2) : (2, 1).  row_begin: (n + 1) :
// (1), pair_begin: (n K + 1) : (1).

namespace cpu {
/// first [2, R, E] i64: the first row of each expert's rows from each rank, and after the last. row_of [R, n, K] i32:
/// the row of each pair here.
void plan_exchange(const PlanExchange& args, const Tensor& first, const Tensor& row_of);
}  // namespace cpu

namespace cuda {
/// The lists of a plan that no other op reads, in one tensor [numbers()] i32.
struct ExchangeScratch {
  explicit ExchangeScratch(const PlanExchange& args)
      : parts(args.experts, args.num_experts),
        local_experts(args.ranks.local_experts),
        lists(args.first_groups > 0 ? 2 : 1),
        row_blocks(ceil_div(parts.ranks * args.experts.dim(1), kRowsOfBlock)) {}
  static constexpr Index kRowsOfBlock = 256;

  PairParts parts;
  Index local_experts, lists, row_blocks;

  Index empty_ranges() const { return local_experts * (parts.ranks + 1); }
  /// totals of blocks [lists, row_blocks], as numbers of 64 bits; counts of parts [R, E, parts]; totals, then first
  /// rows [R, E]; whether experts are here [E]; empty ranges [L (R + 1), 3]; rows of pairs [R, n K].
  Index counts_at() const { return 2 * lists * row_blocks; }
  Index first_at() const { return counts_at() + parts.counts(); }
  Index here_at() const { return first_at() + parts.columns(); }
  Index empty_at() const { return here_at() + parts.num_experts; }
  Index rows_at() const { return empty_at() + 3 * empty_ranges(); }
  Index numbers() const { return rows_at() + parts.ranks * parts.of_rank; }
};

void plan_exchange(Stream stream, const PlanExchange& args, const Tensor& scratch);
}  // namespace cuda

}  // namespace megalith::ops
