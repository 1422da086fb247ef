#include "megalith/tokenizer/pattern_translator.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/tokenizer/character_class.h"
#include "megalith/tokenizer/unicode_properties.h"

// Each rule here was tried with tokenizers 0.23.3, whose Oniguruma is 6.9.10. Where the two libraries differ:
// - ^ and $ are the begin and end of a line; (?m) lets the point match a line end, which is (?s) in PCRE2.
// - {n,m}+ and {n}? repeat what is repeated; {2,1} is {1,2} and possessive; {,n} is {0,n}.
// - (?i) in the middle applies to the end of its group, branches included: a(?i)b|c is a(?i:b|c).
// - Classes may hold classes and intersections. One that PCRE2 does not have becomes lookaheads before one character.
// - Letters without a meaning of their own may be escaped.
// - Without case, st is also U+FB06 (that s(?:t) is, too, is left out), and a class of upper-case letters also has the
// lower-case ones.
namespace megalith::tokenizer {
namespace {

constexpr std::string_view kLineEnd = R"((?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}]))";
/// ^ and $. After a last line end PCRE2's own ^ does not wait for more text (PCRE2_PARTIAL_HARD); \z does.
constexpr std::string_view kLineBegin = R"((?:\A|(?<=\n)(?!\z)))";
constexpr std::string_view kLineClose = "(?m:$)";
/// \w outside brackets: Oniguruma takes Latin-1's characters from Latin-1's table.
constexpr std::string_view kLatinWords = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

/// Strings that also match one character without case. Source: CaseFolding.txt, status F.
struct Folded {
  std::u32string_view letters;
  const char* character;
};
constexpr Folded kFolded[] = {{U"ffi", R"(\x{FB03})"},         {U"ffl", R"(\x{FB04})"}, {U"ff", R"(\x{FB00})"},
                              {U"fi", R"(\x{FB01})"},          {U"fl", R"(\x{FB02})"},  {U"ss", R"([\x{DF}\x{1E9E}])"},
                              {U"st", R"([\x{FB05}\x{FB06}])"}};

class Translator : ClassReader {
 public:
  Translator(std::string_view pattern, bool has_names) : ClassReader(pattern), has_names_(has_names) {}

  std::string translate() {
    std::string out = branches({}, 0);
    if (at_ < pattern_.size()) refuse_pattern(")", "no ( is open");
    if (!has_names_ && !names_.empty() && num_groups_ > static_cast<int>(names_.size()))
      return Translator(pattern_, true).translate();  // beside names, ( ) does not count as a group
    return out;
  }

 private:
  /// The translation of one branch so far.
  struct Branch {
    std::string out;
    std::size_t atom = kNowhere;  // where the part begins that a quantifier would repeat
    bool is_repeated = false;
    std::vector<Literal> literals;  // not in `out` yet
  };
  void flush(Branch& b, const Options& options) const {
    for (std::size_t i = 0; i < b.literals.size();) {
      const auto folded = !options.any_case ? std::end(kFolded) : std::ranges::find_if(kFolded, [&](const Folded& f) {
        if (b.literals.size() - i < f.letters.size()) return false;
        for (std::size_t k = 0; k < f.letters.size(); ++k)
          if (b.literals[i + k].code != f.letters[k] && (b.literals[i + k].code | 0x20) != f.letters[k]) return false;
        return true;
      });
      const std::size_t count = folded == std::end(kFolded) ? 1 : folded->letters.size();
      if (count > 1) b.out += "(?:";
      for (std::size_t k = 0; k < count; ++k) b.out += b.literals[i + k].text;
      if (count > 1) b.out += str('|', folded->character, ')');
      i += count;
    }
    b.literals.clear();
  }
  void add_atom(Branch& b, const Options& options, std::string_view text) const {
    flush(b, options);
    b.atom = b.out.size();
    b.is_repeated = false;
    b.out += text;
  }
  /// Adds a part that matches no characters, so that a quantifier has nothing to repeat.
  void add_zero_width(Branch& b, const Options& options, std::string_view text) const {
    flush(b, options);
    b.atom = kNowhere;
    b.out += text;
  }
  void add_literal(Branch& b, const Options& options, Literal literal) const {
    if (options.any_case && folds_to_several(literal.code))
      refuse_pattern(str(literal.text, " within (?i)"), "without case it may match several characters");
    b.literals.push_back(std::move(literal));
  }

  /// Translates branches up to the ) of the group or the end of the pattern. The ) is not read.
  std::string branches(Options options, int depth) {
    if (depth > kMaxDepth) refuse_pattern(str("more than ", kMaxDepth, " groups in each other"), "simplify it");
    Branch b;
    std::string closing;  // closes options that began in the middle
    while (!at_end() && !next_is(")")) {
      const char c = rest()[0];
      if (options.extended && (c == ' ' || (c >= '\t' && c <= '\r'))) {
        ++at_;
      } else if (options.extended && c == '#') {
        at_ = std::min(pattern_.find('\n', at_), pattern_.size());
      } else if (c == '|') {
        add_zero_width(b, options, "|");
        ++at_;
      } else if (c == '(') {
        group(b, options, closing, depth);
      } else if (c == '[') {
        add_atom(b, options, char_class(options, depth));
      } else if (c == '\\') {
        escape(b, options);
      } else if (c == '.') {
        ++at_;
        add_atom(b, options, options.point_is_all ? kAnyCharacter : ".");
      } else if (c == '^' || c == '$') {
        ++at_;
        add_zero_width(b, options, c == '^' ? kLineBegin : kLineClose);
      } else if (!quantifier(b, options)) {
        Literal literal = take_character();
        if (c == '{' || c == '}' || c == ']') literal.text.insert(0, 1, '\\');
        add_literal(b, options, std::move(literal));
      }
    }
    flush(b, options);
    return b.out + closing;
  }

  /// * + ? {n} {n,} {,n} {n,m}, each perhaps with ? or +. False if there is none.
  bool quantifier(Branch& b, const Options& options) {
    std::string text;
    bool is_exact = false, is_interval = false, is_possessive = false;
    if (next_is("*") || next_is("+") || next_is("?")) {
      text = rest()[0];
    } else if (next_is("{")) {
      std::size_t i = at_ + 1;
      const auto number = [&] {
        const std::size_t begin = i;
        while (i < pattern_.size() && is_digit(pattern_[i])) ++i;
        return pattern_.substr(begin, i - begin);
      };
      std::string_view low = number(), high = low;
      const bool has_comma = i < pattern_.size() && pattern_[i] == ',';
      if (has_comma) {
        ++i;
        high = number();
      }
      if (i == pattern_.size() || pattern_[i] != '}' || (low.empty() && high.empty())) return false;
      if (low.size() > 5 || high.size() > 5) refuse_pattern(pattern_.substr(at_, i + 1 - at_), "it repeats too often");
      is_exact = !has_comma;
      is_interval = true;
      if (has_comma && !low.empty() && !high.empty() && std::stoi(std::string(low)) > std::stoi(std::string(high))) {
        std::swap(low, high);
        is_possessive = true;
      }
      text = is_exact ? str('{', low, '}') : str('{', low.empty() ? "0" : low, ',', high, '}');
      at_ = i;
    } else {
      return false;
    }
    ++at_;
    if (!b.literals.empty()) {
      Literal last = std::move(b.literals.back());
      b.literals.pop_back();
      add_atom(b, options, last.text);
    }
    if (b.atom == kNowhere) refuse_pattern(text, "nothing before it can be repeated");
    if (b.is_repeated) {
      b.out.insert(b.atom, "(?:");
      b.out += ')';
    }
    b.out += text;
    if (is_possessive)
      b.out += '+';
    else if (!is_exact && take("?"))
      b.out += '?';
    else if (!is_interval && take("+"))
      b.out += '+';
    b.is_repeated = true;
    return true;
  }

  void close_group(std::string_view opening) {
    if (!take(")")) refuse_pattern(opening, "no ) closes it");
  }

  void group(Branch& b, Options& options, std::string& closing, int depth) {
    constexpr std::array<std::string_view, 4> kLook = {"(?=", "(?!", "(?<=", "(?<!"};
    for (const std::string_view look : kLook) {
      if (!take(look)) continue;
      const std::string inner = branches(options, depth + 1);
      close_group(look);
      return add_zero_width(b, options, str(look, inner, ')'));
    }
    if (take("(?#")) {
      while (!at_end() && !next_is(")")) at_ += next_is("\\") && rest().size() > 1 ? 2 : 1;
      return close_group("(?#");
    }
    std::string opening;
    if (take("(?:")) {
      opening = "(?:";
    } else if (take("(?>")) {
      opening = "(?>";
    } else if (next_is("(?<") || next_is("(?'")) {
      const char end = next_is("(?<") ? '>' : '\'';
      at_ += 3;
      const std::string name = group_name(end);
      if (!names_.emplace(name, ++num_groups_).second) refuse_pattern(name, "two groups have this name");
      opening = "(";
    } else if (next_is("(?(")) {
      return condition(b, options, depth);
    } else if (next_is("(?")) {
      return option_group(b, options, closing, depth);
    } else {
      take("(");
      if (next_is("*")) refuse_pattern("(*", "nothing before it can be repeated");
      if (!has_names_) ++num_groups_;
      opening = has_names_ ? "(?:" : "(";
    }
    const std::string inner = branches(options, depth + 1);
    close_group(opening);
    add_atom(b, options, str(opening, inner, ')'));
  }

  std::string group_name(char end) {
    const std::size_t size = rest().find(end);
    const std::string name(rest().substr(0, size));
    const auto is_word = [](char c) { return is_letter(c) || is_digit(c) || c == '_'; };
    if (size == kNowhere || name.empty() || is_digit(name[0]) || !std::ranges::all_of(name, is_word))
      refuse_pattern(str("the name ", name), "names are letters, digits and _");
    at_ += size + 1;
    return name;
  }

  /// (?(1)then|else), (?(<name>)then|else).
  void condition(Branch& b, const Options& options, int depth) {
    const std::size_t begin = at_;
    at_ += 3;
    const std::size_t size = std::min(rest().find(')'), rest().size());
    const std::string_view asked = rest().substr(0, size);
    const int number = group_number(asked.size() > 2 && asked[0] == '<' ? asked.substr(1, size - 2) : asked);
    if (number == 0 || size == rest().size())
      refuse_pattern(pattern_.substr(begin, size + 4), "a condition is a group before it, (?(1) or (?(<name>)");
    at_ += size + 1;
    const std::string inner = branches(options, depth + 1);
    close_group("(?(");
    add_atom(b, options, str("(?(", number, ')', inner, ')'));
  }

  /// The number of an earlier group, by its name or number; 0: there is none.
  int group_number(std::string_view name) const {
    if (const auto found = names_.find(std::string(name)); found != names_.end()) return found->second;
    if (name.empty() || name.size() > 3 || !std::ranges::all_of(name, is_digit) || !names_.empty() || has_names_)
      return 0;
    const int number = std::stoi(std::string(name));
    return number <= num_groups_ ? number : 0;
  }

  /// (?i) to the end of the group around it, (?i:...).
  void option_group(Branch& b, Options& options, std::string& closing, int depth) {
    const std::size_t begin = at_;
    at_ += 2;
    Options inside = options;
    bool is_on = true;
    for (; !at_end() && !next_is(")") && !next_is(":"); ++at_) {
      const char c = rest()[0];
      if (c == '-' && is_on)
        is_on = false;
      else if (c == 'i')
        inside.any_case = is_on;
      else if (c == 'x')
        inside.extended = is_on;
      else if (c == 'm')
        inside.point_is_all = is_on;
      else
        refuse_pattern(pattern_.substr(begin, std::min<std::size_t>(4, pattern_.size() - begin)),
                       "groups are ( (?: (?> (?= (?! (?<= (?<! (?<name> (?# and (?imx-imx: with or without :");
    }
    const std::string opening = inside.any_case == options.any_case ? "(?:" : inside.any_case ? "(?i:" : "(?-i:";
    if (take(":")) {
      const std::string inner = branches(inside, depth + 1);
      close_group(pattern_.substr(begin, 3));
      return add_atom(b, options, str(opening, inner, ')'));
    }
    close_group(pattern_.substr(begin, 3));
    add_zero_width(b, options, opening);
    closing += ')';
    options = inside;
  }

  /// An escape that is no character, outside brackets.
  void escape(Branch& b, const Options& options) {
    if (std::optional<Literal> literal = escaped_character(Within::pattern))
      return add_literal(b, options, std::move(*literal));
    const char c = rest()[1];
    if (is_digit(c)) return numbered_reference(b, options);
    if (c == 'k') return named_reference(b, options);
    if (c == 'S') {
      at_ += 2;
      return add_atom(b, options, str("[^", kWhiteSpace, ']'));
    }
    if (c == 'p' || c == 'P' || std::string_view("sdDwWhH").find(c) != kNowhere) {
      const CharacterSet set = escaped_set();
      const bool has_latin = set.in_case == CharacterSet::Case::word;
      const std::string text = str(set.is_negative ? "[^" : "[", set.items, has_latin ? kLatinWords : "", ']');
      // Without case it is the same set.
      return add_atom(b, options,
                      options.any_case && set.in_case != CharacterSet::Case::none ? str("(?-i:", text, ')') : text);
    }
    const std::string word = str('[', word_items(), kLatinWords, ']');
    switch (c) {
      case 'b':
        add_zero_width(b, options, str("(?-i:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))"));
        break;
      case 'B':
        add_zero_width(b, options, str("(?-i:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))"));
        break;
      case 'A':
      case 'z':
      case 'Z':
      case 'G':
      case 'K':
        add_zero_width(b, options, rest().substr(0, 2));
        break;
      case 'R':
        add_atom(b, options, kLineEnd);
        break;
      case 'N':
        add_atom(b, options, "[^\\n]");
        break;
      case 'O':
        add_atom(b, options, kAnyCharacter);
        break;
      case 'X':
      case 'y':
      case 'Y':
        refuse_pattern(rest().substr(0, 2), "PCRE2 does not cut text into the same clusters of characters");
      default:
        refuse_pattern(rest().substr(0, 2), "PCRE2 reads calls of groups otherwise");
    }
    at_ += 2;
  }

  void numbered_reference(Branch& b, const Options& options) {
    std::size_t size = 1;
    while (size < 4 && size < rest().size() && is_digit(rest()[size])) ++size;
    const std::string_view digits = rest().substr(1, size - 1);
    const int number = std::stoi(std::string(digits));
    if (!names_.empty() || has_names_) refuse_pattern(rest().substr(0, size), "beside named groups write \\k<name>");
    if (number > 9 && number > num_groups_ && is_octal(digits[0])) return add_literal(b, options, octal_character());
    if (number > num_groups_) refuse_pattern(rest().substr(0, size), "no group before it has this number");
    at_ += size;
    add_atom(b, options, str("\\g{", number, '}'));
  }

  void named_reference(Branch& b, const Options& options) {
    const char end = rest().substr(2).starts_with("<") ? '>' : '\'';
    if (!rest().substr(2).starts_with("<") && !rest().substr(2).starts_with("'"))
      refuse_pattern("\\k", "a reference is written \\k<name>");
    at_ += 3;
    const std::size_t size = std::min(rest().find(end), rest().size());
    const std::string name(rest().substr(0, size));
    if (size == rest().size()) refuse_pattern(str("\\k<", name), "no > closes it");
    const int number = group_number(name);
    if (number == 0) refuse_pattern(str("\\k<", name, '>'), "no group before it has this name");
    at_ += size + 1;
    add_atom(b, options, str("\\g{", number, '}'));
  }

  bool has_names_;
  int num_groups_ = 0;
  std::map<std::string, int> names_;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern) {
  if (!is_utf8(pattern)) throw InputError("must be UTF-8");
  return Translator(pattern, false).translate();
}

}  // namespace megalith::tokenizer
