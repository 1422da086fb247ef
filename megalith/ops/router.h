#pragma once
#include <string_view>

#include "megalith/runtime/exec.h"

namespace megalith::ops {

enum class RouterScore : std::uint8_t { softmax, sigmoid };
/// Whether a softmax goes over all experts, of which then the best are chosen, or over the chosen ones. Sigmoids are
/// the same either way.
enum class ScoreOrder : std::uint8_t { before_top_k, after_top_k };
enum class NormalizeTopK : std::uint8_t { no, yes };

/// A group of E / num_groups neighbouring experts is as good as the sum of its two best keys, where the score is a
/// sigmoid or there is a bias (DeepSeek-V3: arXiv:2412.19437 section 2.1.2 and its modeling_deepseek.py, noaux_tc),
/// else as its best key (DeepSeek-V2: arXiv:2405.04434 section 2.1.4, group_limited_greedy). Experts are chosen from
/// the group_top_k best groups only.
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

/// Which run of consecutive tokens a row belongs to: row r to run (first_row + r) / seq_len. seq_len 0: all to run 0.
struct TokenRuns {
  Index seq_len = 0;
  Index first_row = 0;  ///< of the tensor, among its microbatch's

  constexpr Index of(Index row) const { return seq_len == 0 ? 0 : (first_row + row) / seq_len; }
};
/// Throws ShapeError naming `what` where `count` runs are too few for the rows.
void check_runs(const TokenRuns& runs, Index tokens, Index count, std::string_view what);

/// By the keys of a token's experts, or already made: replayed decisions, or even ones.
enum class RouterChoice : std::uint8_t { by_score, given };

/// Chooses K of E experts for every token and weighs them.
///   p = softmax(logits) or sigmoid(logits) per row. The key by which experts are chosen is p + bias where there is a
///   bias, else for softmax the logit (whose order is that of p without its rounding) and for sigmoid p. Of equal keys
///   the lower expert number is the better one, of groups likewise; a NaN counts as the best, so that it is seen.
///   c_k = p of the k-th chosen expert, or with after_top_k the softmax over the chosen logits.
///   weights = scale c_k, or with normalize scale c_k / (sum_k c_k + 1e-20): DeepSeek-V3's guard.
/// Logits are f32 sums that nothing has rounded (f64 for f64 runs).
struct RouterForward {
  Tensor logits;         // in   [T, E] f32 or f64
  Tensor bias;           // in   [E], as logits; undefined: none. It chooses and does not weigh
  Tensor probabilities;  // out  [T, E] p
  Tensor experts;        // out  [T, K] i32, the best key first; in, where they are given
  Tensor weights;        // out  [T, K]
  Tensor counts;         // out  [Q, E] i64: how often each run of tokens has chosen an expert
  RouterRules rules;
  TokenRuns runs = {};
  RouterChoice choice = RouterChoice::by_score;
};
void router_forward(Exec& ex, const RouterForward& args);

/// dlogits = the way back of d_weights, through the weights of the chosen experts, and of d_probabilities, the gradient
/// of losses on p (router_losses.h). The choice has no gradient.
struct RouterBackward {
  Tensor logits, probabilities, experts;  // in   as of forward
  Tensor d_weights;                       // in   [T, K]
  Tensor d_probabilities;                 // in   [T, E] or undefined
  Tensor d_logits;                        // out  [T, E]; may be d_probabilities
  RouterRules rules;
};
void router_backward(Exec& ex, const RouterBackward& args);

}  // namespace megalith::ops
