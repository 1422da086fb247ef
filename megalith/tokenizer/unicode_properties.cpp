#include "megalith/tokenizer/unicode_properties.h"

#include <algorithm>

#include "megalith/base/str.h"

namespace megalith::tokenizer {
namespace {

/// Characters of the properties of Unicode 16.0, which tokenizers 0.23.3 uses, that PCRE2 10.42 (Unicode 14.0) does
/// not have. Each of the 1,112,064 characters was tried. (U+1171E, which was Mn, is Mc.)
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
    {"Balinese", R"(\x{1B4E}-\x{1B4F}\x{1B7F})"},
    {"Common", R"(\x{2427}-\x{2429}\x{2FFC}-\x{2FFF}\x{31E4}-\x{31E5}\x{31EF}\x{1CC00}-\x{1CCF9})"
               R"(\x{1CD00}-\x{1CEB3}\x{1D2C0}-\x{1D2D3}\x{1F6DC}\x{1F774}-\x{1F776}\x{1F77B}-\x{1F77F}\x{1F7D9})"
               R"(\x{1F8B2}-\x{1F8BB}\x{1F8C0}-\x{1F8C1}\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89}\x{1FA8F})"
               R"(\x{1FAAD}-\x{1FAAF}\x{1FABB}-\x{1FABF}\x{1FAC6}\x{1FACE}-\x{1FACF}\x{1FADA}-\x{1FADC}\x{1FADF})"
               R"(\x{1FAE8}-\x{1FAE9}\x{1FAF7}-\x{1FAF8}\x{1FBCB}-\x{1FBEF})"},
    {"Egyptian_Hieroglyphs", R"(\x{1342F}\x{13439}-\x{13455}\x{13460}-\x{143FA})"},
    {"Kannada", R"(\x{CF3})"},
    {"Khitan_Small_Script", R"(\x{18CFF})"},
    {"Khojki", R"(\x{1123F}-\x{11241})"},
    {"Lao", R"(\x{ECE})"},
    {"Myanmar", R"(\x{116D0}-\x{116E3})"},
    {"Alphabetic", R"(\x{363}-\x{36F}\x{897}\x{C04}\x{CF3}\x{F82}-\x{F83}\x{1C89}-\x{1C8A}\x{1DD3}-\x{1DE6})"
                   R"(\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65}\x{10D69})"
                   R"(\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{10EFC}\x{11080}-\x{11081}\x{1123F}-\x{11241})"
                   R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}-\x{113C0}\x{113C2}\x{113C5})"
                   R"(\x{113C7}-\x{113CA}\x{113CC}-\x{113CD}\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F00}-\x{11F10})"
                   R"(\x{11F12}-\x{11F3A}\x{11F3E}-\x{11F40}\x{1342F}\x{13441}-\x{13446}\x{13460}-\x{143FA})"
                   R"(\x{16100}-\x{1612E}\x{16D40}-\x{16D6C}\x{18CFF}\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A})"
                   R"(\x{1E030}-\x{1E06D}\x{1E08F}\x{1E4D0}-\x{1E4EB}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"
                   R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
    {"Uppercase", R"(\x{1C89}\x{A7CB}-\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})"},
    {"Lowercase", R"(\x{10FC}\x{1C8A}\x{A7CD}\x{A7DB}\x{A7F2}-\x{A7F4}\x{AB69}\x{10D70}-\x{10D85})"
                  R"(\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D})"},
    {"Emoji", R"(\x{1F6DC}\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89}\x{1FA8F}\x{1FAAD}-\x{1FAAF}\x{1FABB}-\x{1FABF})"
              R"(\x{1FAC6}\x{1FACE}-\x{1FACF}\x{1FADA}-\x{1FADC}\x{1FADF}\x{1FAE8}-\x{1FAE9}\x{1FAF7}-\x{1FAF8})"},
};

/// Names of several properties together.
struct Union {
  std::string_view name;  // in lower case, without spaces, - and _
  std::string_view parts;
};
constexpr Union kUnions[] = {
    {"lc", "Lu Ll Lt"},
    {"casedletter", "Lu Ll Lt"},
    {"l_", "Lu Ll Lt"},
    // The names of POSIX.
    {"alpha", "Alphabetic"},
    {"upper", "Uppercase"},
    {"lower", "Lowercase"},
    {"alnum", "Alphabetic Nd"},
    {"digit", "Nd"},
    {"punct", "P"},
    {"cntrl", "Cc"},
    {"graph", "L M N P S Cf Co"},
    {"print", "L M N P S Cf Co Zs"},
};
constexpr Union kLongNames[] = {
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"privateuse", "Co"},
};
/// Short names of scripts with new characters.
constexpr Union kShortNames[] = {
    {"arab", "Arabic"},
    {"bali", "Balinese"},
    {"cyrl", "Cyrillic"},
    {"deva", "Devanagari"},
    {"egyp", "Egyptian_Hieroglyphs"},
    {"hani", "Han"},
    {"hira", "Hiragana"},
    {"kana", "Katakana"},
    {"khoj", "Khojki"},
    {"kits", "Khitan_Small_Script"},
    {"knda", "Kannada"},
    {"laoo", "Lao"},
    {"latn", "Latin"},
    {"mymr", "Myanmar"},
    {"zyyy", "Common"},
};
// Z has no new characters.
constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
                                            "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
                                            "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
constexpr std::string_view kBinary[] = {"Alphabetic", "Uppercase", "Lowercase", "Emoji", "Extended_Pictographic"};
/// All except Cn and Cs: no text has a surrogate.
constexpr std::string_view kAssigned = "L M N P S Z Cc Cf Co";

/// In lower case, without the characters that both libraries ignore.
std::string plain(std::string_view name) {
  if (name == "L_") return "l_";
  std::string text;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_') text += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  return text;
}

template <class List>
std::string_view listed_in(const List& list, std::string_view plain_name) {
  for (const std::string_view entry : list)
    if (plain(entry) == plain_name) return entry;
  return {};
}

/// One property by PCRE2's name: its characters and the new ones.
std::string with_new(std::string_view text, std::string_view name) {
  std::string items(text);
  for (const NewCharacters& more : kNewCharacters)
    if (plain(more.property) == plain(name) ||
        (name.size() == 1 && more.property.size() == 2 && more.property[0] == name[0]))
      items += more.ranges;
  return items;
}

std::string all_of(std::string_view names) {
  std::string items;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    items += with_new(str("\\p{", names.substr(0, end), '}'), names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return items;
}

}  // namespace

PropertyClass property_class(std::string_view name) {
  const std::string key = plain(name);
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  if (key.empty() || !std::ranges::all_of(key, is_letter)) return {};
  if (key == "word") return {std::string(word_items())};
  if (key == "space" || key == "whitespace") return {std::string(kWhiteSpace)};
  if (key == "blank") return {"\\t\\p{Zs}"};
  if (key == "xdigit") return {"0-9A-Fa-f"};
  if (key == "ascii") return {"\\x{0}-\\x{7F}"};
  if (key == "any") return {"\\x{0}-\\x{10FFFF}"};
  if (key == "assigned") return {all_of(kAssigned)};
  if (key == "cn" || key == "unassigned") return {all_of(kAssigned), true};
  if (key == "c" || key == "other") return {all_of("L M N P S Z"), true};
  for (const Union& some : kUnions)
    if (key == some.name) return {all_of(some.parts)};
  for (const Union& some : kLongNames)
    if (key == some.name) return {all_of(some.parts)};
  if (const std::string_view category = listed_in(kCategories, key); !category.empty()) return {all_of(category)};
  if (const std::string_view binary = listed_in(kBinary, key); !binary.empty()) return {all_of(binary)};
  for (const Union& some : kShortNames)
    if (key == some.name) name = some.parts;
  // "Greek" is the script extension in PCRE2 10.40 and later, the script in Oniguruma. PCRE2 refuses unknown names.
  return {with_new(str("\\p{sc:", name, '}'), name)};
}

const std::string& word_items() {
  // Alphabetic, M, Nd and Pc of Unicode. The circled letters are So and Alphabetic.
  static const std::string items =
      all_of("L M Nd Nl Pc") + R"(\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
  return items;
}

}  // namespace megalith::tokenizer
