#include "megalith/data/sentences.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/random_text.h"

namespace megalith::data {
namespace {

using SentenceList = std::vector<std::string>;

SentenceList sentences_of(std::string_view text) {
  SentenceList all;
  for_each_sentence(text, [&](std::string_view sentence) { all.emplace_back(sentence); });
  return all;
}

TEST(Sentences, EndAtMarksBeforeCapitalsDigitsAndQuotes) {
  EXPECT_EQ(sentences_of("One. Two!  Three?\nFour... 5 six. seven"),
            (SentenceList{"One.", "Two!", "Three?", "Four...", "5 six. seven"}));
  EXPECT_EQ(sentences_of("\"Stop!\" He ran. (So did I.) \u201CWhy?\u201D \u00C9mile asked."),
            (SentenceList{"\"Stop!\"", "He ran.", "(So did I.)", "\u201CWhy?\u201D", "\u00C9mile asked."}));
  EXPECT_EQ(sentences_of("\"Stop!\" he said. It was 3.14 or v1.2."),
            (SentenceList{"\"Stop!\" he said.", "It was 3.14 or v1.2."}));
  EXPECT_EQ(sentences_of("It was I. He knew."), (SentenceList{"It was I.", "He knew."}));
}

TEST(Sentences, DoNotEndAtAbbreviations) {
  for (const char* one : {"Mr. Smith and Dr. J. K. Jones met.", "The U.S. Army came.", "See e.g. Fig. 3 in Vol. 2.",
                          "On Jan. 5 he left.", "Messrs. A. Black and Co. London."})
    EXPECT_EQ(sentences_of(one), SentenceList{one});
  EXPECT_EQ(sentences_of("He is a dr. Then."), (SentenceList{"He is a dr.", "Then."})) << "the list keeps letter case";
  EXPECT_EQ(sentences_of("(by Mr.) Then."), (SentenceList{"(by Mr.)", "Then."}));
}

TEST(Sentences, EndAtBlankLinesAndHaveNoSpaceAround) {
  EXPECT_EQ(sentences_of("  CHAPTER I\n\nof the sea\n \n\n  and the land \n"),
            (SentenceList{"CHAPTER I", "of the sea", "and the land"}));
  EXPECT_EQ(sentences_of(" \n\n\t "), SentenceList{});
  EXPECT_EQ(sentences_of(""), SentenceList{});
}

// As the lines of a book do. A line that begins with a capital or a digit begins no sentence by that.
TEST(Sentences, WrapOverLines) {
  EXPECT_EQ(
      sentences_of("He went to\nLondon on\n5 May with \"the\nLady\" there. Then\r\nMary came\r\n(late)!\nAll\nsat."),
      (SentenceList{"He went to\nLondon on\n5 May with \"the\nLady\" there.", "Then\r\nMary came\r\n(late)!",
                    "All\nsat."}));
  EXPECT_EQ(sentences_of("the end\n \nThe next"), (SentenceList{"the end", "The next"}));
}

TEST(Sentences, AreTheSameOfATextThatIsCutWhereOneBegins) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::string text;
    const RandomSite site{.seed = seed};
    constexpr std::string_view kParts[] = {"Mr. ",    "A. ", "end. ",           "\n\n", "x", "No. ",
                                           "\u201D ", "5 ",  "\u00C9t\u00E9! ", "\"? ", " "};
    for (std::uint64_t i = 0; i < 60; ++i) text += kParts[site.word(i) % std::size(kParts)];
    const SentenceList whole = sentences_of(text);
    for (std::size_t from = 1; from < text.size(); from += 5) {
      const std::size_t cut = next_sentence(text, from);
      SentenceList parts = sentences_of(std::string_view(text).substr(0, cut));
      for (const std::string& sentence : sentences_of(std::string_view(text).substr(cut))) parts.push_back(sentence);
      ASSERT_EQ(parts, whole) << "seed " << seed << ", cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace megalith::data
