#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tasks {

/// An answer as SQuAD's official scripts compare it: in lower case, without ASCII punctuation, without the words a, an
/// and the, single spaces between words and none around them. `text` is UTF-8.
///
/// Characters are classed as in Python 3: lower case is Unicode's full mapping, with U+03C2 for a final sigma; a word
/// of
/// `\b` is of letters and digits (categories L and N), so that marks end it; white space is that of str.split(). What
/// remains of a text without words is "".
std::string normalized_answer(std::string_view text);

/// The words of a normalized answer.
std::vector<std::string_view> words_of(std::string_view normalized);

}  // namespace megalith::tasks
