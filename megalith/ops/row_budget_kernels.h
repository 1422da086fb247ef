#pragma once
#include "megalith/ops/pair_parts.h"
#include "megalith/ops/row_budget.h"

namespace megalith::ops {

// experts: (R, n, K) : (n K, K, 1) i32.  overflow: (2) : (1) i64, dropped: (1) : (1) i64.

namespace cpu {
/// left [E] i64
void limit_rows(const LimitRows& args, const Tensor& left);
}  // namespace cpu

namespace cuda {
/// i32: counts of parts; totals, then first numbers [R, E]; the pairs of an expert that have room [E]; whether some
/// have none [1].
struct LimitScratch {
  explicit LimitScratch(const LimitRows& args) : parts(args.experts, args.num_experts) {}
  PairParts parts;

  Index totals_at() const { return parts.counts(); }
  Index left_at() const { return totals_at() + parts.columns(); }
  Index overflows_at() const { return left_at() + parts.num_experts; }
  Index numbers() const { return overflows_at() + 1; }
};
/// Experts outside [0, E) count as none.
void limit_rows(Stream stream, const LimitRows& args, const Tensor& scratch);
}  // namespace cuda

}  // namespace megalith::ops
