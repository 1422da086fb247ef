#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

/// Cross entropy over a vocabulary that one rank holds whole:
///   loss [T] = log(sum_v exp z) - z[target], 0 where the target is -1; loss_sum [1] f64 += their sum.
/// With a StepState the logits [T, V] are replaced by their gradient times its loss_scale, in the same pass over them.
/// Without one (evaluation) the logits are undefined afterwards. Columns from vocab_size on are padding: they count as
/// -inf and get gradient 0.
struct CrossEntropy {
  Tensor logits;      // in, out  [T, V]
  Tensor targets;     // in       [T] i32, -1 = no loss
  Tensor step_state;  // in       u8 [sizeof(StepState)], or undefined
  Tensor loss;        // out      [T], f64 for f64 logits, else f32
  Tensor loss_sum;    // out, accumulated  [1] f64
  Index vocab_size = 0;
};
void cross_entropy(Exec& ex, const CrossEntropy& args);

// The three local steps of a cross entropy over a vocabulary split across ranks. nn/vocab_parallel_cross_entropy.h has
// the two reductions between them. logits z [T, V/tp] hold global ids [first_id, first_id + V/tp). Columns whose id is
// vocab_size or more are padding and count as -inf. Statistics are f64 for f64 logits and f32 otherwise. Source:
// Shoeybi et al. 2019, arXiv:1909.08053, section 3.

/// row_max[t] = max over the owned real columns (-inf if there are none).  row_max [T]
void logits_max(Exec& ex, const Tensor& logits, const Tensor& row_max, Index first_id, Index vocab_size);

/// z <- exp(z - row_max) in place (0 for padding). sums[0, t] = sum of the row. sums[1, t] = (z - row_max) at the
/// target if this rank owns it, else 0.
struct LogitsSumExp {
  Tensor logits;            // in, out  [T, V/tp]
  Tensor row_max, targets;  // in       [T], [T] i32 global ids, -1 = no loss
  Tensor sums;              // out      [2, T]
  Index first_id = 0, vocab_size = 0;
};
void logits_sum_exp(Exec& ex, const LogitsSumExp& args);

/// loss[t] = log(sums[0,t]) - sums[1,t]; 0 where the target is -1. loss_sum [1] f64 += sum of loss, t ascending in
/// fixed blocks. On the CPU throws InputError for a target outside [-1, vocab_size).
struct LossFromSums {
  Tensor sums, targets;  // in
  Tensor loss;           // out  [T], dtype of sums
  Tensor loss_sum;       // out, accumulated  [1] f64
  Index vocab_size = 0;
};
void loss_from_sums(Exec& ex, const LossFromSums& args);

/// z (which holds exp(z - max)) <- (z / sums[0] - [column is target]) * loss_scale. It is 0 in rows without a loss and
/// in padding columns. loss_scale is that of the StepState.
struct LogitsBackward {
  Tensor logits;                     // in, out  [T, V/tp]
  Tensor sums, targets, step_state;  // in
  Index first_id = 0;
};
void logits_backward(Exec& ex, const LogitsBackward& args);

}  // namespace megalith::ops
