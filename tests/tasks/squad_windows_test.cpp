#include "megalith/tasks/squad_windows.h"

#include "tests/tasks/word_pieces.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::tasks {
namespace {

using Ids = std::vector<std::int32_t>;

class TokenPlaces : public WordPieces {
 protected:
  std::vector<std::string> spelled(const std::string& text) const {
    const PlacedTokens placed = place_tokens(*tokenizer_, text);
    EXPECT_EQ(placed.ids, tokenizer_->encode(text)) << text;
    EXPECT_EQ(placed.ranges.size(), placed.ids.size());
    std::vector<std::string> parts;
    for (const TextRange& range : placed.ranges)
      parts.push_back(text.substr(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size())));
    return parts;
  }
};
using Parts = std::vector<std::string>;

TEST_F(TokenPlaces, AreThePartsOfTheText) {
  EXPECT_EQ(spelled("The  Unaffable (caf\xC3\xA9)."),
            (Parts{"The", "Un", "aff", "able", "(", "caf\xC3\xA9", ")", "."}));
  EXPECT_EQ(spelled(" cafe\xCC\x81-unaffs\n"), (Parts{"cafe\xCC\x81", "-", "un", "aff", "s"}))
      << "marks stay with their letter";
  EXPECT_EQ(spelled("(xyz) ann"), (Parts{"(", "xyz", ")", "ann"})) << "[UNK] is the whole word";
  EXPECT_EQ(spelled("ann\xC2\xA0of"), (Parts{"ann", "of"})) << "white space of Unicode is between tokens";
  EXPECT_EQ(spelled(""), Parts());
  EXPECT_EQ(spelled(" \t"), Parts());
}

TEST_F(TokenPlaces, OfBytesAndOfGpt2CoverTheText) {
  const std::string text = "It's  a caf\xC3\xA9 \xF0\x9F\x98\x80!";
  for (const auto& tokenizer : {tokenizer::bytes(), tokenizer::gpt2()}) {
    const PlacedTokens placed = place_tokens(*tokenizer, text);
    EXPECT_EQ(placed.ids, tokenizer->encode(text));
    ASSERT_EQ(placed.ranges.size(), placed.ids.size());
    Index end = 0;
    for (const TextRange& range : placed.ranges) {
      EXPECT_LE(range.begin, range.end);
      EXPECT_GE(range.end, end);
      end = range.end;
    }
    EXPECT_EQ(end, std::ssize(text));
  }
}

TEST(TokenPlacesOfSquad, AreThoseOfEveryAnswer) {
  const auto fs = io::posix_fs();
  const auto tokenizer =
      tokenizer::make_tokenizer("bert-uncased", io::Path(MEGALITH_TEST_DATA) / "../../share/bert-uncased", *fs);
  const SquadSet set = read_squad(*fs, task_data("squad/squad1.json.xz"), Task::squad1);
  const SquadWindows windows(set, *tokenizer, {.seq_len = 384, .max_query = 64, .doc_stride = 128});
  Index exact = 0, answers = 0;
  for (std::size_t q = 0; q < set.questions.size(); ++q) {
    const PlacedTokens& placed = windows.context_of(static_cast<Index>(q));
    EXPECT_EQ(placed.ids, tokenizer->encode(set.contexts[static_cast<std::size_t>(set.questions[q].context)]));
    for (const SquadAnswer& answer : set.questions[q].answers) {
      if (answer.is_ambiguous) continue;
      const auto has = [&](Index TextRange::*side, Index at) {
        return std::ranges::find(placed.ranges, at, side) != placed.ranges.end();
      };
      exact += has(&TextRange::begin, answer.range.begin) && has(&TextRange::end, answer.range.end) ? 1 : 0;
      ++answers;
    }
  }
  EXPECT_EQ(answers, 1011);
  EXPECT_EQ(exact, 1002) << "the other 9 are parts of words, as \"down\" of \"downward\"";
}

/// One question on a context of the letters a to h, one token each.
class LetterWindows : public WordPieces {
 protected:
  SquadWindows windows(const std::vector<SquadAnswer>& answers, const SquadWindowConfig& config) {
    set_ = {.contexts = {"a b c d e f g h"},
            .questions = {{.id = "q", .text = "who the ann?", .context = 0, .answers = answers}}};
    return {set_, *tokenizer_, config};
  }
  /// The answer of letters [first, last].
  static SquadAnswer answer(Index first, Index last) { return {.text = "", .range = {2 * first, 2 * last + 1}}; }
  Ids letters(Index first, Index count) const {
    Ids ids;
    for (Index i = first; i < first + count; ++i) ids.push_back(id(std::string(1, static_cast<char>('a' + i))));
    return ids;
  }
  static constexpr SquadWindowConfig kSmall{.seq_len = 9, .max_query = 2, .doc_stride = 3};

  SquadSet set_;
};

TEST_F(LetterWindows, CoverTheContextWithAStride) {
  const SquadWindows made = windows({}, kSmall);  // room for 4 letters
  ASSERT_EQ(made.windows().size(), 3U);
  const Index want[3][2] = {{0, 4}, {3, 4}, {6, 2}};
  for (Index w = 0; w < 3; ++w) {
    EXPECT_EQ(made.windows()[static_cast<std::size_t>(w)].first, want[w][0]);
    EXPECT_EQ(made.windows()[static_cast<std::size_t>(w)].count, want[w][1]);
    const PairSample sample = made.sample(w);
    Ids tokens = {2, id("who"), id("the"), 3};  // two tokens of the question
    for (const std::int32_t letter : letters(want[w][0], want[w][1])) tokens.push_back(letter);
    tokens.push_back(3);
    EXPECT_EQ(sample.length, std::ssize(tokens));
    tokens.resize(9, 0);
    EXPECT_EQ(sample.tokens, tokens);
    EXPECT_EQ(sample.types[3], 0);
    EXPECT_EQ(sample.types[4], 1);
  }
  EXPECT_EQ(made.windows_of(0), (TextRange{0, 3}));
  EXPECT_EQ(windows({}, {.seq_len = 512}).windows().size(), 1U);
}

TEST_F(LetterWindows, LabelsAreTokensOfAWholeAnswer) {
  const SquadWindows made = windows({answer(3, 4)}, kSmall);  // "d e": cut in the first window, not in the third
  EXPECT_EQ(made.label(0), (SpanLabel{0, 0}));
  EXPECT_EQ(made.label(1), (SpanLabel{4, 5}));
  EXPECT_EQ(made.label(2), (SpanLabel{0, 0}));
  EXPECT_EQ(windows({}, kSmall).label(1), (SpanLabel{0, 0})) << "no answer";
  EXPECT_EQ(windows({answer(7, 7)}, kSmall).label(2), (SpanLabel{5, 5}));
}

TEST_F(LetterWindows, PlacesThatAreNotKnownGiveNoLabel) {
  SquadAnswer unknown = answer(0, 0);
  unknown.is_ambiguous = true;
  EXPECT_EQ(windows({unknown}, kSmall).label(0), std::nullopt);
  EXPECT_EQ(windows({unknown, answer(1, 2)}, kSmall).label(0), (SpanLabel{5, 6}));
  const SquadAnswer empty{.text = "", .range = {2, 2}};
  EXPECT_EQ(windows({empty}, kSmall).label(0), std::nullopt) << "it is not the label of no answer";
  EXPECT_EQ(windows({empty, answer(1, 2)}, kSmall).label(0), (SpanLabel{5, 6}));
}

TEST_F(LetterWindows, AnAnswerWithinAWordTakesItsTokens) {
  set_ = {.contexts = {"of unaffable ann"},
          .questions = {{.id = "q", .text = "who", .context = 0, .answers = {{.text = "fa", .range = {7, 9}}}}}};
  const SquadWindows made(set_, *tokenizer_, {.seq_len = 16, .max_query = 4, .doc_stride = 4});
  // [CLS] who [SEP] of un ##aff ##able ann [SEP]: bytes 7 and 8 belong to ##aff and ##able.
  EXPECT_EQ(made.label(0), (SpanLabel{5, 6}));
}

TEST_F(LetterWindows, MostContextIsThatOfOneWindow) {
  const SquadWindows made = windows({}, kSmall);  // a-d, d-g, g-h
  const auto owner = [&](Index token) {
    std::vector<Index> owners;
    for (Index w = 0; w < 3; ++w) {
      const SquadWindow& window = made.windows()[static_cast<std::size_t>(w)];
      if (token >= window.first && token < window.first + window.count && made.has_most_context(w, token))
        owners.push_back(w);
    }
    return owners;
  };
  EXPECT_EQ(owner(0), std::vector<Index>{0});
  EXPECT_EQ(owner(3), std::vector<Index>{0}) << "at an end of both: the earlier one";
  EXPECT_EQ(owner(5), std::vector<Index>{1});
  EXPECT_EQ(owner(6), std::vector<Index>{1}) << "at an end of both: the larger one";
  EXPECT_EQ(owner(7), std::vector<Index>{2});
}

TEST_F(LetterWindows, SizesThatDoNotFitAreRefused) {
  EXPECT_EQ(
      error_of<ConfigError>([&] { windows({}, {.seq_len = 258, .max_query = 128, .doc_stride = 128}); }),
      "task.max_query, task.doc_stride = 128, 128: must be 1 or more, and with 3 tokens at most model.seq_len = 258 "
      "together");
  EXPECT_EQ(error_of<ConfigError>([&] { windows({}, {.seq_len = 259, .max_query = 128, .doc_stride = 128}); }), "");
}

}  // namespace
}  // namespace megalith::tasks
