#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

/// One step of cutting a text into the pieces within which BPE merges, as in tokenizer.json.
struct SplitRule {
  /// What a match becomes. The text between two matches is a piece.
  enum class Behavior : std::uint8_t {
    isolated,              ///< it is a piece
    removed,               ///< it is left out
    merged_with_previous,  ///< it ends the previous piece, unless that is a match
    merged_with_next,      ///< it begins the next piece, unless that is a match
    contiguous             ///< matches without text between them are one piece
  };
  std::string pattern;  ///< a regular expression in the tokenizers library's syntax (Oniguruma's)
  Behavior behavior = Behavior::isolated;
  bool invert = false;  ///< text between matches counts as a match, and matches as text between
};

/// GPT-2's pattern, as the tokenizers library writes it.
SplitRule gpt2_split();

/// A rule that PCRE2 can compile.
struct CompiledRule {
  enum class Cut : std::uint8_t {
    nowhere,      ///< no such place is known
    white_space,  ///< no piece has white space after another character
    blanks        ///< the same for space and tab
  };
  std::string pcre2;        ///< the same expression in PCRE2's syntax
  Cut cut = Cut::nowhere;   ///< where a text can be cut without changing its pieces
  bool covers_all = false;  ///< each character begins or continues a match
};

/// The same matches in PCRE2's syntax (pattern_translator.h). Throws InputError, whose text is the rule alone ("must
/// not hold \y: ..."), for a part that PCRE2 does not have.
CompiledRule compile_rule(const SplitRule& rule);

}  // namespace megalith::tokenizer
