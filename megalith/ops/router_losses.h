#pragma once
#include "megalith/ops/router.h"

namespace megalith::ops {

// Losses that keep experts evenly used and logits small. Each has several ops, so that sums over ranks can be made
// between them. Their sums are over tokens: the StepState's loss_scale, which multiplies the gradients, divides by the
// tokens of the global batch. Probabilities are p of the router; for a sigmoid they are p / sum_e p (DeepSeek-V3,
// arXiv:2412.19437 section 2.1.2). All numbers are f32 (f64 for f64 runs), losses [1] f64.

/// Rows of a run are summed in parts of this many, then the parts.
inline constexpr Index kRunPartRows = 256;
/// The maximal number of parts of a run's rows, of which there are at most `tokens`.
constexpr Index run_parts(const TokenRuns& runs, Index tokens) {
  const Index rows = runs.seq_len == 0 || runs.seq_len > tokens ? tokens : runs.seq_len;
  return ceil_div(rows, kRunPartRows);
}
/// The rows of a part of a run that this rank has: some or none.
struct RunRows {
  Index begin = 0, end = 0;
};
struct RunPart {
  Index run = 0, part = 0;
};
constexpr Index row_within(Index row, Index tokens) { return row < 0 ? 0 : row < tokens ? row : tokens; }
constexpr RunRows rows_of_part(const TokenRuns& runs, Index tokens, const RunPart& of) {
  const bool one = runs.seq_len == 0;
  const Index begin = one ? 0 : row_within(of.run * runs.seq_len - runs.first_row, tokens);
  const Index all = of.run == 0 ? tokens : 0;
  const Index end = one ? all : row_within((of.run + 1) * runs.seq_len - runs.first_row, tokens);
  const Index first = begin + of.part * kRunPartRows;
  return {first, first + kRunPartRows < end ? first + kRunPartRows : end};
}

/// sums [Q, E] = the sum of the probabilities of every run of tokens; 0 for a run without a row here.
struct SumProbabilities {
  Tensor probabilities;  // in   [T, E]
  Tensor sums;           // out  [Q, E]
  RouterScore score = RouterScore::softmax;
  TokenRuns runs = {};
};
void sum_probabilities(Exec& ex, const SumProbabilities& args);

/// The factors of a load loss: the sum over runs of tokens of weight E sum_e f_e P_e. f_e = count / (top_k
/// counted_tokens) is the share of choices that went to an expert, and P_e = sum / tokens. An even load gives 1 times
/// weight. Source: Fedus et al. 2021, arXiv:2101.03961 section 2.2, with f divided by top_k. Hugging Face's
/// load_balancing_loss_func does not divide by top_k.
struct LoadLossFactors {
  Index top_k = 1;
  double counted_tokens = 1;  ///< tokens of a run in the counts
  double tokens = 1;          ///< tokens of a run in the sums
  double weight = 1;          ///< the coefficient, times the tokens that the loss stands for

  /// The factor on sum_e count_e sum_e.
  constexpr double of_products(Index experts) const {
    return weight * static_cast<double>(experts) / (static_cast<double>(top_k) * counted_tokens * tokens);
  }
};

/// loss += the load loss.
struct LoadLoss {
  Tensor counts;  // in   [Q, E] i64
  Tensor sums;    // in   [Q, E]
  Tensor loss;    // out, accumulated [1] f64
  LoadLossFactors factors;
};
void load_loss(Exec& ex, const LoadLoss& args);

/// d_probabilities = the gradient of the load loss with respect to the router's p, times the loss scale. Counts have no
/// gradient.
struct LoadLossBackward {
  Tensor counts;           // in   [Q, E] i64
  Tensor probabilities;    // in   [T, E]
  Tensor step_state;       // in   u8 [sizeof(StepState)]
  Tensor d_probabilities;  // out  [T, E]
  LoadLossFactors factors;
  RouterScore score = RouterScore::softmax;
  TokenRuns runs = {};
};
void load_loss_backward(Exec& ex, const LoadLossBackward& args);

/// loss += weight sum_t log(sum_e exp(logit))^2. Source: Zoph et al. 2022, arXiv:2202.08906, section 3.2.
struct ZLoss {
  Tensor logits;  // in   [T, E]
  Tensor loss;    // out, accumulated [1] f64
  double weight = 1;
};
void z_loss(Exec& ex, const ZLoss& args);

/// d_logits += 2 weight log(sum_e exp(logit)) softmax(logits), times the loss scale.
struct ZLossBackward {
  Tensor logits;      // in   [T, E]
  Tensor step_state;  // in   u8 [sizeof(StepState)]
  Tensor d_logits;    // out, accumulated [T, E]
  double weight = 1;
};
void z_loss_backward(Exec& ex, const ZLossBackward& args);

}  // namespace megalith::ops
