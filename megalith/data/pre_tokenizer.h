#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/data/split_pattern.h"

namespace megalith::data {

/// Cuts text into the pieces within which BPE merges: by one rule after another, each within the pieces of the one
/// before. GPT-2's are contractions, letters, digits or other marks, each with one leading space, and white space, of
/// which the last character stays with the word that follows.
/// The compiled patterns are shared by all threads; each brings its own Match.
class PreTokenizer {
 public:
  class Match {
   public:
    explicit Match(const PreTokenizer& owner);

   private:
    friend class PreTokenizer;
    std::vector<std::shared_ptr<void>> data_;
  };

  /// Throws InputError with the rule that a pattern breaks, alone.
  explicit PreTokenizer(const std::vector<SplitRule>& rules = {gpt2_split()});
  /// Of the library that knows which characters are letters and digits: "14.0.0".
  static std::string unicode_version();

  /// Calls use(piece) for each, in order. `text` is well-formed UTF-8. Throws InputError where a pattern tries too many
  /// ways to match.
  template <class Use>
  void pieces(std::string_view text, Match& match, const Use& use) const {
    cut(text, 0, match, use);
  }

  /// Whether `text` can be cut at p, 0 < p < size, without changing the pieces on either side.
  bool is_cut(std::string_view text, std::size_t p) const;
  /// The first such place at or behind `from`, else text.size().
  std::size_t next_cut(std::string_view text, std::size_t from) const;

 private:
  struct Stage {
    std::shared_ptr<void> code;
    bool keep_matches, keep_gaps;
  };
  /// Begin and end of the first match at or behind `begin`; the text's end twice where there is none.
  std::pair<std::size_t, std::size_t> find(std::size_t stage, std::string_view text, std::size_t begin,
                                           Match& match) const;

  template <class Use>
  void cut(std::string_view text, std::size_t stage, Match& match, const Use& use) const {
    if (stage == stages_.size()) return use(text);
    for (std::size_t begin = 0; begin < text.size();) {
      const auto [first, last] = find(stage, text, begin, match);
      if (first > begin && stages_[stage].keep_gaps) cut(text.substr(begin, first - begin), stage + 1, match, use);
      if (last > first && stages_[stage].keep_matches) cut(text.substr(first, last - first), stage + 1, match, use);
      begin = last;
    }
  }

  std::vector<Stage> stages_;
  CompiledRule::Cut cut_ = CompiledRule::Cut::white_space;
};

}  // namespace megalith::data
