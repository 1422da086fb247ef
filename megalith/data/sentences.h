#pragma once
#include <cstddef>
#include <string_view>

namespace megalith::data {

/// Whether a sentence begins at `at`, 0 < at < text.size(). White space is in front of it. What it is behind ends with
/// `.`, `!` or `?` and what closes behind them (quotes, brackets), and a capital, a digit, a quote or an opening
/// bracket stands there; or it is behind a blank line. A point behind an abbreviation (Mr., e.g., a single capital but
/// I) ends no sentence. `text` is well-formed UTF-8, but for a character that it may be cut in at its end. It looks
/// back to the begin of the word in front, so a text cut where a sentence begins has the same sentences.
bool begins_sentence(std::string_view text, std::size_t at);

/// The first place p >= from, p > 0, where a sentence begins, else text.size().
std::size_t next_sentence(std::string_view text, std::size_t from);

/// Calls use(sentence) for each, without white space around it; empty ones are left out.
template <class Use>
void for_each_sentence(std::string_view text, const Use& use) {
  constexpr std::string_view kAround = " \t\n\v\f\r";
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = next_sentence(text, begin + 1);
    const std::string_view sentence = text.substr(begin, end - begin);
    begin = end;
    const std::size_t first = sentence.find_first_not_of(kAround);
    if (first != std::string_view::npos) use(sentence.substr(first, sentence.find_last_not_of(kAround) + 1 - first));
  }
}

}  // namespace megalith::data
