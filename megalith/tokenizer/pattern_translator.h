#pragma once
#include <string>
#include <string_view>

namespace megalith::tokenizer {

/// A regular expression of the tokenizers library (Oniguruma's syntax for Ruby) in PCRE2's, with the same matches when
/// PCRE2 compiles it for UTF-8, with \n as the end of a line. Throws InputError with the rule alone ("must not hold
/// \\y:
/// ...") for what PCRE2 cannot say, or reads otherwise.
std::string pcre2_pattern(std::string_view pattern);

}  // namespace megalith::tokenizer
