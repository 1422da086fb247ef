#include "megalith/base/utf8.h"

#include <gtest/gtest.h>

#include "tests/support/random_text.h"

namespace megalith {
namespace {

TEST(Utf8, AcceptsAllOfUnicode) {
  const std::string text = support::any_text(1, 20000);
  EXPECT_EQ(valid_utf8_prefix(text), text.size());
  EXPECT_EQ(repair_utf8(text), text);
}

// Unicode 15, table 3-7: the edges of every row, and what lies just outside.
TEST(Utf8, AcceptsExactlyWellFormedText) {
  for (const char* good : {"", "abc", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xec\xbf\xbf", "\xed\x80\x80",
                           "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good)) << ::testing::PrintToString(good);
  }
  for (const char* bad : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xed\xbf\xbf", "\xe1\x80", "\xe1\x80\x41", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
                          "\xf5\x80\x80\x80", "\xff", "\xf1\x80\x80", "a\xf1\x80\x80\x41"}) {
    EXPECT_FALSE(is_utf8(bad)) << ::testing::PrintToString(bad);
  }
}

TEST(Utf8, StopsAtTheFirstBadByte) {
  using namespace std::string_view_literals;
  EXPECT_EQ(valid_utf8_prefix("abc\xFF"sv), 3u);
  EXPECT_EQ(valid_utf8_prefix("0123456789\x80 0123456789"sv), 10u);
  EXPECT_EQ(valid_utf8_prefix("\xC0\x80"sv), 0u) << "two bytes for U+0000";
  EXPECT_EQ(valid_utf8_prefix("\xE0\x9F\xBF"sv), 0u) << "three bytes for U+07FF";
  EXPECT_EQ(valid_utf8_prefix("\xED\xA0\x80"sv), 0u) << "a surrogate";
  EXPECT_EQ(valid_utf8_prefix("\xF4\x90\x80\x80"sv), 0u) << "above U+10FFFF";
  EXPECT_EQ(valid_utf8_prefix("x\xE2\x82"sv), 1u) << "cut short";
}

// The example of the Unicode Standard, table 3-8: maximal subparts.
TEST(Utf8, RepairsEachMaximalSubpart) {
  EXPECT_EQ(repair_utf8("a\xF1\x80\x80\xE1\x80\xC2"
                        "b\x80"
                        "c\x80\xBF"
                        "d"),
            "a\uFFFD\uFFFD\uFFFD"
            "b\uFFFD"
            "c\uFFFD\uFFFD"
            "d");
  EXPECT_EQ(repair_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                        "A"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
            "A");
}

TEST(Utf8, FindsTheCharacterThatIsNotComplete) {
  EXPECT_EQ(incomplete_utf8_tail(""), 0u);
  EXPECT_EQ(incomplete_utf8_tail("abc"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\xE2\x82\xAC"), 0u);
  EXPECT_EQ(incomplete_utf8_tail("a\xE2\x82"), 2u);
  EXPECT_EQ(incomplete_utf8_tail("a\xE2"), 1u);
  EXPECT_EQ(incomplete_utf8_tail("a\xF0\x9F\x98"), 3u);
  EXPECT_EQ(incomplete_utf8_tail("a\x98\x98\x98\x98"), 0u) << "these can no longer become a character";
  EXPECT_EQ(incomplete_utf8_tail("a\xE0\x80"), 0u) << "nor can this";
}

TEST(Utf8, AppendsCharactersOfEachLength) {
  using namespace std::string_view_literals;
  std::string text;
  for (const char32_t c :
       {U'\0', U'\x7F', U'\x80', U'\u07FF', U'\u0800', U'\uD7FF', U'\uE000', U'\uFFFF', U'\U00010000', U'\U0010FFFF'})
    append_utf8(c, text);
  EXPECT_EQ(text,
            "\0\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF"
            "\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"sv);
}

// The 25 characters with White_Space in the Unicode Character Database (PropList.txt).
TEST(Utf8, KnowsWhiteSpace) {
  for (const std::string_view space :
       {"\t",     "\n",     "\v",     "\f",     "\r",     " ",      "\u0085", "\u00A0", "\u1680",
        "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007", "\u2008",
        "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"})
    EXPECT_TRUE(ends_in_white_space(space, space.size())) << space;
  for (const std::string_view other : {"\u180E", "\u200B", "\uFEFF", "\u2060", "\u200C", "\u202E", "\u2027", "\u205E",
                                       "a", "\u00E0", "\u0105", "\u3001", "\u1F80"})
    EXPECT_FALSE(ends_in_white_space(other, other.size())) << other;
  EXPECT_FALSE(ends_in_white_space(" ", 0));
}

}  // namespace
}  // namespace megalith
