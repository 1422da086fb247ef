#pragma once
#include <string_view>

#include "megalith/runtime/exec.h"

namespace megalith::ops {

enum class RouterScore : std::uint8_t { softmax, sigmoid };
/// Whether a softmax goes over all experts before the best are chosen, or over the chosen ones. Sigmoids are the same
/// either way.
enum class ScoreOrder : std::uint8_t { before_top_k, after_top_k };
enum class NormalizeTopK : std::uint8_t { no, yes };

/// Experts are chosen from the group_top_k best groups only, of E / num_groups neighbouring experts each. Where the
/// score is a sigmoid or there is a bias, a group is ranked by the sum of its two best keys. Otherwise it is ranked by
/// its best key. Sources: DeepSeek-V3, arXiv:2412.19437 section 2.1.2 and its modeling_deepseek.py, noaux_tc; for the
/// best key DeepSeek-V2, arXiv:2405.04434 section 2.1.4, group_limited_greedy.
struct RouterRules {
  Index top_k = 1;
  RouterScore score = RouterScore::softmax;
  ScoreOrder order = ScoreOrder::before_top_k;
  NormalizeTopK normalize = NormalizeTopK::no;
  double scale = 1;
  Index num_groups = 1, group_top_k = 1;
};
inline constexpr Index kMaxRouterGroups = 64;
inline constexpr Index kMaxRouterExperts = 1024;

/// The run of consecutive tokens that a row belongs to: row r to run (first_row + r) / seq_len. seq_len 0: all to run
/// 0.
struct TokenRuns {
  Index seq_len = 0;
  Index first_row = 0;  ///< the first row's number in its microbatch

  constexpr Index of(Index row) const { return seq_len == 0 ? 0 : (first_row + row) / seq_len; }
};
/// Throws ShapeError naming `what` where `count` runs are too few for the rows.
void check_runs(const TokenRuns& runs, Index tokens, Index count, std::string_view what);

/// logits [T, E] f32 or f64, in place: logits[t, e] -= skew log(1 + e). So the first experts are chosen most, which
/// gives measurements an uneven load.
void skew_logits(Exec& ex, const Tensor& logits, double skew);

/// by_score: the experts with the best keys. given: those that the caller has written into `experts`.
enum class RouterChoice : std::uint8_t { by_score, given };

/// Chooses K of E experts for every token and weighs them.
///   p = softmax(logits) or sigmoid(logits) per row.
///   c_k = p of the k-th chosen expert, or with after_top_k the softmax over the chosen logits.
///   weights = scale c_k, or with normalize scale c_k / (sum_k c_k + 1e-20): DeepSeek-V3's guard.
/// Experts are chosen by a key. With a bias the key is p + bias. Without one it is p for sigmoid, and for softmax the
/// logit, whose order is that of p without its rounding. Among equal keys the lower expert number is the better one,
/// and likewise among groups. A NaN counts as the best, so that it is seen. Logits are f32 sums that nothing has
/// rounded (f64 for f64 runs).
struct RouterForward {
  Tensor logits;         // in   [T, E] f32 or f64
  Tensor bias;           // in   [E], as logits; undefined: none. It affects the choice, not the weights
  Tensor probabilities;  // out  [T, E] p
  Tensor experts;        // out  [T, K] i32, the best key first; in, where they are given
  Tensor weights;        // out  [T, K]
  Tensor counts;         // out  [Q, E] i64: how often each run of tokens has chosen an expert
  RouterRules rules;
  TokenRuns runs = {};
  RouterChoice choice = RouterChoice::by_score;
};
void router_forward(Exec& ex, const RouterForward& args);

/// d_logits = the gradient from d_weights through the weights of the chosen experts, plus that from d_probabilities.
/// d_probabilities is the gradient of losses on p (router_losses.h). The choice has no gradient.
struct RouterBackward {
  Tensor logits, probabilities, experts;  // in   as of forward
  Tensor d_weights;                       // in   [T, K]
  Tensor d_probabilities;                 // in   [T, E] or undefined
  Tensor d_logits;                        // out  [T, E]; may be d_probabilities
  RouterRules rules;
};
void router_backward(Exec& ex, const RouterBackward& args);

}  // namespace megalith::ops
