#pragma once
#include <string>
#include <string_view>

namespace megalith::tokenizer {

/// Translates a regular expression of the tokenizers library (Oniguruma's syntax for Ruby) to PCRE2's. It has the same
/// matches if PCRE2 compiles it for UTF-8, with \n as the end of a line. Throws InputError, whose text is the rule
/// alone ("must not hold \y: ..."), for a part that PCRE2 does not have or reads in another way.
std::string pcre2_pattern(std::string_view pattern);

}  // namespace megalith::tokenizer
