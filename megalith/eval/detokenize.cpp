#include "megalith/eval/detokenize.h"

#include <algorithm>
#include <array>
#include <utility>

namespace megalith::eval {
namespace {

constexpr bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

void replace(std::string& text, std::string_view from, std::string_view to) {
  std::size_t found = text.find(from);
  if (found == std::string::npos) return;
  std::string result;
  result.reserve(text.size());
  std::size_t begin = 0;
  for (; found != std::string::npos; found = text.find(from, begin)) {
    result.append(text, begin, found - begin).append(to);
    begin = found + from.size();
  }
  text = std::move(result.append(text, begin));
}

/// Regular expression OPEN\s*([^CLOSE]*?)\s*CLOSE, replaced by OPEN, the group and CLOSE.
void trim_within(std::string& text, char open, char close) {
  std::string result;
  result.reserve(text.size());
  std::size_t begin = 0;
  for (;;) {
    const std::size_t at = text.find(open, begin);
    const std::size_t end = at == std::string::npos ? at : text.find(close, at + 1);
    if (end == std::string::npos) break;
    result.append(text, begin, at - begin);
    result += open;
    result += strip(std::string_view(text).substr(at + 1, end - at - 1));
    result += close;
    begin = end + 1;
  }
  text = std::move(result.append(text, begin));
}

/// Regular expression "/' [0-9]/", which the scripts replace by their own replacement's text.
void replace_slashes(std::string& text) {
  for (std::size_t at = 0; (at = text.find("/' ", at)) != std::string::npos;) {
    const bool matches = at + 4 < text.size() && is_digit(text[at + 3]) && text[at + 4] == '/';
    if (matches) text.replace(at, 5, "/'[0-9]/");
    at += matches ? 8 : 1;
  }
}

/// What stands in front of a line's first character, and after its last.
constexpr char kLineEnd = '\n';

/// How WikiText writes a character of plain text between `before` and `after`; runs of spaces are made one later.
void append_token(std::string& to, char before, char c, char after) {
  constexpr std::string_view kMarks = ":;!?,.";
  const bool after_word = !is_space(before), before_word = !is_space(after);
  const bool in_number = is_digit(before) && is_digit(after);
  const bool ends_word = !before_word || after == '"' || after == ')';
  const auto spaced = [&] { to.append({' ', c, ' '}); };
  if ((c == '-' && after_word && before_word) || ((c == ',' || c == '.') && in_number)) {
    to.append({' ', '@', c, '@', ' '});
    // NOLINTNEXTLINE(bugprone-branch-clone): a branch for each rule, in the order of the rules
  } else if (c == '\n' || c == '"' || (kMarks.find(c) != std::string_view::npos && ends_word)) {
    spaced();
  } else if (c == '(' || c == '[' || c == '{' || (c == '=' && after == '=')) {
    to.append({c, ' '});
  } else if (c == ')' || c == ']' || c == '}') {
    spaced();
  } else if (c == '\'' && after_word && (is_letter(after) || !before_word)) {
    to.append({' ', c});
  } else {
    to += c;
  }
}

/// A text as characters other than white space and '@', each with the run of those in front of it.
class Gaps {
 public:
  explicit Gaps(std::string_view text) : rest_(text) {}
  /// The next run and character; false at the end, where `gap` is the last run.
  bool next(std::string_view& gap, char& character) {
    std::size_t size = 0;
    while (size < rest_.size() && (is_space(rest_[size]) || rest_[size] == '@')) ++size;
    gap = rest_.substr(0, size);
    if (size == rest_.size()) {
      rest_ = {};
      return false;
    }
    character = rest_[size];
    rest_.remove_prefix(size + 1);
    return true;
  }

 private:
  std::string_view rest_;
};

}  // namespace

std::string_view strip(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::string detokenize_wikitext(std::string_view text) {
  using Pair = std::pair<std::string_view, std::string_view>;
  std::string result(text);
  replace(result, "s '", "s'");
  replace_slashes(result);
  for (const auto& [from, to] : {Pair{" @-@ ", "-"},
                                 {" @,@ ", ","},
                                 {" @.@ ", "."},
                                 {" : ", ": "},
                                 {" ; ", "; "},
                                 {" . ", ". "},
                                 {" ! ", "! "},
                                 {" ? ", "? "},
                                 {" , ", ", "}})
    replace(result, from, to);
  for (const auto& [open, close] : {std::pair{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}})
    trim_within(result, open, close);
  for (const auto& [from, to] : {Pair{"= = = =", "===="},
                                 {"= = =", "==="},
                                 {"= =", "=="},
                                 {" \u00b0 ", "\u00b0"},
                                 {" \n", "\n"},
                                 {"\n ", "\n"},
                                 {" N ", " 1 "},
                                 {" 's", "'s"}})
    replace(result, from, to);
  return result;
}

std::string retokenize_wikitext(std::string_view text) {
  constexpr std::string_view kDegree = "\u00b0";
  std::string spaced;
  spaced.reserve(text.size() + text.size() / 4);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, kDegree.size()) == kDegree) {
      spaced.append(" ").append(kDegree).append(" ");
      i += kDegree.size() - 1;
      continue;
    }
    append_token(spaced, i == 0 ? kLineEnd : text[i - 1], text[i], i + 1 == text.size() ? kLineEnd : text[i + 1]);
  }
  const auto end = std::unique(spaced.begin(), spaced.end(), [](char a, char b) { return a == ' ' && b == ' '; });
  spaced.erase(end, spaced.end());
  return std::string(strip(spaced));
}

Index count_differences(std::string_view a, std::string_view b) {
  Gaps in_a(a), in_b(b);
  Index count = 0;
  for (;;) {
    std::string_view gap_a, gap_b;
    char character_a = 0, character_b = 0;
    const bool more_a = in_a.next(gap_a, character_a), more_b = in_b.next(gap_b, character_b);
    if (!more_a && !more_b) return count + (gap_a == gap_b ? 0 : 1);
    count += gap_a == gap_b && character_a == character_b && more_a == more_b ? 0 : 1;
  }
}

Index count_words(std::string_view stripped) { return std::ranges::count(stripped, ' ') + 1; }

std::vector<std::string_view> wikitext_documents(std::string_view text) {
  std::vector<std::string_view> documents;
  std::size_t begin = 0;
  for (std::size_t line_begin = 0; line_begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', line_begin), text.size());
    std::string line(text.substr(line_begin, end - line_begin));
    replace(line, "= = =", "===");
    replace(line, "= =", "==");
    const std::string_view heading = strip(line);
    if (heading.starts_with("= ") && heading.ends_with(" =") && line_begin > begin) {
      const std::string_view document = text.substr(begin, line_begin - 1 - begin);
      if (!strip(document).empty()) documents.push_back(document);
      begin = line_begin;
    }
    line_begin = end + 1;
  }
  documents.push_back(text.substr(begin));
  return documents;
}

Index count_split_words(std::string_view text) {
  Index runs = 0;
  for (std::size_t i = 0; i < text.size(); ++i) runs += is_space(text[i]) && (i == 0 || !is_space(text[i - 1])) ? 1 : 0;
  return runs + 1;
}

}  // namespace megalith::eval
