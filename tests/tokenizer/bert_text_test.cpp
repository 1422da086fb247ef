#include "megalith/tokenizer/bert_text.h"

#include <gtest/gtest.h>

#include "megalith/tokenizer/unicode_text.h"

namespace megalith::tokenizer {
namespace {

using Words = std::vector<std::string>;

Words words_of(std::string_view text, const BertTextOptions& options = {}) {
  BertText cutter(options);
  Words words;
  cutter.words(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

const BertTextOptions kCasedText{.strip_accents = false, .lowercase = false};

TEST(BertText, CutsAtWhiteSpaceAndPunctuation) {
  EXPECT_EQ(words_of("Hello, World!  it's\t3.14\n"),
            (Words{"hello", ",", "world", "!", "it", "'", "s", "3", ".", "14"}));
  EXPECT_EQ(words_of("a\u3000b\u2028c\u00A0d"), (Words{"a", "b", "c", "d"}));
  EXPECT_EQ(words_of("\u00BFque?$^"), (Words{"\u00BF", "que", "?", "$", "^"}));
  EXPECT_EQ(words_of("a\u20ACb"), Words{"a\u20ACb"}) << "a currency sign is no punctuation";
  EXPECT_EQ(words_of(""), Words{});
}

TEST(BertText, CleansControlCharacters) {
  using namespace std::string_view_literals;
  EXPECT_EQ(words_of("a\0b\x7F\vc\u200Bd\uFFFD\u0085e\rf"sv), (Words{"abcde", "f"}));
  BertTextOptions as_it_is;
  as_it_is.clean_text = false;
  EXPECT_EQ(words_of("a\x01"
                     "b\vc"sv,
                     as_it_is),
            (Words{"a\x01"
                   "b",
                   "c"}));
}

TEST(BertText, ChineseCharactersAreWords) {
  EXPECT_EQ(words_of("ab\u4E2D\u56FDcd"), (Words{"ab", "\u4E2D", "\u56FD", "cd"}));
  EXPECT_EQ(words_of("\uF900"), Words{"\u8C48"}) << "NFD after the cut";
  EXPECT_EQ(words_of("\U0002B820x"), Words{"\U0002B820x"}) << "left out by the published ranges";
  EXPECT_EQ(words_of("\U0002B920x"), (Words{"\U0002B920", "x"}));
  EXPECT_EQ(words_of("\uAC00").front(), "\u1100\u1161") << "Hangul comes apart";
}

TEST(BertText, StripsAccentsAndLowers) {
  EXPECT_EQ(words_of("\u00C9t\u00C9 \u0130stanbul \u1E9E \u03A3\u0391\u03A3"),
            (Words{"ete", "istanbul", "\u00DF", "\u03C3\u03B1\u03C3"}));
  EXPECT_EQ(words_of("\u00C9t\u00C9 \u0130", kCasedText), (Words{"\u00C9t\u00C9", "\u0130"}));
  BertTextOptions lower_only;
  lower_only.strip_accents = false;
  EXPECT_EQ(words_of("\u0130\u00C9", lower_only), Words{"i\u0307\u00E9"});
}

/// Where the tables of today's Unicode differ from those of the tokenizers library.
TEST(BertText, ClassesCharactersAsTokenizersDoes) {
  EXPECT_EQ(bert_class(0x166D), BertClass::punctuation);
  EXPECT_EQ(bert_class(0x111C9), BertClass::punctuation);
  EXPECT_EQ(bert_class(0x2E5D), BertClass::word) << "a dash since Unicode 14";
  EXPECT_EQ(bert_class(0x8E2), BertClass::word) << "a format character since Unicode 9";
  EXPECT_EQ(bert_class(0xE000), BertClass::removed);
  EXPECT_TRUE(is_nonspacing_mark(0x1734));
  EXPECT_FALSE(is_nonspacing_mark(0x1ABF)) << "a mark since Unicode 13";
  EXPECT_EQ(words_of("\U00010D50"), Words{"\U00010D70"}) << "a letter of Unicode 16";
  EXPECT_EQ(words_of("\U00011938"), Words{"\U00011938"}) << "does not come apart";
}

TEST(BertText, OrdersMarksAcrossWhatCleaningRemoves) {
  // U+0F39 (216) stays in front of U+0F71 (129) unless both are put in order; U+0001 between them goes first.
  BertTextOptions marks;
  EXPECT_EQ(words_of("\U0001D165\x01\U0001D166x", marks), words_of("\U0001D165\U0001D166x", marks));
}

std::string nfc(std::string_view text) {
  std::string out;
  return std::string(composed(text, out));
}

TEST(UnicodeText, Composes) {
  EXPECT_EQ(nfc("plain"), "plain");
  EXPECT_EQ(nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(nfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(nfc("\uAC70\u11A7"), "\uAC70\u11A7") << "no final consonant";
  EXPECT_EQ(nfc("\uAC70\u11C2\u11A7\u0301"), "\uAC8B\u11A7\u0301");
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093C") << "excluded from composition";
  EXPECT_EQ(nfc("\u212B"), "\u00C5");
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930") << "composes since Unicode 13";
  EXPECT_EQ(nfc("e\u0899\u0301"), "e\u0899\u0301") << "nothing moves across a mark of Unicode 14";
}

TEST(UnicodeText, OrdersLongRunsOfMarksFast) {
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) text += "\u0301\u0323";
  const std::string ordered = nfc(text);  // quadratic: minutes
  EXPECT_TRUE(ordered.starts_with("\u1EA1\u0323"));
  EXPECT_TRUE(ordered.ends_with("\u0301"));
}

}  // namespace
}  // namespace megalith::tokenizer
