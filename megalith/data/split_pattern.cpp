#include "megalith/data/split_pattern.h"

#include <algorithm>
#include <array>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::data {
namespace {

/// The property White_Space, within brackets. With PCRE2_UCP, \s would also take U+180E, which has not been white space
/// since Unicode 6.3.
constexpr std::string_view kWhiteSpace = R"(\t-\r\x{85}\p{Z})";

/// Characters of the properties of Unicode 16.0, which tokenizers 0.23.3 goes by, that PCRE2 10.42, of Unicode 14.0,
/// does not know. It was asked about each of the 1,112,064 characters. (U+1171E, which was Mn, is Mc.)
struct NewCharacters {
  std::string_view property;
  const char* ranges;
};
constexpr NewCharacters kNewCharacters[] = {
    {"Lu", R"(\x{1C89}\x{A7CB}-\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})"},
    {"Ll", R"(\x{1C8A}\x{A7CD}\x{A7DB}\x{10D70}-\x{10D85}\x{1DF25}-\x{1DF2A})"},
    {"Lm", R"(\x{10D4E}\x{10D6F}\x{16D40}-\x{16D42}\x{16D6B}-\x{16D6C}\x{1E030}-\x{1E06D}\x{1E4EB})"},
    {"Lo", R"(\x{105C0}-\x{105F3}\x{10D4A}-\x{10D4D}\x{10D4F}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240})"
           R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"
           R"(\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446})"
           R"(\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D43}-\x{16D6A}\x{18CFF}\x{1B132}\x{1B155})"
           R"(\x{1E4D0}-\x{1E4EA}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"Mn", R"(\x{897}\x{ECE}\x{10D69}-\x{10D6D}\x{10EFC}-\x{10EFF}\x{11241}\x{113BB}-\x{113C0}\x{113CE}\x{113D0})"
           R"(\x{113D2}\x{113E1}-\x{113E2}\x{11F00}-\x{11F01}\x{11F36}-\x{11F3A}\x{11F40}\x{11F42}\x{11F5A})"
           R"(\x{13440}\x{13447}-\x{13455}\x{1611E}-\x{16129}\x{1612D}-\x{1612F}\x{1E08F}\x{1E4EC}-\x{1E4EF})"
           R"(\x{1E5EE}-\x{1E5EF})"},
    {"Mc", R"(\x{CF3}\x{113B8}-\x{113BA}\x{113C2}\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113CD}\x{113CF}\x{1171E})"
           R"(\x{11F03}\x{11F34}-\x{11F35}\x{11F3E}-\x{11F3F}\x{11F41}\x{1612A}-\x{1612C})"},
    {"Nd", R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59}\x{16130}-\x{16139})"
           R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})"},
    {"No", R"(\x{1D2C0}-\x{1D2D3})"},
    {"Pd", R"(\x{10D6E})"},
    {"Po", R"(\x{1B4E}-\x{1B4F}\x{1B7F}\x{113D4}-\x{113D5}\x{113D7}-\x{113D8}\x{11B00}-\x{11B09}\x{11BE1})"
           R"(\x{11F43}-\x{11F4F}\x{16D6D}-\x{16D6F}\x{1E5FF})"},
    {"Sm", R"(\x{10D8E}-\x{10D8F})"},
    {"So", R"(\x{2427}-\x{2429}\x{2FFC}-\x{2FFF}\x{31E4}-\x{31E5}\x{31EF}\x{1CC00}-\x{1CCEF}\x{1CD00}-\x{1CEB3})"
           R"(\x{1F6DC}\x{1F774}-\x{1F776}\x{1F77B}-\x{1F77F}\x{1F7D9}\x{1F8B2}-\x{1F8BB}\x{1F8C0}-\x{1F8C1})"
           R"(\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89}\x{1FA8F}\x{1FAAD}-\x{1FAAF}\x{1FABB}-\x{1FABF}\x{1FAC6})"
           R"(\x{1FACE}-\x{1FACF}\x{1FADA}-\x{1FADC}\x{1FADF}\x{1FAE8}-\x{1FAE9}\x{1FAF7}-\x{1FAF8})"
           R"(\x{1FBCB}-\x{1FBEF})"},
    {"Cf", R"(\x{13439}-\x{1343F})"},
    {"Han", R"(\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"Hiragana", R"(\x{1B132})"},
    {"Katakana", R"(\x{1B155})"},
    {"Latin", R"(\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{1DF25}-\x{1DF2A})"},
    {"Cyrillic", R"(\x{1C89}-\x{1C8A}\x{1E030}-\x{1E06D}\x{1E08F})"},
    {"Arabic", R"(\x{897}\x{10EC2}-\x{10EC4}\x{10EFC}-\x{10EFF})"},
    {"Devanagari", R"(\x{11B00}-\x{11B09})"},
};
constexpr std::string_view kScripts[] = {"Han",      "Hiragana", "Katakana", "Hangul", "Latin",     "Greek",
                                         "Cyrillic", "Arabic",   "Hebrew",   "Thai",   "Devanagari"};
// Z has no new characters; C holds those that have no meaning yet, so it is another set in each version.
constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
                                            "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
                                            "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

/// What stands within brackets for a property; "" for an unknown one.
std::string property_class(std::string_view name) {
  const bool is_category = std::ranges::find(kCategories, name) != std::end(kCategories);
  // "Greek" is the script extension in PCRE2 10.40 and later, the script in Oniguruma.
  const bool is_script = std::ranges::find(kScripts, name) != std::end(kScripts);
  if (!is_category && !is_script) return "";
  std::string text = str(is_script ? "\\p{sc:" : "\\p{", name, '}');
  for (const NewCharacters& more : kNewCharacters)
    if (more.property == name || (name.size() == 1 && more.property.size() == 2 && more.property[0] == name[0]))
      text += more.ranges;
  return text;
}

[[noreturn]] void refuse_pattern(std::string_view part, std::string_view why) {
  throw InputError(str("must not hold ", part, ": ", why));
}

/// Reads an expression in Oniguruma's syntax for Ruby and writes it in PCRE2's. What is not known to mean the same is
/// refused.
class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : pattern_(pattern) {}

  std::string translate() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\')
        escape();
      else if (in_class_)
        within_brackets(c);
      else
        outside(c);
    }
    if (in_class_) throw InputError("must close its brackets");
    return std::move(out_);
  }

 private:
  std::string_view rest() const { return pattern_.substr(at_); }
  void copy(std::size_t count) {
    out_ += rest().substr(0, count);
    at_ += count;
  }

  void outside(char c) {
    switch (c) {
      case '[': {
        in_class_ = true;
        copy(rest().starts_with("[^") ? 2 : 1);
        if (rest().starts_with("]")) refuse_pattern("[]", "write \\] for a bracket");
        return;
      }
      case '(':
        return group();
      case '^':
      case '$':
        refuse_pattern(std::string(1, c), "it is the begin or end of a line in one library, of the text in another");
      case '{':
        if (rest().starts_with("{,")) refuse_pattern("{,", "write {0,");
        return copy(1);
      case '}':
        if (rest().starts_with("}+")) refuse_pattern("}+", "it repeats in one library and is possessive in another");
        return copy(1);
      default:
        return copy(1);
    }
  }

  void within_brackets(char c) {
    if (c == '[') refuse_pattern("[ within brackets", "write \\[ for a bracket");
    if (rest().starts_with("&&")) refuse_pattern("&& within brackets", "PCRE2 has no intersection of classes");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void group() {
    constexpr std::array<std::string_view, 7> kKnown = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (!rest().starts_with("(?")) return copy(1);
    const auto known = std::ranges::find_if(kKnown, [&](std::string_view form) { return rest().starts_with(form); });
    if (known == kKnown.end()) refuse_pattern(rest().substr(0, 4), "groups are ( (?: (?i: (?= (?! (?<= (?<! (?>");
    copy(known->size());
  }

  void escape() {
    if (rest().size() < 2) throw InputError("must not end with a backslash");
    const char c = rest()[1];
    const bool is_plain = (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7F);
    if (is_plain || c == ' ' || c == 'r' || c == 'n' || c == 't' || c == 'f') return copy(2);
    switch (c) {
      case 's':
        return replace(2, in_class_ ? std::string(kWhiteSpace) : str('[', kWhiteSpace, ']'));
      case 'S':
        if (in_class_) refuse_pattern("\\S within brackets", "PCRE2 cannot say it there");
        return replace(2, str("[^", kWhiteSpace, ']'));
      case 'd':
        return replace(2, in_class_ ? property_class("Nd") : str('[', property_class("Nd"), ']'));
      case 'D':
        if (in_class_) refuse_pattern("\\D within brackets", "PCRE2 cannot say it there");
        return replace(2, str("[^", property_class("Nd"), ']'));
      case 'v':
        return replace(2, R"(\x0B)");
      case 'p':
      case 'P':
        return property(c);
      case 'x':
      case 'u':
        return code_point(c);
      default:
        refuse_pattern(rest().substr(0, 2), "the tokenizers library and PCRE2 read it differently");
    }
  }

  void replace(std::size_t count, std::string_view text) {
    at_ += count;
    out_ += text;
  }

  /// \p{L}, \p{^L}, \p{Han}.
  void property(char letter) {
    const std::size_t end = rest().find('}');
    if (!rest().substr(2).starts_with("{") || end == std::string_view::npos)
      refuse_pattern(rest().substr(0, 3), "a property is written \\p{...}");
    std::string_view name = rest().substr(3, end - 3);
    bool is_negative = letter == 'P';
    if (name.starts_with("^")) {
      is_negative = !is_negative;
      name.remove_prefix(1);
    }
    const std::string meaning = property_class(name);
    if (meaning.empty())
      refuse_pattern(rest().substr(0, end + 1),
                     "properties are L, M, N, P, S, Z, their parts, Cc, Cf, Co and scripts such as Han");
    if (in_class_ && is_negative)
      refuse_pattern(str(rest().substr(0, end + 1), " within brackets"), "PCRE2 cannot say it there");
    replace(end + 1, in_class_ ? meaning : str(is_negative ? "[^" : "[", meaning, ']'));
  }

  /// \x{2028}, \x0B, \u2028.
  void code_point(char letter) {
    const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); };
    const bool in_braces = letter == 'x' && rest().substr(2).starts_with("{");
    const std::size_t begin = in_braces ? 3 : 2;
    const std::size_t size = in_braces ? std::min(rest().find('}'), rest().size()) - begin : letter == 'x' ? 2 : 4;
    const std::string_view digits = rest().substr(begin, size);
    if (digits.size() != size || digits.empty() || !std::ranges::all_of(digits, is_hex))
      refuse_pattern(rest().substr(0, 4), "characters are written \\x{HHHH}, \\xHH or \\uHHHH");
    if (letter == 'x' && !in_braces && digits[0] >= '8')
      refuse_pattern(rest().substr(0, 4), "it is a byte, no character");
    replace(begin + size + (in_braces ? 1 : 0), str("\\x{", digits, '}'));
  }

  std::string_view pattern_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

using Cut = CompiledRule::Cut;

// The pattern of Radford et al. 2019 (released with GPT-2), which reads
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// with three changes that match the same pieces:
// - \s is spelt out.
// - Letters come first: no contraction begins with one.
// - Quantifiers that can never give anything back are possessive, and ASCII letters are tried before the property
//   table: 144 against 110 MB/s on English text (pieces alone, one x86-64 core).
std::string fast_gpt2() {
  const std::string letters = property_class("L"), numbers = property_class("N");
  const std::string space(kWhiteSpace);
  return " ?+(?:[A-Za-z]++[" + letters + "]*+|[" + letters + "]++)" + "|'(?:[stmd]|re|ve|ll)" + "| ?+[" + numbers +
         "]++" + "| ?+[^" + space + letters + numbers + "]++" + "|[" + space + "]+(?![^" + space + "])|[" + space +
         "]+";
}

/// Patterns of models that are widely used, of which more is known than their text says.
struct KnownPattern {
  std::string_view spelling;
  std::string (*faster)();  // a pattern with the same pieces; null: there is none
  Cut cut;
};
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr KnownPattern kKnownPatterns[] = {
    {kGpt2, fast_gpt2, Cut::white_space},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", fast_gpt2, Cut::white_space},
    // GPT-4 and Llama 3; Qwen 2. A mark takes the line ends behind it.
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     nullptr, Cut::blanks},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     nullptr, Cut::blanks},
    // GPT-4o.
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     nullptr, Cut::blanks},
};

}  // namespace

SplitRule gpt2_split() { return {.pattern = std::string(kGpt2)}; }

CompiledRule compile_rule(const SplitRule& rule) {
  const auto known = std::ranges::find(kKnownPatterns, rule.pattern, &KnownPattern::spelling);
  if (known == std::end(kKnownPatterns)) return {.pcre2 = PatternTranslator(rule.pattern).translate()};
  return {.pcre2 = known->faster != nullptr ? known->faster() : PatternTranslator(rule.pattern).translate(),
          .cut = rule.keep_matches ? known->cut : Cut::nowhere,
          .covers_all = true};
}

}  // namespace megalith::data
