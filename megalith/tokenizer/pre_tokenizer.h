#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/utf8.h"
#include "megalith/tokenizer/split_pattern.h"

namespace megalith::tokenizer {

/// Cuts text into the pieces within which BPE merges. Rules are applied one after another, each within the pieces of
/// the previous one. GPT-2's pieces are contractions, letters, digits or other marks, each with at most one leading
/// space, and white space. The last character of white space stays with the word that follows.
/// All threads share the compiled patterns; each thread has its own Match.
class PreTokenizer {
 public:
  class Match {
   public:
    explicit Match(const PreTokenizer& owner);

   private:
    friend class PreTokenizer;
    std::vector<std::shared_ptr<void>> data_;
    std::shared_ptr<void> context_;  // its limits
  };

  /// Throws InputError, whose text is the rule that a pattern breaks.
  explicit PreTokenizer(const std::vector<SplitRule>& rules = {gpt2_split()});
  /// The Unicode version of the library that classes letters and digits: "14.0.0".
  static std::string unicode_version();

  /// Calls use(piece) for each piece, in order. `text` must be UTF-8. Throws InputError if a pattern tries too many
  /// ways to match.
  template <class Use>
  void pieces(std::string_view text, Match& match, const Use& use) const {
    cut(text, 0, match, use);
  }

  /// Whether `text` can be cut at p, 0 < p < size, without changing the pieces on either side.
  bool is_cut(std::string_view text, std::size_t p) const;
  /// The first such place >= from, else text.size().
  std::size_t next_cut(std::string_view text, std::size_t from) const;
  /// Whether is_cut() is true anywhere.
  bool knows_cuts() const { return cut_ != CompiledRule::Cut::nowhere; }
  /// Whether PieceStream can cut a text that comes in parts.
  bool can_stream() const { return can_stream_; }

 private:
  friend class PieceStream;
  struct Stage {
    std::shared_ptr<void> code;
    SplitRule::Behavior behavior;
    bool invert;
    bool matches_empty;     // it may match no characters, at the end of the text too
    std::size_t look_back;  // a match may depend on so many characters before its beginning
  };
  struct Found {
    std::size_t first, last;
    bool is_match;
    bool is_open = false;  // the text that follows decides whether a match begins at `first`
  };
  /// The first match from `begin` on. `ends`: nothing follows the text. `before`: bytes of the subject before the text.
  Found find(std::size_t stage, std::string_view text, std::size_t begin, Match& match, bool ends = true,
             std::size_t before = 0) const;

  /// Joins matches and the text between them to pieces, by the behavior of the rule. They come in order.
  class Joiner {
   public:
    explicit Joiner(const Stage& stage) : behavior_(stage.behavior), invert_(stage.invert) {}
    /// Calls emit(begin, end) for the piece that ends here.
    template <class Emit>
    void add(std::size_t begin, std::size_t end, bool is_match, const Emit& emit) {
      is_match = is_match != invert_;
      bool joins = false;
      switch (behavior_) {
        case SplitRule::Behavior::isolated:
        case SplitRule::Behavior::removed:
          break;
        case SplitRule::Behavior::merged_with_previous:
          joins = is_match && !was_match_;
          break;
        case SplitRule::Behavior::merged_with_next:
          joins = !is_match && was_match_;
          break;
        case SplitRule::Behavior::contiguous:
          joins = is_match == was_match_;
          break;
      }
      if (!joins) {
        finish(emit);
        begin_ = begin;
      }
      was_match_ = is_match;
      extend(end);
    }
    /// Extends the last part.
    void extend(std::size_t end) {
      end_ = end;
      if (behavior_ == SplitRule::Behavior::removed && was_match_) begin_ = end;
    }
    template <class Emit>
    void finish(const Emit& emit) const {
      if (end_ > begin_) emit(begin_, end_);
    }
    /// The range of the open piece.
    std::size_t begin() const { return begin_; }
    std::size_t end() const { return end_; }

   private:
    SplitRule::Behavior behavior_;
    bool invert_;
    std::size_t begin_ = 0, end_ = 0;
    bool was_match_ = false;
  };

  template <class Use>
  void cut(std::string_view text, std::size_t stage, Match& match, const Use& use) const {
    if (stage == stages_.size()) return use(text);
    const auto use_piece = [&](std::size_t begin, std::size_t end) {
      cut(text.substr(begin, end - begin), stage + 1, match, use);
    };
    Joiner joiner(stages_[stage]);
    std::size_t begin = 0, from = 0;  // where the text begins that is in no piece yet; where the next match may begin
    bool has_match = false;
    while (from < text.size() || (stages_[stage].matches_empty && from == text.size() && from > 0)) {
      const Found found = find(stage, text, from, match);
      if (!found.is_match) break;
      if (found.first == found.last && has_match && found.last == begin) {
        // An empty match right after a match: the tokenizers library searches again one character later.
        from += from == text.size() ? 1 : utf8_front(text.substr(from)).length;
        continue;
      }
      if (found.first > begin) joiner.add(begin, found.first, false, use_piece);
      joiner.add(found.first, found.last, true, use_piece);
      begin = from = found.last;
      has_match = true;
    }
    if (begin < text.size()) joiner.add(begin, text.size(), false, use_piece);
    joiner.finish(use_piece);
  }

  std::vector<Stage> stages_;
  CompiledRule::Cut cut_ = CompiledRule::Cut::white_space;
  bool can_stream_ = true;
};

}  // namespace megalith::tokenizer
