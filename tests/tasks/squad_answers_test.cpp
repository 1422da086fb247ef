#include "megalith/tasks/squad_answers.h"

#include <cmath>

#include "tests/tasks/word_pieces.h"

namespace megalith::tasks {
namespace {

/// Logits of one window or more, by hand: 0 but where they are set.
class SpanAnswers : public WordPieces {
 protected:
  SpanAnswers() {
    set_ = {.contexts = {"The Caf\xC3\xA9 (of  Ann) a b c"},
            .questions = {{.id = "q", .text = "who", .context = 0, .answers = {}}}};
  }
  /// [CLS] who [SEP] The Café ( of Ann ) a b c [SEP]: context token i is at place i + 3.
  void make(const SquadWindowConfig& config = {.seq_len = 16, .max_query = 4, .doc_stride = 4}) {
    windows_.emplace(set_, *tokenizer_, config);
    const std::size_t count = windows_->windows().size();
    start_.assign(count, std::vector<float>(static_cast<std::size_t>(config.seq_len), 0));
    end_ = start_;
  }
  SquadPrediction answer(const SquadAnswerConfig& config = {}) const {
    return answer_question(*windows_, 0, config, [&](Index w) {
      return SpanLogits{start_[static_cast<std::size_t>(w)], end_[static_cast<std::size_t>(w)]};
    });
  }

  SquadSet set_;
  std::optional<SquadWindows> windows_;
  std::vector<std::vector<float>> start_, end_;  // by window
};

TEST_F(SpanAnswers, AreSpelledAsTheText) {
  make();
  start_[0][4] = 5;
  end_[0][7] = 5;
  const SquadPrediction prediction = answer();
  EXPECT_EQ(prediction.text, "Caf\xC3\xA9 (of  Ann");
  EXPECT_EQ(prediction.n_best[0].range, (TextRange{4, 18}));
  EXPECT_EQ(prediction.n_best[0].score, 10);
}

TEST_F(SpanAnswers, EndNotBeforeTheyBegin) {
  make();
  start_[0][7] = 5;
  end_[0][4] = 5;
  const std::string text = answer().text;
  EXPECT_TRUE(text == "The Caf\xC3\xA9" || text == "Ann") << text;
}

TEST_F(SpanAnswers, AreNeverOfTheQuestionOrTheFrame) {
  make();
  start_[0][0] = start_[0][1] = start_[0][2] = end_[0][1] = end_[0][12] = 50;
  start_[0][6] = end_[0][7] = 1;
  EXPECT_EQ(answer().text, "of  Ann");
}

TEST_F(SpanAnswers, HaveAtMostSoManyTokens) {
  make();
  start_[0][3] = 5;
  end_[0][11] = 5;
  EXPECT_EQ(answer({.max_tokens = 9}).text, set_.contexts[0]);
  EXPECT_NE(answer({.max_tokens = 8}).text, set_.contexts[0]);
}

TEST_F(SpanAnswers, AreTheBestWithDifferentTexts) {
  set_.contexts[0] = "a b a b";
  make();
  start_[0][3] = 3;
  start_[0][5] = 2.5;
  end_[0][4] = 3;
  end_[0][6] = 2.75;
  const SquadPrediction prediction = answer({.n_best = 3});
  ASSERT_EQ(prediction.n_best.size(), 3U);
  EXPECT_EQ(prediction.n_best[0].text, "a b");
  EXPECT_EQ(prediction.n_best[0].range, (TextRange{0, 3})) << "the second \"a b\" has 5.25";
  EXPECT_EQ(prediction.n_best[1].text, "a b a b");
  EXPECT_EQ(prediction.n_best[1].score, 5.75);
  double sum = 0;
  for (const SpanAnswer& one : prediction.n_best) {
    EXPECT_NEAR(one.probability / prediction.n_best[0].probability, std::exp(one.score - 6), 1e-12);
    sum += one.probability;
  }
  EXPECT_NEAR(sum, 1, 1e-12);
}

TEST_F(SpanAnswers, TakeTheBestPlacesOfAWindowOnly) {
  make();
  start_[0][3] = 4;
  start_[0][9] = 3;  // "a", the second best first token
  end_[0][9] = 2;
  end_[0][5] = 3;
  const SquadPrediction prediction = answer({.n_best = 1});
  EXPECT_EQ(prediction.text, "The Caf\xC3\xA9 (");
  EXPECT_EQ(prediction.n_best.size(), 1U);
  start_[0][9] = 4.5;  // the best first token lies after the best last one
  EXPECT_EQ(answer({.n_best = 1}).text, "");
  EXPECT_EQ(answer({.n_best = 2}).text, "The Caf\xC3\xA9 (");
}

TEST_F(SpanAnswers, BeginWhereTheirWindowHasTheMostContext) {
  set_.contexts[0] = "a b c d e f g h";
  make({.seq_len = 8, .max_query = 1, .doc_stride = 3});  // a-d, d-g, g-h; place of the first token 3
  ASSERT_EQ(windows_->windows().size(), 3U);
  start_[1][3] = end_[1][3] = 9;  // d, which is the first window's
  start_[0][6] = end_[0][6] = 4;  // d
  start_[2][4] = end_[2][4] = 2;  // h
  const SquadPrediction prediction = answer();
  EXPECT_EQ(prediction.text, "d");
  EXPECT_EQ(prediction.n_best[0].score, 8);
  start_[0][6] = end_[0][6] = 0;
  EXPECT_EQ(answer().n_best[0].text, "h") << "of the third window";
}

TEST_F(SpanAnswers, NoneIsWeighedAgainstTheBest) {
  set_.contexts[0] = "a b c d e f g h";
  make({.seq_len = 8, .max_query = 1, .doc_stride = 3});
  start_[0][3] = end_[0][3] = 2;
  for (std::size_t w = 0; w < 3; ++w) start_[w][0] = end_[w][0] = 3 + static_cast<float>(w);
  const SquadAnswerConfig two{.task = Task::squad2};
  SquadPrediction prediction = answer(two);
  EXPECT_EQ(prediction.no_answer_score, 2) << "the lowest [CLS], 6, less 4";
  EXPECT_EQ(prediction.text, "");
  EXPECT_EQ(prediction.n_best[0].text, "");
  EXPECT_EQ(prediction.n_best[0].score, 6);
  EXPECT_EQ(prediction.n_best[1].text, "a");
  EXPECT_EQ(answer({.task = Task::squad2, .no_answer_threshold = 2}).text, "a") << "2 is not above 2";
  EXPECT_EQ(answer().text, "a") << "squad1 always answers";
  EXPECT_EQ(answer().n_best[0].text, "a");
  start_[1][0] = -9;
  prediction = answer({.task = Task::squad2, .n_best = 2});
  EXPECT_EQ(prediction.no_answer_score, -5 - 4);
  EXPECT_EQ(prediction.text, "a");
  ASSERT_EQ(prediction.n_best.size(), 2U);
  EXPECT_EQ(prediction.n_best[1].text, "") << "it stays among those that are kept";
}

}  // namespace
}  // namespace megalith::tasks
