#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/utf8.h"
#include "megalith/tokenizer/pre_tokenizer.h"

namespace megalith::tokenizer {

/// The pieces of PreTokenizer::pieces() for a text that comes in parts. It holds text that is not decided: where a
/// match could end elsewhere with more text, and what lookbehinds may read.
///
/// PCRE2 matches partially (PCRE2_PARTIAL_HARD). A match that reaches the end of the available text, also by a
/// lookahead, is not final; it is tried again with more text. Every other match is that of the whole text. Each rule
/// reads the pieces of the previous rule, which may be as long as the text, in parts too.
class PieceStream {
 public:
  /// The owner must outlive it, and its can_stream() must be true.
  explicit PieceStream(const PreTokenizer& owner) : owner_(owner), match_(owner) {
    for (const PreTokenizer::Stage& stage : owner.stages_) levels_.emplace_back(stage);
  }

  /// Calls use(piece) for each decided piece, in order. `part` must be UTF-8. `ends` marks the last part, with which
  /// all pieces are decided. The next part begins another text.
  template <class Use>
  void push(std::string_view part, bool ends, const Use& use) {
    push_to(0, part, ends, use);
  }
  /// The size of the text that is kept for the next parts.
  std::size_t held_bytes() const {
    std::size_t bytes = 0;
    for (const Level& level : levels_) bytes += level.text.size();
    return bytes;
  }

 private:
  /// One rule. Positions are bytes of its subject.
  struct Level {
    explicit Level(const PreTokenizer::Stage& stage) : joiner(stage) {}
    std::string text;  // the subject from `base` on
    std::size_t base = 0;
    std::size_t begin = 0;   // where the text begins that is in no match yet
    std::size_t from = 0;    // where the next match may begin
    std::size_t passed = 0;  // the open piece is passed on up to here
    std::size_t enough = 0;  // the size of the subject at which the open match is tried again
    bool has_match = false;
    bool has_gap = false;  // the joiner has the text at `begin`
    PreTokenizer::Joiner joiner;
  };

  template <class Use>
  void push_to(std::size_t stage, std::string_view part, bool ends, const Use& use) {
    Level& level = levels_[stage];
    if (ends && level.base == 0 && level.text.empty()) return owner_.cut(part, stage, match_, use);
    level.text += part;
    const auto emit = [&](std::size_t begin, std::size_t end) {
      if (level.passed > begin)
        push_to(stage + 1, piece(level, level.passed, end), true, use);
      else
        owner_.cut(piece(level, begin, end), stage + 1, match_, use);
    };
    match(stage, ends, emit);
    if (ends) {
      if (level.begin < size(level)) add_gap(level, size(level), emit);
      level.joiner.finish(emit);
      reset(stage);
      return;
    }
    const std::size_t open = std::max(level.passed, level.joiner.begin());
    if (stage + 1 < levels_.size() && level.joiner.end() > open) {
      push_to(stage + 1, piece(level, open, level.joiner.end()), false, use);
      level.passed = level.joiner.end();
    }
    forget(stage);
  }

  static std::size_t size(const Level& level) { return level.base + level.text.size(); }
  static std::string_view piece(const Level& level, std::size_t begin, std::size_t end) {
    return std::string_view(level.text).substr(begin - level.base, end - begin);
  }
  template <class Emit>
  static void add_gap(Level& level, std::size_t end, const Emit& emit) {
    if (level.has_gap)
      level.joiner.extend(end);
    else
      level.joiner.add(level.begin, end, false, emit);
    level.has_gap = true;
  }

  /// The loop of PreTokenizer::cut(), as far as the available text decides.
  template <class Emit>
  void match(std::size_t stage, bool ends, const Emit& emit) {
    Level& level = levels_[stage];
    if (!ends && size(level) < level.enough) return;
    level.enough = 0;
    const bool matches_empty = owner_.stages_[stage].matches_empty && ends;
    while (level.from < size(level) || (matches_empty && level.from == size(level) && level.from > 0)) {
      PreTokenizer::Found found = owner_.find(stage, level.text, level.from - level.base, match_, ends, level.base);
      found.first += level.base;
      found.last += level.base;
      if (!found.is_match) {
        if (ends) return;
        level.from = found.first;  // no match begins before it
        if (level.from > level.begin) add_gap(level, level.from, emit);
        // A match of n bytes is tried log n times.
        if (found.is_open) level.enough = size(level) + (size(level) - level.from) / 2;
        return;
      }
      if (found.first == found.last && level.has_match && found.last == level.begin) {
        level.from += level.from == size(level) ? 1 : utf8_front(piece(level, level.from, size(level))).length;
        continue;
      }
      if (found.first > level.begin) add_gap(level, found.first, emit);
      level.joiner.add(found.first, found.last, true, emit);
      level.begin = level.from = found.last;
      level.has_match = true;
      level.has_gap = false;
    }
  }

  /// Drops the text that is not needed any more.
  void forget(std::size_t stage) {
    Level& level = levels_[stage];
    std::size_t seen = std::min(level.from, size(level)) - level.base;
    for (std::size_t i = 0; i < owner_.stages_[stage].look_back && seen > 0; ++i) do
        --seen;
      while (seen > 0 && (static_cast<unsigned char>(level.text[seen]) & 0xC0) == 0x80);
    const std::size_t open = std::max(level.passed, level.joiner.begin()) - level.base;
    const std::size_t done = std::min(seen, open);
    if (done < level.text.size() - done) return;  // moving the rest would cost more than it frees
    level.text.erase(0, done);
    level.base += done;
  }

  void reset(std::size_t stage) {
    Level fresh(owner_.stages_[stage]);
    fresh.text = std::move(levels_[stage].text);  // keeps its memory
    fresh.text.clear();
    levels_[stage] = std::move(fresh);
  }

  const PreTokenizer& owner_;
  PreTokenizer::Match match_;
  std::vector<Level> levels_;
};

}  // namespace megalith::tokenizer
