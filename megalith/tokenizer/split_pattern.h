#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

/// One step of cutting a text into the pieces within which BPE merges, as a tokenizer.json describes it.
struct SplitRule {
  /// What becomes of a match. The text between two matches is a piece.
  enum class Behavior : std::uint8_t {
    isolated,              ///< it is a piece
    removed,               ///< it is left out
    merged_with_previous,  ///< it is the end of the piece before, unless that is a match
    merged_with_next,      ///< it is the begin of the piece after, unless that is a match
    contiguous             ///< matches without text between them are one piece
  };
  std::string pattern;  ///< a regular expression in the tokenizers library's syntax (Oniguruma's)
  Behavior behavior = Behavior::isolated;
  bool invert = false;  ///< what is between matches counts as a match, and the other way round
};

/// GPT-2's pattern, as the tokenizers library spells it.
SplitRule gpt2_split();

/// A rule that PCRE2 can compile.
struct CompiledRule {
  enum class Cut : std::uint8_t {
    nowhere,      ///< nothing is known about it
    white_space,  ///< no piece holds white space behind something else
    blanks        ///< the same of space and tab
  };
  std::string pcre2;        ///< the same expression in PCRE2's syntax
  Cut cut = Cut::nowhere;   ///< where a text can be cut without changing its pieces
  bool covers_all = false;  ///< each character begins or continues a match
};

/// The same matches in PCRE2's syntax (pattern_translator.h). Throws InputError with the rule alone ("must not hold \y:
/// ...") for what PCRE2 cannot say.
CompiledRule compile_rule(const SplitRule& rule);

}  // namespace megalith::tokenizer
