#pragma once
#include <span>
#include <vector>

#include "megalith/eval/passages.h"

namespace megalith::eval {

/// A window over a text of T tokens: it reads tokens [start, end - 1) and scores the targets [first_target, end).
struct Window {
  Index start = 0, first_target = 1, end = 2;
  Index targets() const { return end - first_target; }
  bool operator==(const Window&) const = default;
};

/// Windows of `size` inputs that advance by `stride`. The first one scores all its targets, every later one its last
/// `stride`. So each target 1 .. T-1 is scored once and, after the first window, with at least size - stride + 1 tokens
/// before it. T >= 2, 1 <= stride <= size. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 5.4; that the first
/// window scores all its targets is ours (docs/evaluation.md).
std::vector<Window> sliding_windows(Index tokens, Index size, Index stride);

/// Windows of `size` targets, none of which overlaps another one's. The last window has fewer; it is filled up with
/// the tokens before it. Source: EleutherAI/lm-evaluation-harness, lm_eval/utils.py, get_rolling_token_windows().
std::vector<Window> disjoint_windows(Index tokens, Index size);

/// The window's tokens as a passage.
Passage passage_of(std::span<const std::int32_t> ids, const Window& window);

}  // namespace megalith::eval
