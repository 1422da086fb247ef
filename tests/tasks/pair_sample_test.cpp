#include "megalith/tasks/pair_sample.h"

#include <numeric>

#include "tests/tasks/word_pieces.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::tasks {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr FrameTokens kFrame{.cls = 2, .sep = 3, .pad = 0};

Ids numbers(std::int32_t from, Index count) {
  Ids ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), from);
  return ids;
}

TEST(PairSamples, AreFramedTypedAndPadded) {
  const PairSample sample = make_pair_sample(Ids{10, 11}, Ids{20}, kFrame, 9, Shortened::longer);
  EXPECT_EQ(sample.tokens, (Ids{2, 10, 11, 3, 20, 3, 0, 0, 0}));
  EXPECT_EQ(sample.types, (Ids{0, 0, 0, 0, 1, 1, 0, 0, 0}));
  EXPECT_EQ(sample.length, 6);
}

/// Removes tokens from the longer text one by one, of equally long ones from B.
std::pair<Index, Index> popped(Index a, Index b, Index room) {
  while (a + b > room) --(a > b ? a : b);
  return {a, b};
}

TEST(PairSamples, TheLongerTextLosesItsEnd) {
  for (Index a = 0; a < 14; ++a) {
    for (Index b = 0; b < 14; ++b) {
      for (Index seq_len = 8; seq_len < 13; ++seq_len) {
        const PairSample sample =
            make_pair_sample(numbers(100, a), numbers(200, b), kFrame, seq_len, Shortened::longer);
        const auto [kept_a, kept_b] = popped(a, b, seq_len - 3);
        Ids want = {2};
        for (const std::int32_t id : numbers(100, kept_a)) want.push_back(id);
        want.push_back(3);
        for (const std::int32_t id : numbers(200, kept_b)) want.push_back(id);
        want.push_back(3);
        EXPECT_EQ(sample.length, std::ssize(want));
        want.resize(static_cast<std::size_t>(seq_len), 0);
        EXPECT_EQ(sample.tokens, want) << a << ' ' << b << ' ' << seq_len;
      }
    }
  }
}

TEST(PairSamples, TheFirstTextLosesItsEnd) {
  EXPECT_EQ(make_pair_sample(numbers(10, 6), numbers(20, 3), kFrame, 8, Shortened::first).tokens,
            (Ids{2, 10, 11, 3, 20, 21, 22, 3}));
  EXPECT_EQ(make_pair_sample(numbers(10, 6), numbers(20, 9), kFrame, 8, Shortened::first).tokens,
            (Ids{2, 3, 20, 21, 22, 23, 24, 3}));
}

TEST(PairSamples, ShortSequencesAndOtherVocabulariesAreRefused) {
  EXPECT_EQ(error_of<ConfigError>([] { make_pair_sample(Ids{1}, Ids{1}, kFrame, 7, Shortened::first); }),
            "model.seq_len = 7: must be at least 8");
  EXPECT_THAT(error_of<ConfigError>([] { frame_tokens(*tokenizer::bytes()); }), ::testing::HasSubstr("[CLS]"));
}

class TaskSamples : public WordPieces {};

TEST_F(TaskSamples, SentencesOfAPair) {
  const PairExample example{.id = "0", .first = "Who?", .second = "Ann.", .label = 1};
  const PairSample sample = pair_sample(example, *tokenizer_, frame_tokens(*tokenizer_), 10);
  EXPECT_EQ(sample.tokens, (Ids{2, id("who"), id("?"), 3, id("ann"), id("."), 3, 0, 0, 0}));
}

TEST_F(TaskSamples, OptionsOfAQuestion) {
  RaceSet set{.articles = {{.id = "high1", .text = "the cafe of ann.", .level = RaceLevel::high}}, .questions = {}};
  RaceQuestion question{.id = "high1#0", .text = "who ?", .options = {"a", "b", "c", "d"}, .answer = 1, .article = 0};
  const FrameTokens frame = frame_tokens(*tokenizer_);
  const auto samples = race_samples(set, question, *tokenizer_, frame, {.seq_len = 11, .max_query = 3});
  EXPECT_EQ(samples[1].tokens,
            (Ids{2, id("the"), id("cafe"), id("of"), id("ann"), id("."), 3, id("who"), id("?"), id("b"), 3}));
  EXPECT_EQ(samples[3].tokens[9], id("d"));
  question.text = "a __ c";  // the option takes the place
  EXPECT_EQ(race_samples(set, question, *tokenizer_, frame, {.seq_len = 8, .max_query = 9})[3].tokens,
            (Ids{2, id("the"), id("cafe"), 3, id("a"), id("d"), id("c"), 3}));
  EXPECT_EQ(race_samples(set, question, *tokenizer_, frame, {.seq_len = 8, .max_query = 2})[3].tokens,
            (Ids{2, id("the"), id("cafe"), id("of"), 3, id("a"), id("d"), 3}));
}

}  // namespace
}  // namespace megalith::tasks
