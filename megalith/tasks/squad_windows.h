#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "megalith/tasks/pair_sample.h"
#include "megalith/tasks/squad.h"
#include "megalith/tasks/token_places.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::tasks {

struct SquadWindowConfig {
  Index seq_len = 512;
  Index max_query = 128;   ///< tokens of a question; the rest of it is left out
  Index doc_stride = 128;  ///< tokens by which the windows of a context advance
};

/// Context tokens [first, first + count) with their question: [CLS] question [SEP] tokens [SEP].
struct SquadWindow {
  Index question = 0;
  Index first = 0, count = 0;
};

/// First and last token of an answer, as places in the window's sequence; 0, 0 (the [CLS]): not in this window.
struct SpanLabel {
  Index start = 0, end = 0;
  bool operator==(const SpanLabel&) const = default;
};

/// The windows of all questions. A window is full, or reaches the end of the context. Windows of a question follow each
/// other, and cover its context.
/// Source: Devlin et al. 2019, arXiv:1810.04805, section 4.2; google-research/bert, run_squad.py.
class SquadWindows {
 public:
  /// Throws ConfigError unless max_query + doc_stride + 3 <= seq_len. Memory: 20 bytes per token of a context. The set
  /// must outlive it.
  SquadWindows(const SquadSet& set, const tokenizer::Tokenizer& tokenizer, const SquadWindowConfig& config);

  std::span<const SquadWindow> windows() const { return windows_; }
  /// The numbers of a question's windows: [first, last).
  TextRange windows_of(Index question) const { return ranges_[static_cast<std::size_t>(question)]; }
  const SquadSet& set() const { return set_; }
  const PlacedTokens& context_of(Index question) const;

  /// The sequence of a window, padded to seq_len.
  PairSample sample(Index window) const;
  /// The place in that sequence of context token number `first`.
  Index context_begin(Index window) const;
  /// The label for training: of the first answer whose place is known and that has a token. Nothing if there are
  /// answers, but no such one: the window is no example for training.
  std::optional<SpanLabel> label(Index window) const;
  /// Whether this window has the most context around a token of the context: the smaller number of tokens before and
  /// after it, plus 0.01 of the window's tokens. The earliest of equal ones.
  bool has_most_context(Index window, Index token) const;

 private:
  const SquadSet& set_;
  SquadWindowConfig config_;
  FrameTokens frame_;
  std::vector<PlacedTokens> contexts_;
  std::vector<std::vector<std::int32_t>> queries_;  // by question
  std::vector<SquadWindow> windows_;
  std::vector<TextRange> ranges_;  // of windows, by question
};

}  // namespace megalith::tasks
