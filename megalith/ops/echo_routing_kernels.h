#pragma once
#include "megalith/ops/echo_routing.h"
#include "megalith/ops/pair_parts.h"

namespace megalith::ops {

// experts, columns: (R, n, K) : (n K, K, 1) i32.  counts: (R, E) : (E, 1).  src: (R S) : (1).  take: (R, R S) : (R S,
// 1). Of CloneLists, sources and places: (J, 2) : (2, 1), all others (J) : (1).  Of AddRows, rows: (P, W) : (W, 1),
// grads: (L, W) : (W, 1), begin, order: (J) : (1).  totals: (kEchoTotals) : (1) f64.

namespace cpu {
/// [3 E + R S] i32
constexpr Index rewrite_scratch(Index experts, Index all_slots) { return 3 * experts + all_slots; }

void count_pairs(const CountPairs& args);
void rewrite_choices(const RewriteChoices& args, const Tensor& scratch);
void list_clones(const ListClones& args);
void add_rows(const AddRows& args);
void add_echo_totals(const AddEchoTotals& args);
}  // namespace cpu

namespace cuda {
/// i32: counts of parts, then totals [R, E]; the slots of an expert as a list, ascending: the first one of each expert
/// [E], and the next one [R S].
struct RewriteScratch {
  RewriteScratch(const Tensor& experts, Index num_experts, Index all_slots)
      : parts(experts, num_experts), slots(all_slots) {}

  PairParts parts;
  Index slots;

  Index totals_at() const { return parts.counts(); }
  Index first_at() const { return totals_at() + parts.columns(); }
  Index next_at() const { return first_at() + parts.num_experts; }
  Index numbers() const { return next_at() + slots; }
};

/// Experts outside [0, E) count as none.
void count_pairs(Stream stream, const CountPairs& args);
void rewrite_choices(Stream stream, const RewriteChoices& args, const Tensor& scratch);
void list_clones(Stream stream, const ListClones& args);
void add_rows(Stream stream, const AddRows& args);
void add_echo_totals(Stream stream, const AddEchoTotals& args);
}  // namespace cuda

}  // namespace megalith::ops
