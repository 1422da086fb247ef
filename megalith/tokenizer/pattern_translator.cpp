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
#include "megalith/tokenizer/unicode_properties.h"
#include "megalith/tokenizer/unicode_text.h"

// One class reads the whole syntax: its state is the place in the pattern, so that a split into files would share it.
// Each rule here was tried with tokenizers 0.23.3, whose Oniguruma is 6.9.10. Where the two libraries differ:
// - ^ and $ are the begin and end of a line; (?m) lets the point match a line end, which is (?s) in PCRE2.
// - {n,m}+ and {n}? repeat what is repeated; {2,1} is {1,2} and possessive; {,n} is {0,n}.
// - (?i) in the middle holds to the end of its group, and its branches: a(?i)b|c is a(?i:b|c).
// - Classes may hold classes and intersections. One that PCRE2 cannot say becomes lookaheads before one character.
// - Letters without a meaning of their own may be escaped.
// - Without case, st is also U+FB06 (that s(?:t) is, too, is left out), and a class of upper-case letters also has the
// lower-case ones.
namespace megalith::tokenizer {
namespace {

constexpr std::size_t kNowhere = std::string::npos;
constexpr int kMaxDepth = 200;  // PCRE2's own is 250
constexpr std::string_view kAnyCharacter = "(?s:.)";
constexpr std::string_view kLineEnd = R"((?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}]))";
/// ^ and $. PCRE2's own ^ does not ask for more text (PCRE2_PARTIAL_HARD) behind a last line end; \z does.
constexpr std::string_view kLineBegin = R"((?:\A|(?<=\n)(?!\z)))";
constexpr std::string_view kLineClose = "(?m:$)";
/// \w outside brackets: Oniguruma asks Latin-1's table about Latin-1's characters.
constexpr std::string_view kLatinWords = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

[[noreturn]] void refuse_pattern(std::string_view part, std::string_view why) {
  throw InputError(str("must not hold ", part, ": ", why));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_octal(char c) { return c >= '0' && c <= '7'; }
bool is_hex(char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }
bool is_letter(char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

/// Strings that without case match one character too. Source: CaseFolding.txt, status F.
struct Folded {
  std::u32string_view letters;
  const char* character;
};
constexpr Folded kFolded[] = {{U"ffi", R"(\x{FB03})"},         {U"ffl", R"(\x{FB04})"}, {U"ff", R"(\x{FB00})"},
                              {U"fi", R"(\x{FB01})"},          {U"fl", R"(\x{FB02})"},  {U"ss", R"([\x{DF}\x{1E9E}])"},
                              {U"st", R"([\x{FB05}\x{FB06}])"}};

/// Characters that match several characters without case, or that are one of those.
bool folds_to_several(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0xDF, 0xDF},   {0x130, 0x130}, {0x149, 0x149},   {0x1F0, 0x1F0},   {0x2BC, 0x2BE},
      {0x300, 0x3FF}, {0x531, 0x587}, {0x1E96, 0x1E9E}, {0x1F00, 0x1FFF}, {0xFB00, 0xFB17}};
  return std::ranges::any_of(kRanges, [&](const auto& range) { return c >= range.first && c <= range.second; });
}

class Translator {
 public:
  Translator(std::string_view pattern, bool has_names) : pattern_(pattern), has_names_(has_names) {}

  std::string translate() {
    std::string out = branches({}, 0);
    if (at_ < pattern_.size()) refuse_pattern(")", "no ( is open");
    if (!has_names_ && !names_.empty() && num_groups_ > static_cast<int>(names_.size()))
      return Translator(pattern_, true).translate();  // beside names, ( ) does not count as a group
    return out;
  }

 private:
  struct Options {
    bool any_case = false, extended = false, point_is_all = false;
  };
  struct Literal {
    char32_t code;
    std::string text;  // in PCRE2's syntax, within brackets and outside
  };
  /// A set of characters within brackets.
  struct Set {
    std::string items;
    bool is_negative = false;
    enum class Case : std::uint8_t {
      none,        // the other cases of its characters are in it, and none of them matches several characters
      complement,  // all characters but those of such a set
      letters,     // L, whose other cases are all L, but for U+0345
      word,        // \w
      changes      // another set, or not known
    } in_case = Case::changes;
  };

  // Reading.
  std::string_view rest() const { return pattern_.substr(at_); }
  bool at_end() const { return at_ == pattern_.size(); }
  bool next_is(std::string_view text) const { return rest().starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  /// One character as it stands.
  Literal take_character() {
    if (at_end()) throw InputError("must not end before a character");
    const std::size_t size = utf8_front(rest()).length;
    Literal found{code_of(rest().substr(0, size)), std::string(rest().substr(0, size))};
    at_ += size;
    return found;
  }
  static char32_t code_of(std::string_view character) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
    char32_t code = character.size() == 1 ? byte(0) : byte(0) & (0x7Fu >> character.size());
    for (std::size_t i = 1; i < character.size(); ++i) code = (code << 6) | (byte(i) & 0x3Fu);
    return code;
  }
  static Literal literal_of(char32_t code, std::string_view hex) { return {code, str("\\x{", hex, '}')}; }

  /// What one branch has made so far.
  struct Branch {
    std::string out;
    std::size_t atom = kNowhere;  // where what a quantifier would repeat begins
    bool is_repeated = false;
    std::vector<Literal> run;  // literals that are not in `out` yet
  };
  void flush(Branch& b, const Options& options) const {
    for (std::size_t i = 0; i < b.run.size();) {
      const auto folded = !options.any_case ? std::end(kFolded) : std::ranges::find_if(kFolded, [&](const Folded& f) {
        if (b.run.size() - i < f.letters.size()) return false;
        for (std::size_t k = 0; k < f.letters.size(); ++k)
          if (b.run[i + k].code != f.letters[k] && (b.run[i + k].code | 0x20) != f.letters[k]) return false;
        return true;
      });
      const std::size_t count = folded == std::end(kFolded) ? 1 : folded->letters.size();
      if (count > 1) b.out += "(?:";
      for (std::size_t k = 0; k < count; ++k) b.out += b.run[i + k].text;
      if (count > 1) b.out += str('|', folded->character, ')');
      i += count;
    }
    b.run.clear();
  }
  void add_atom(Branch& b, const Options& options, std::string_view text) const {
    flush(b, options);
    b.atom = b.out.size();
    b.is_repeated = false;
    b.out += text;
  }
  /// What matches no characters: a quantifier has nothing to repeat there.
  void add_place(Branch& b, const Options& options, std::string_view text) const {
    flush(b, options);
    b.atom = kNowhere;
    b.out += text;
  }
  void add_literal(Branch& b, const Options& options, Literal literal) const {
    if (options.any_case && folds_to_several(literal.code))
      refuse_pattern(str(literal.text, " within (?i)"), "without case it may match several characters");
    b.run.push_back(std::move(literal));
  }

  /// Branches to the group's ) or the end of the pattern, neither of which is read.
  std::string branches(Options options, int depth) {
    if (depth > kMaxDepth) refuse_pattern(str("more than ", kMaxDepth, " groups in each other"), "simplify it");
    Branch b;
    std::string closing;  // of options that began in the middle
    while (!at_end() && !next_is(")")) {
      const char c = rest()[0];
      if (options.extended && (c == ' ' || (c >= '\t' && c <= '\r'))) {
        ++at_;
      } else if (options.extended && c == '#') {
        at_ = std::min(pattern_.find('\n', at_), pattern_.size());
      } else if (c == '|') {
        add_place(b, options, "|");
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
        add_place(b, options, c == '^' ? kLineBegin : kLineClose);
      } else if (!quantifier(b, options)) {
        Literal literal = take_character();
        if (c == '{' || c == '}' || c == ']') literal.text.insert(0, 1, '\\');
        add_literal(b, options, std::move(literal));
      }
    }
    flush(b, options);
    return b.out + closing;
  }

  /// * + ? {n} {n,} {,n} {n,m}, each perhaps with ? or +. False where there is none.
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
    if (!b.run.empty()) {
      Literal last = std::move(b.run.back());
      b.run.pop_back();
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
      return add_place(b, options, str(look, inner, ')'));
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

  /// Of a group that has begun, by its name or number; 0: there is none.
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
    add_place(b, options, opening);
    closing += ')';
    options = inside;
  }

  // Escapes.
  /// \n, \x41, \u0041, \101, \cA and letters without a meaning; nothing for what is no character.
  std::optional<Literal> escaped_character(bool in_class) {
    if (rest().size() < 2) throw InputError("must not end with a backslash");
    const char c = rest()[1];
    constexpr std::string_view kNamed = "tnrf";
    constexpr std::string_view kMeant = "sSdDwWhHpPkgbBAzZGKRXNOyY";
    constexpr std::string_view kMeantInClass = "sSdDwWhHpP";
    if (kNamed.find(c) != kNowhere) {
      const Literal found{U"\t\n\r\f"[kNamed.find(c)], std::string(rest().substr(0, 2))};
      at_ += 2;
      return found;
    }
    if (c == 'v' || c == 'a' || c == 'e' || (c == 'b' && in_class)) {
      at_ += 2;
      return c == 'v'   ? Literal{0x0B, "\\x0B"}
             : c == 'a' ? literal_of(7, "7")
             : c == 'e' ? literal_of(0x1B, "1B")
                        : literal_of(8, "8");
    }
    if (c == 'x' || c == 'u') return hex_character(c);
    if (c == '0' || (in_class && is_octal(c))) return octal_character();
    if (c == 'c' || c == 'C' || c == 'M') {
      if (c != 'c' || rest().size() < 3 || !is_letter(rest()[2]))
        refuse_pattern(rest().substr(0, 3), "control characters are written \\cA or \\x{1}");
      const int code = rest()[2] & 0x1F;
      at_ += 3;
      return literal_of(static_cast<char32_t>(code), hex(code));
    }
    if (!in_class && is_digit(c)) return std::nullopt;
    if ((in_class ? kMeantInClass : kMeant).find(c) != kNowhere) return std::nullopt;
    ++at_;
    Literal found = take_character();
    if (found.code < 0x80 && !is_letter(c) && !is_digit(c) && c != '_' && c > ' ') found.text.insert(0, 1, '\\');
    if (found.text == " ") found.text = "\\ ";
    return found;
  }
  /// \101.
  Literal octal_character() {
    std::size_t size = 1;
    while (size < 4 && size < rest().size() && is_octal(rest()[size])) ++size;
    const int code = std::stoi(std::string(rest().substr(1, size - 1)), nullptr, 8);
    if (code > 0x7F) refuse_pattern(rest().substr(0, size), "it is a byte, no character");
    at_ += size;
    return literal_of(static_cast<char32_t>(code), hex(code));
  }
  static std::string hex(int code) {
    std::string text;
    for (int shift = 4; shift >= 0; shift -= 4) text += "0123456789ABCDEF"[(code >> shift) & 15];
    return text;
  }

  /// \x{2028}, \x0B, \xC3\xA9, \u2028.
  Literal hex_character(char letter) {
    const std::string_view shown = rest().substr(0, 4);
    const auto fail = [&] { refuse_pattern(shown, "characters are written \\x{HHHH}, \\xHH or \\uHHHH"); };
    const bool in_braces = letter == 'x' && rest().substr(2).starts_with("{");
    const std::size_t begin = in_braces ? 3 : 2;
    std::size_t size = 0;
    const std::size_t most = in_braces ? 8 : letter == 'x' ? 2 : 4;
    while (size < most && begin + size < rest().size() && is_hex(rest()[begin + size])) ++size;
    const std::string_view digits = rest().substr(begin, size);
    const bool is_closed = !in_braces || rest().substr(begin + size).starts_with("}");
    if (digits.empty() || !is_closed || (letter == 'u' && size != 4)) fail();
    const auto code = static_cast<char32_t>(std::stoul(std::string(digits), nullptr, 16));
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) refuse_pattern(shown, "no character has this number");
    if (letter == 'x' && !in_braces && code >= 0x80) return character_of_bytes();
    at_ += begin + size + (in_braces ? 1 : 0);
    return literal_of(code, digits);
  }
  Literal character_of_bytes() {
    const std::string shown(rest().substr(0, 4));
    std::string bytes;
    do {
      if (!next_is("\\x") || rest().size() < 4 || !is_hex(rest()[2]) || !is_hex(rest()[3]))
        refuse_pattern(shown, "it is a byte, no character");
      bytes += static_cast<char>(std::stoi(std::string(rest().substr(2, 2)), nullptr, 16));
      at_ += 4;
    } while (incomplete_utf8_tail(bytes) > 0);
    if (!is_utf8(bytes)) refuse_pattern(shown, "it is a byte, no character");
    return {code_of(bytes), bytes};
  }

  /// What is no character, outside brackets.
  void escape(Branch& b, const Options& options) {
    if (std::optional<Literal> literal = escaped_character(false)) return add_literal(b, options, std::move(*literal));
    const char c = rest()[1];
    if (is_digit(c)) return numbered_reference(b, options);
    if (c == 'k') return named_reference(b, options);
    if (c == 'S') {
      at_ += 2;
      return add_atom(b, options, str("[^", kWhiteSpace, ']'));
    }
    if (c == 'p' || c == 'P' || std::string_view("sdDwWhH").find(c) != kNowhere) {
      const Set set = escaped_set();
      const bool has_latin = set.in_case == Set::Case::word;
      const std::string text = str(set.is_negative ? "[^" : "[", set.items, has_latin ? kLatinWords : "", ']');
      // Without case too, it is the set that its name says.
      return add_atom(b, options, options.any_case && set.in_case != Set::Case::none ? str("(?-i:", text, ')') : text);
    }
    const std::string word = str('[', word_items(), kLatinWords, ']');
    switch (c) {
      case 'b':
        add_place(b, options, str("(?-i:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))"));
        break;
      case 'B':
        add_place(b, options, str("(?-i:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))"));
        break;
      case 'A':
      case 'z':
      case 'Z':
      case 'G':
      case 'K':
        add_place(b, options, rest().substr(0, 2));
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
    if (number == 0) refuse_pattern(str("\\k<", name, '>'), "no group before it is called so");
    at_ += size + 1;
    add_atom(b, options, str("\\g{", number, '}'));
  }

  // Sets of characters.
  /// \s \S \d \D \w \W \h \H \p{NAME} \p{^NAME} \P{NAME}.
  Set escaped_set() {
    const char c = rest()[1];
    if (c == 'p' || c == 'P') return property();
    at_ += 2;
    const bool is_negative = c >= 'A' && c <= 'Z';
    switch (c | 0x20) {
      case 's':
        return {std::string(is_negative ? kNoWhiteSpace : kWhiteSpace), false,
                is_negative ? Set::Case::complement : Set::Case::none};
      case 'd':
        return {property_class("Nd").items, is_negative, Set::Case::none};
      case 'h':
        return {"0-9A-Fa-f", is_negative, Set::Case::none};
      default:
        return {word_items(), is_negative, Set::Case::word};
    }
  }

  Set property() {
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
    const Set found = named_set(name, is_negative);
    if (found.items.empty())
      refuse_pattern(shown,
                     "properties are L, M, N, P, S, Z, C, their parts, Alphabetic, Uppercase, Lowercase and "
                     "scripts such as Han");
    at_ += end + 1;
    return found;
  }

  static Set named_set(std::string_view name, bool is_negative) {
    constexpr std::string_view kNoCase[] = {
        "N",      "Nd",     "Nl",         "No",    "P",     "Pc",    "Pd",    "Ps",       "Pe",       "Pi",     "Pf",
        "Po",     "S",      "Sm",         "Sc",    "Sk",    "So",    "Z",     "Zs",       "Zl",       "Zp",     "Cc",
        "Cf",     "Co",     "Lm",         "Lo",    "Mc",    "Me",    "Han",   "Hiragana", "Katakana", "Hangul", "Thai",
        "Hebrew", "Arabic", "Devanagari", "digit", "space", "punct", "cntrl", "blank",    "xdigit",   "any"};
    const PropertyClass found = property_class(name);
    Set::Case in_case = Set::Case::changes;
    if (std::ranges::find(kNoCase, name) != std::end(kNoCase)) in_case = Set::Case::none;
    if (name == "L") in_case = Set::Case::letters;
    if (name == "word" || name == "Word") in_case = Set::Case::word;
    return {found.items, found.is_negative != is_negative, in_case};
  }

  /// A class within its brackets; the [ is next. What is returned matches one character.
  std::string char_class(const Options& options, int depth) {
    if (depth > kMaxDepth) refuse_pattern(str("more than ", kMaxDepth, " classes in each other"), "simplify it");
    const std::size_t begin = at_;
    take("[");
    const bool is_negative = take("^");
    if (next_is("]")) refuse_pattern("[]", "write \\] for a bracket");
    std::string items;
    std::vector<std::string> others, both;  // others: classes that brackets cannot hold; both: what && stands between
    const auto end_union = [&] {
      if (items.empty() && others.empty()) refuse_pattern("&& without a class on each side", "write one");
      std::string text = items.empty() ? std::string() : str('[', items, ']');
      for (const std::string& other : others) text += (text.empty() ? "" : "|") + other;
      both.push_back(others.size() + (items.empty() ? 0 : 1) > 1 ? str("(?:", text, ')') : text);
      items.clear();
      others.clear();
    };
    const auto add_set = [&](const Set& set) {
      if (options.any_case) check_without_case(set, is_negative, pattern_.substr(begin, at_ - begin));
      if (set.is_negative)
        others.push_back(str("[^", set.items, ']'));
      else
        items += set.items + (options.any_case && set.in_case == Set::Case::letters ? "\\x{345}" : "");
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

  /// A class without case also has the other cases of its characters, and what they are together.
  static void check_without_case(const Set& set, bool in_negative, std::string_view shown) {
    const bool is_same = set.in_case == Set::Case::none && (in_negative || !set.is_negative);
    const bool is_word = (set.in_case == Set::Case::word || set.in_case == Set::Case::complement) && in_negative;
    const bool is_letters = set.in_case == Set::Case::letters && in_negative && !set.is_negative;
    if (!is_same && !is_word && !is_letters)
      refuse_pattern(str(shown, " within (?i)"), "without case it may match several characters; write it outside");
  }

  /// [:alpha:], [:^alpha:].
  Set posix_set() {
    const std::size_t end = rest().find(":]");
    constexpr std::string_view kNames[] = {"alnum", "alpha", "ascii", "blank", "cntrl", "digit",  "graph",
                                           "lower", "print", "punct", "space", "upper", "xdigit", "word"};
    std::string_view name = rest().substr(2, end == kNowhere ? 0 : end - 2);
    const bool is_negative = name.starts_with("^");
    if (is_negative) name.remove_prefix(1);
    if (end == kNowhere || std::ranges::find(kNames, name) == std::end(kNames))
      refuse_pattern(rest().substr(0, end == kNowhere ? 2 : end + 2),
                     "POSIX's names are [:alpha:], [:digit:] and so on");
    at_ += end + 2;
    // \p{Punct} is P; [:punct:] is POSIX's.
    if (name == "punct") return {property_class("P").items + property_class("S").items, is_negative, Set::Case::none};
    return named_set(name, is_negative);
  }

  /// One element of a class: a character, a range or a set.
  template <class AddSet>
  void range_or_set(const Options& options, std::string& items, const AddSet& add_set) {
    const auto element = [&]() -> std::optional<Literal> {
      if (next_is("\\")) return escaped_character(true);
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

  std::string_view pattern_;
  bool has_names_;
  std::size_t at_ = 0;
  int num_groups_ = 0;
  std::map<std::string, int> names_;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern) {
  if (!is_utf8(pattern)) throw InputError("must be UTF-8");
  return Translator(pattern, false).translate();
}

}  // namespace megalith::tokenizer
