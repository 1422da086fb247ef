#include "megalith/corpus/normal_words.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "tests/support/random_text.h"

namespace megalith::corpus {
namespace {

std::string joined(std::string_view text) {
  NormalWords words;
  words.read(text);
  return words.size() == 0 ? "" : std::string(words.joined(0, words.size()));
}

std::vector<std::uint64_t> hashes(std::string_view text) {
  NormalWords words;
  words.read(text);
  return words.hashes();
}

TEST(NormalWords, AreRunsOfLettersAndDigitsInLowerCase) {
  EXPECT_EQ(joined(""), "");
  EXPECT_EQ(joined(" ...\n"), "");
  EXPECT_EQ(joined("The  Cat,sat\n\non_the-mat2!"), "the cat sat on the mat2");
  EXPECT_EQ(joined("don't"), "don t");
  EXPECT_EQ(joined("\u201CCAF\u00C9\u201D \u00C4\u00D6\u00DC \u039F\u0394\u039F\u03A3 \u0416\u0423\u041A"),
            "caf\u00E9 \u00E4\u00F6\u00FC \u03BF\u03B4\u03BF\u03C3 \u0436\u0443\u043A");
  EXPECT_EQ(joined("\u65E5\u672C\u3001\u8A9E"), "\u65E5\u672C \u8A9E") << "no spaces needed";
  EXPECT_EQ(joined("x\u00B2 \u2163 \u0663\u00BD"), "x\u00B2 \u2173 \u0663\u00BD") << "digits of all kinds";
  EXPECT_EQ(joined("e\u0301t"), "e t") << "a combining mark is no letter";
  EXPECT_EQ(joined("\u023A"), "\u2C65") << "one byte longer in lower case";
  EXPECT_EQ(joined("a\u00A0b\u2028c\U0001F600d"), "a b c d");
}

TEST(NormalWords, JoinedGivesAnyRunOfWords) {
  NormalWords words;
  words.read("One, two; THREE four.");
  ASSERT_EQ(words.size(), 4u);
  EXPECT_EQ(words.joined(0, 1), "one");
  EXPECT_EQ(words.joined(1, 2), "two three");
  EXPECT_EQ(words.joined(3, 1), "four");
  words.read("less");
  EXPECT_EQ(words.joined(0, 1), "less");
}

TEST(NormalWords, HashesAreOfTheWordAlone) {
  EXPECT_EQ(hashes("the Longest_word the")[0], hashes("of THE")[1]);
  std::set<std::uint64_t> different;
  std::string word;
  for (int i = 0; i < 40; ++i) {
    word += 'a';
    different.insert(hashes(word + " b")[0]);
    different.insert(hashes(word + "1 b")[0]);
  }
  EXPECT_EQ(different.size(), 80u) << "every length has its own";
}

TEST(NormalWords, TakeAnyText) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = support::any_text(seed, 500);
    const std::string once = joined(text);
    EXPECT_EQ(joined(once), once) << "normal words are normal";
  }
}

TEST(Shingles, AreRunsOfWords) {
  const auto shingles = [](std::string_view text, std::size_t count) {
    std::vector<std::uint64_t> out;
    append_shingles(hashes(text), count, out);
    return out;
  };
  EXPECT_EQ(shingles("a b c d e f g", 5).size(), 3u);
  EXPECT_EQ(shingles("a b c", 5).size(), 1u) << "a shorter text is one shingle";
  EXPECT_EQ(shingles("", 5), shingles(" -- ", 5));
  EXPECT_NE(shingles("a b c", 5), shingles("c b a", 5)) << "order counts";
  EXPECT_NE(shingles("a b c", 5), shingles("a b", 5));
  const auto long_text = shingles("x a b c d e y a b c d e z", 5);
  EXPECT_EQ(long_text[1], long_text[7]) << "equal words have equal hashes wherever they stand";
  EXPECT_EQ(std::set<std::uint64_t>(long_text.begin(), long_text.end()).size(), 8u);
  std::vector<std::uint64_t> ngrams;
  append_ngrams(hashes("a b c"), 5, ngrams);
  EXPECT_TRUE(ngrams.empty());
  append_ngrams(hashes("x a b c d e y"), 5, ngrams);
  EXPECT_EQ(ngrams[1], long_text[1]);
}

TEST(Overlap, CountsWhatIsShared) {
  const auto count = [](std::vector<std::uint64_t> a, std::vector<std::uint64_t> b) {
    return overlap(a.data(), a.size(), b.data(), b.size());
  };
  EXPECT_EQ(count({1, 2, 3}, {2, 3, 4, 5}), (Overlap{2, 5}));
  EXPECT_EQ(count({}, {2, 3}), (Overlap{0, 2}));
  EXPECT_EQ(count({7}, {7}), (Overlap{1, 1}));
  EXPECT_EQ(count({1, 5, 9}, {2, 6, 10}), (Overlap{0, 6}));
}

}  // namespace
}  // namespace megalith::corpus
