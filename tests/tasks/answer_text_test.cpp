#include "megalith/tasks/answer_text.h"

#include <gtest/gtest.h>

namespace megalith::tasks {
namespace {

struct NormalCase {
  const char *text, *normal;
};

// What Python 3.11 gives for normalize_answer() of the official scripts.
constexpr NormalCase kNormalCases[] = {
    {"", ""},
    {"The Norman conquest of an England", "norman conquest of england"},
    {"  a\tB \n c ", "b c"},
    {"...", ""},
    {"A. An? The!", ""},
    {"the-end", "theend"},  // punctuation goes before articles are looked for
    {"a_b the_", "ab"},     // the underscore is punctuation
    {"panthea the anthem", "panthea anthem"},
    {"10th, and 11th centuries", "10th and 11th centuries"},
    {"\xE2\x80\x9Cthe\xE2\x80\x9D", "\xE2\x80\x9C \xE2\x80\x9D"},  // other quotation marks stay, and end words
    {"\xE2\x80\x9Cthe end\xE2\x80\x9D", "\xE2\x80\x9C end\xE2\x80\x9D"},
    {"the\xCC\x81 x", "\xCC\x81 x"},  // a mark is no part of a word
    {"a\xCC\x81", "\xCC\x81"},
    {"th\xC3\xA9 \xC3\x81", "th\xC3\xA9 \xC3\xA1"},
    {"x\xC2\xA0y\xE3\x80\x80z\xE2\x80\xA8w\x1C"
     "v\xC2\x85u",
     "x y z w v u"},                                               // white space of Unicode, and U+001C, U+0085
    {"\xE2\x80\x8Bthe\xE2\x80\x8B", "\xE2\x80\x8B \xE2\x80\x8B"},  // U+200B is no white space
    {"\xCE\xA3\xCE\x91\xCE\xA3", "\xCF\x83\xCE\xB1\xCF\x82"},      // the last sigma is a final one
    {"\xCE\x91'\xCE\xA3. \xCE\xA3",
     "\xCE\xB1\xCF\x82 \xCF\x83"},            // marks within words are passed over; one alone is none
    {"\xC4\xB0stanbul", "i\xCC\x87stanbul"},  // U+0130 becomes two characters
    {"a\xE2\x91\xA0 \xE2\x85\xA3", "a\xE2\x91\xA0 \xE2\x85\xB3"},  // other digits belong to words
    {"\xE4\xB8\xAD"
     "a\xE6\x96\x87",
     "\xE4\xB8\xAD"
     "a\xE6\x96\x87"},
};

TEST(AnswerText, IsNormalizedAsByTheOfficialScripts) {
  for (const auto& [text, normal] : kNormalCases) EXPECT_EQ(normalized_answer(text), normal) << text;
}

TEST(AnswerText, WordsAreBetweenSingleSpaces) {
  EXPECT_TRUE(words_of("").empty());
  EXPECT_EQ(words_of("one"), (std::vector<std::string_view>{"one"}));
  EXPECT_EQ(words_of("one two one"), (std::vector<std::string_view>{"one", "two", "one"}));
}

}  // namespace
}  // namespace megalith::tasks
