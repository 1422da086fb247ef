#pragma once
#include <cstddef>
#include <string_view>

namespace megalith::data {

/// Whether a sentence begins at `at`, 0 < at < text.size(). Before `at` there must be white space. There are two
/// cases:
/// - The white space holds a blank line.
/// - The text before the white space ends with `.`, `!` or `?`, perhaps followed by closing quotes or brackets. The
///   character at `at` is a capital, a digit, a quote or an opening bracket. The point does not end an abbreviation
///   (Mr., e.g., a single capital other than I).
/// `text` must be UTF-8; its last character may be cut. The function looks back to the beginning of the previous word
/// only. So a text that is cut where a sentence begins has the same sentences.
bool begins_sentence(std::string_view text, std::size_t at);

/// The first place p >= from, p > 0, where a sentence begins, else text.size().
std::size_t next_sentence(std::string_view text, std::size_t from);

/// Calls use(sentence) for each sentence that is not empty, without white space around it.
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
