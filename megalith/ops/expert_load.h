#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// Counters of how often each expert was chosen, and the state that follows from them. Counters are integers, so their
// sums do not depend on an order.

/// to[i] = sum over q of from[q, i] + to[i]; all i64. Counters of choices: [Q, E] -> [E].
void add_counts(Exec& ex, const Tensor& from, const Tensor& to);
/// to[0] += how many entries of `kept` are -1: pairs that were dropped. kept [T, K] i32, to [1] i64.
void count_dropped(Exec& ex, const Tensor& kept, const Tensor& to);

/// After a step that was applied: bias[e] += rate sign(mean - count[e]) over the counts of a layer. Nothing else
/// changes it. Source: DeepSeek-V3, arXiv:2412.19437 section 2.1.2; Wang et al. 2024, arXiv:2408.15664. A defined
/// `shares` becomes count[e] / sum of counts, which a load loss of the next step reads.
struct UpdateExperts {
  Tensor counts;   // in   [E] i64, over the whole step
  Tensor verdict;  // in   u8 [sizeof(StepVerdict)]
  Tensor bias;     // in, out  [E] f32 or f64, or undefined
  Tensor shares;   // out  [E] f32 or f64, or undefined
  double rate = 0;
};
void update_experts(Exec& ex, const UpdateExperts& args);

/// range [2] f64 = the least and the greatest of bias [E] f32 or f64.
void expert_bias_range(Exec& ex, const Tensor& bias, const Tensor& range);

/// counts[e] = round(shares[e] total): whole numbers for ops that read counts. shares [E], counts [1, E] i64.
void counts_of_shares(Exec& ex, const Tensor& shares, const Tensor& counts, double total);

}  // namespace megalith::ops
