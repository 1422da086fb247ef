#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::eval {

/// Tokens whose probabilities are asked for: ln p(ids[i] | ids[0], ..., ids[i - 1]) for i from `first_target` on.
struct Passage {
  std::span<const std::int32_t> ids;  ///< two or more
  Index first_target = 1;             ///< in [1, ids.size())

  /// Tokens that the model reads: all but the last.
  Index inputs() const { return static_cast<Index>(ids.size()) - 1; }
  Index targets() const { return static_cast<Index>(ids.size()) - first_target; }
};

/// The shape of a forward pass, per sample: tokens that the layers read, and rows for which the head makes logits.
/// Passages are padded to one of few shapes, because every shape has a memory plan.
struct PassShape {
  Index tokens = 0, rows = 0;
  auto operator<=>(const PassShape&) const = default;
};

/// The shape of passages of so many inputs and targets. No more tokens than `max_tokens`, the model's seq_len.
PassShape pass_shape(Index inputs, Index targets, Index max_tokens);
inline PassShape shape_of(const Passage& passage, Index max_tokens) {
  return pass_shape(passage.inputs(), passage.targets(), max_tokens);
}

/// How many passages there are of each shape.
using PassCounts = std::map<PassShape, Index>;

/// Passages of one shape in a microbatch, at most `most`: as many in each as nearly fills the last one, too, so that
/// hardly any are padding. `dp` data-parallel ranks share them out.
Index balanced_batch(Index passages, Index most, int dp);

/// How many passages a round takes: microbatches of `batch` passages on each of `dp` data-parallel ranks.
struct RoundSize {
  Index batch = 1;
  int dp = 1, microbatches = 1;
  Index passages() const { return batch * dp * microbatches; }
};

/// Passages of one shape that go through the pipeline together. Passage k of the round is sample k % batch of
/// microbatch k / (batch * dp), on data-parallel rank k / batch % dp.
struct Round {
  PassShape shape;
  std::vector<Index> passages;  ///< their numbers
  int microbatches = 1;
};

/// Every passage in one round, the longest shapes first, so that a lack of memory shows at once; those of one shape in
/// their order.
std::vector<Round> make_rounds(std::span<const Passage> passages, Index max_tokens,
                               const std::function<RoundSize(const PassShape&)>& size_of);

}  // namespace megalith::eval
