#include "megalith/tokenizer/character_class.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tokenizer/unicode_properties.h"

namespace megalith::tokenizer {
namespace {

CharacterSet named_set(std::string_view name, bool is_negative) {
  constexpr std::string_view kNoCase[] = {
      "N",      "Nd",     "Nl",         "No",    "P",     "Pc",    "Pd",    "Ps",       "Pe",       "Pi",     "Pf",
      "Po",     "S",      "Sm",         "Sc",    "Sk",    "So",    "Z",     "Zs",       "Zl",       "Zp",     "Cc",
      "Cf",     "Co",     "Lm",         "Lo",    "Mc",    "Me",    "Han",   "Hiragana", "Katakana", "Hangul", "Thai",
      "Hebrew", "Arabic", "Devanagari", "digit", "space", "punct", "cntrl", "blank",    "xdigit",   "any"};
  const PropertyClass found = property_class(name);
  CharacterSet::Case in_case = CharacterSet::Case::changes;
  if (std::ranges::find(kNoCase, name) != std::end(kNoCase)) in_case = CharacterSet::Case::none;
  if (name == "L") in_case = CharacterSet::Case::letters;
  if (name == "word" || name == "Word") in_case = CharacterSet::Case::word;
  return {found.items, found.is_negative != is_negative, in_case};
}

/// Without case a class also matches the other cases of its characters, which may be several characters.
void check_without_case(const CharacterSet& set, bool in_negative, std::string_view shown) {
  const bool is_same = set.in_case == CharacterSet::Case::none && (in_negative || !set.is_negative);
  const bool is_word =
      (set.in_case == CharacterSet::Case::word || set.in_case == CharacterSet::Case::complement) && in_negative;
  const bool is_letters = set.in_case == CharacterSet::Case::letters && in_negative && !set.is_negative;
  if (!is_same && !is_word && !is_letters)
    refuse_pattern(str(shown, " within (?i)"), "without case it may match several characters; write it outside");
}

}  // namespace

CharacterSet ClassReader::escaped_set() {
  const char c = rest()[1];
  if (c == 'p' || c == 'P') return property();
  at_ += 2;
  const bool is_negative = c >= 'A' && c <= 'Z';
  switch (c | 0x20) {
    case 's':
      return {std::string(is_negative ? kNoWhiteSpace : kWhiteSpace), false,
              is_negative ? CharacterSet::Case::complement : CharacterSet::Case::none};
    case 'd':
      return {property_class("Nd").items, is_negative, CharacterSet::Case::none};
    case 'h':
      return {"0-9A-Fa-f", is_negative, CharacterSet::Case::none};
    default:
      return {word_items(), is_negative, CharacterSet::Case::word};
  }
}

CharacterSet ClassReader::property() {
  const std::size_t end = rest().find('}');
  if (!rest().substr(2).starts_with("{") || end == kNowhere)
    refuse_pattern(rest().substr(0, 3), "a property is written \\p{...}");
  const std::string_view shown = rest().substr(0, end + 1);
  std::string_view name = rest().substr(3, end - 3);
  bool is_negative = rest()[1] == 'P';
  if (name.starts_with("^")) {
    is_negative = !is_negative;
    name.remove_prefix(1);
  }
  const CharacterSet found = named_set(name, is_negative);
  if (found.items.empty())
    refuse_pattern(shown,
                   "properties are L, M, N, P, S, Z, C, their parts, Alphabetic, Uppercase, Lowercase and "
                   "scripts such as Han");
  at_ += end + 1;
  return found;
}

template <class AddSet>
void ClassReader::range_or_set(const Options& options, std::string& items, const AddSet& add_set) {
  const auto element = [&]() -> std::optional<Literal> {
    if (next_is("\\")) return escaped_character(Within::brackets);
    Literal literal = take_character();
    if (literal.code == '^' && items.empty()) literal.text = "\\^";
    return literal;
  };
  const std::optional<Literal> first = element();
  if (!first) {
    add_set(escaped_set());
    if (next_is("-") && !next_is("-]")) refuse_pattern("- after a class", "write \\- for a hyphen");
    return;
  }
  std::optional<Literal> last = first;
  const bool is_range = next_is("-") && !next_is("-]") && !next_is("-[") && !next_is("-&&");
  if (is_range) {
    take("-");
    if (at_end()) throw InputError("must close its brackets");
    last = element();
    if (!last) refuse_pattern("a range that ends with a class", "write \\- for a hyphen");
    if (last->code < first->code) refuse_pattern(str(first->text, '-', last->text), "its end is before its begin");
    if (next_is("-") && !next_is("-]")) refuse_pattern("- after a range", "write \\- for a hyphen");
  } else if (next_is("-[") || next_is("-&&")) {
    refuse_pattern("- before a class", "write \\- for a hyphen");
  }
  if (options.any_case) {
    bool is_several = last->code - first->code > 0x200;
    for (char32_t c = first->code; c <= last->code && !is_several; ++c) is_several = folds_to_several(c);
    if (is_several)
      refuse_pattern(str('[', first->text, '-', last->text, "] within (?i)"),
                     "without case it may match several characters");
  }
  items += first->text;  // a hyphen is the first or the last
  if (is_range) items += '-' + (last->text == "-" ? std::string("\\-") : last->text);
}

std::string ClassReader::char_class(const Options& options, int depth) {
  if (depth > kMaxDepth) refuse_pattern(str("more than ", kMaxDepth, " classes in each other"), "simplify it");
  const std::size_t begin = at_;
  take("[");
  const bool is_negative = take("^");
  if (next_is("]")) refuse_pattern("[]", "write \\] for a bracket");
  std::string items;
  std::vector<std::string> others, both;  // others: classes that brackets cannot hold; both: operands of &&
  const auto end_union = [&] {
    if (items.empty() && others.empty()) refuse_pattern("&& without a class on each side", "write one");
    std::string text = items.empty() ? std::string() : str('[', items, ']');
    for (const std::string& other : others) text += (text.empty() ? "" : "|") + other;
    both.push_back(others.size() + (items.empty() ? 0 : 1) > 1 ? str("(?:", text, ')') : text);
    items.clear();
    others.clear();
  };
  const auto add_set = [&](const CharacterSet& set) {
    if (options.any_case) check_without_case(set, is_negative, pattern_.substr(begin, at_ - begin));
    if (set.is_negative)
      others.push_back(str("[^", set.items, ']'));
    else
      items += set.items + (options.any_case && set.in_case == CharacterSet::Case::letters ? "\\x{345}" : "");
  };
  const auto no_case = [&](std::string_view what) {
    if (options.any_case) refuse_pattern(str(what, " within (?i)"), "write it outside: (?-i:[...])");
  };
  while (!next_is("]")) {
    if (at_end()) throw InputError("must close its brackets");
    if (next_is("[:")) {
      add_set(posix_set());
      if (next_is("-") && !next_is("-]")) refuse_pattern("- after a class", "write \\- for a hyphen");
    } else if (next_is("[")) {
      no_case("a class in a class");
      others.push_back(char_class(options, depth + 1));
      if (next_is("-") && !next_is("-]")) refuse_pattern("- after a class", "write \\- for a hyphen");
    } else if (take("&&")) {
      no_case("&&");
      end_union();
    } else {
      range_or_set(options, items, add_set);
    }
  }
  take("]");
  if (both.empty() && others.empty()) return str(is_negative ? "[^" : "[", items, ']');
  end_union();
  std::string text;
  for (std::size_t i = 0; i + 1 < both.size(); ++i) text += str("(?=", both[i], ')');
  text += both.back();
  return is_negative ? str("(?:(?!", text, ')', kAnyCharacter, ')') : str("(?:", text, ')');
}

CharacterSet ClassReader::posix_set() {
  const std::size_t end = rest().find(":]");
  constexpr std::string_view kNames[] = {"alnum", "alpha", "ascii", "blank", "cntrl", "digit",  "graph",
                                         "lower", "print", "punct", "space", "upper", "xdigit", "word"};
  std::string_view name = rest().substr(2, end == kNowhere ? 0 : end - 2);
  const bool is_negative = name.starts_with("^");
  if (is_negative) name.remove_prefix(1);
  if (end == kNowhere || std::ranges::find(kNames, name) == std::end(kNames))
    refuse_pattern(rest().substr(0, end == kNowhere ? 2 : end + 2), "POSIX's names are [:alpha:], [:digit:] and so on");
  at_ += end + 2;
  // \p{Punct} is P, but [:punct:] is POSIX's.
  if (name == "punct")
    return {property_class("P").items + property_class("S").items, is_negative, CharacterSet::Case::none};
  return named_set(name, is_negative);
}

}  // namespace megalith::tokenizer
