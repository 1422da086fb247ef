#include "megalith/tasks/squad_windows.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::tasks {
namespace {

constexpr Index kFrameTokens = 3;  // [CLS], [SEP], [SEP]

/// The tokens [first, last) that a part of the text touches; empty if it touches none.
TextRange tokens_of(const PlacedTokens& placed, const TextRange& part) {
  const auto& ranges = placed.ranges;
  const auto first = std::ranges::partition_point(ranges, [&](const TextRange& r) { return r.end <= part.begin; });
  const auto last = std::ranges::partition_point(ranges, [&](const TextRange& r) { return r.begin < part.end; });
  return {first - ranges.begin(), std::max(first, last) - ranges.begin()};
}

}  // namespace

SquadWindows::SquadWindows(const SquadSet& set, const tokenizer::Tokenizer& tokenizer, const SquadWindowConfig& config)
    : set_(set), config_(config), frame_(frame_tokens(tokenizer)) {
  if (config.max_query < 1 || config.doc_stride < 1 ||
      config.max_query + config.doc_stride + kFrameTokens > config.seq_len)
    throw ConfigError(str("task.max_query, task.doc_stride = ", config.max_query, ", ", config.doc_stride,
                          ": must be 1 or more, and with ", kFrameTokens,
                          " tokens at most model.seq_len = ", config.seq_len, " together"));
  for (const std::string& context : set.contexts) contexts_.push_back(place_tokens(tokenizer, context));
  for (std::size_t q = 0; q < set.questions.size(); ++q) {
    std::vector<std::int32_t>& query = queries_.emplace_back(tokenizer.encode(set.questions[q].text));
    query.resize(std::min(query.size(), static_cast<std::size_t>(config.max_query)));
    const Index tokens = std::ssize(contexts_[static_cast<std::size_t>(set.questions[q].context)].ids);
    const Index room = config.seq_len - kFrameTokens - std::ssize(query);
    const Index begin = std::ssize(windows_);
    for (Index first = 0;; first += config.doc_stride) {
      const Index count = std::min(room, tokens - first);
      windows_.push_back({.question = static_cast<Index>(q), .first = first, .count = count});
      if (first + count == tokens) break;
    }
    ranges_.push_back({begin, std::ssize(windows_)});
  }
}

const PlacedTokens& SquadWindows::context_of(Index question) const {
  return contexts_[static_cast<std::size_t>(set_.questions[static_cast<std::size_t>(question)].context)];
}

PairSample SquadWindows::sample(Index window) const {
  const SquadWindow& w = windows_[static_cast<std::size_t>(window)];
  const std::span<const std::int32_t> context(context_of(w.question).ids);
  return make_pair_sample(queries_[static_cast<std::size_t>(w.question)],
                          context.subspan(static_cast<std::size_t>(w.first), static_cast<std::size_t>(w.count)), frame_,
                          config_.seq_len, Shortened::first);
}

Index SquadWindows::context_begin(Index window) const {
  const Index question = windows_[static_cast<std::size_t>(window)].question;
  return std::ssize(queries_[static_cast<std::size_t>(question)]) + 2;
}

std::optional<SpanLabel> SquadWindows::label(Index window) const {
  const SquadWindow& w = windows_[static_cast<std::size_t>(window)];
  const auto& answers = set_.questions[static_cast<std::size_t>(w.question)].answers;
  if (answers.empty()) return SpanLabel();
  const auto answer = std::ranges::find_if(answers, [&](const SquadAnswer& of) {
    return !of.is_ambiguous && tokens_of(context_of(w.question), of.range).size() > 0;
  });
  if (answer == answers.end()) return std::nullopt;
  const TextRange tokens = tokens_of(context_of(w.question), answer->range);
  if (tokens.begin < w.first || tokens.end > w.first + w.count) return SpanLabel();
  const Index shift = context_begin(window) - w.first;
  return SpanLabel{.start = tokens.begin + shift, .end = tokens.end - 1 + shift};
}

bool SquadWindows::has_most_context(Index window, Index token) const {
  const TextRange others = windows_of(windows_[static_cast<std::size_t>(window)].question);
  double most = -1;
  Index best = window;
  for (Index i = others.begin; i < others.end; ++i) {
    const SquadWindow& w = windows_[static_cast<std::size_t>(i)];
    if (token < w.first || token >= w.first + w.count) continue;
    const Index around = std::min(token - w.first, w.first + w.count - 1 - token);
    const double score = static_cast<double>(around) + 0.01 * static_cast<double>(w.count);
    if (score <= most) continue;
    most = score;
    best = i;
  }
  return best == window;
}

}  // namespace megalith::tasks
