#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::data {

/// One step of cutting a text into the pieces within which BPE merges, as a tokenizer.json describes it.
struct SplitRule {
  std::string pattern;       ///< a regular expression in the tokenizers library's syntax (Oniguruma's)
  bool keep_matches = true;  ///< false: what matches is left out
  bool keep_gaps = true;     ///< false: what is between matches is left out
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

/// The same matches in PCRE2's syntax: white space is spelt out, scripts are not script extensions. Throws InputError
/// with the rule alone ("must not hold \\b: ...") for what the two libraries read differently.
CompiledRule compile_rule(const SplitRule& rule);

}  // namespace megalith::data
