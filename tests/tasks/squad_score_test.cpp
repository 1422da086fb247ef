#include "megalith/tasks/squad_score.h"

#include <nlohmann/json.hpp>

#include "tests/tasks/task_files.h"

namespace megalith::tasks {
namespace {

using nlohmann::json;

/// Questions q0, q1, ... with these answers.
SquadSet set_of(const std::vector<std::vector<std::string>>& answers) {
  SquadSet set{.contexts = {""}, .questions = {}};
  for (const auto& texts : answers) {
    SquadQuestion question{.id = "q" + std::to_string(set.questions.size()), .text = "", .context = 0, .answers = {}};
    for (const std::string& text : texts) question.answers.push_back({.text = text, .range = {}});
    set.questions.push_back(question);
  }
  return set;
}
TextPredictions predictions_of(const std::vector<std::string>& texts) {
  TextPredictions predictions;
  for (std::size_t i = 0; i < texts.size(); ++i) predictions["q" + std::to_string(i)] = texts[i];
  return predictions;
}
SquadScores scores(Task task, const std::vector<std::vector<std::string>>& answers,
                   const std::vector<std::string>& predictions, const NoAnswerScores& no_answer = {}) {
  return score_squad(set_of(answers), task, predictions_of(predictions), no_answer);
}

void expect_part(const SquadPart& part, const json& want, const std::string& prefix) {
  EXPECT_EQ(part.exact, want.at(prefix + "exact").get<double>()) << prefix;
  EXPECT_EQ(part.f1, want.at(prefix + "f1").get<double>()) << prefix;
  EXPECT_EQ(part.total, want.at(prefix + "total").get<Index>()) << prefix;
}

class SquadScoreFiles : public TaskFiles {};

// tests/reference/squad_scores.py, which shares no code with the scorer, on the same files: equal in every bit.
TEST_F(SquadScoreFiles, MadeUpPredictionsScoreAsByTheReferenceScript) {
  const json one = json::parse(read_all(task_data("squad/squad1.scores.json")));
  const SquadScores first = score_squad(read_squad(*fs_, task_data("squad/squad1.json.xz"), Task::squad1), Task::squad1,
                                        read_text_predictions(*fs_, task_data("squad/squad1.pred.json.xz")));
  expect_part(first.all, one, "");
  EXPECT_FALSE(first.has_answer);
  EXPECT_FALSE(first.best_exact);

  const json two = json::parse(read_all(task_data("squad/squad2.scores.json")));
  const SquadScores second =
      score_squad(read_squad(*fs_, task_data("squad/squad2.json.xz"), Task::squad2), Task::squad2,
                  read_text_predictions(*fs_, task_data("squad/squad2.pred.json.xz")),
                  read_no_answer_scores(*fs_, task_data("squad/squad2.na.json.xz")));
  expect_part(second.all, two, "");
  expect_part(second.has_answer.value(), two, "HasAns_");
  expect_part(second.no_answer.value(), two, "NoAns_");
  EXPECT_EQ(second.best_exact.value().score, two.at("best_exact").get<double>());
  EXPECT_EQ(second.best_exact->threshold, two.at("best_exact_thresh").get<double>());
  EXPECT_EQ(second.best_f1.value().score, two.at("best_f1").get<double>());
  EXPECT_EQ(second.best_f1->threshold, two.at("best_f1_thresh").get<double>());
}

TEST_F(SquadScoreFiles, TheFirstAnswersScore100AndNoneTheShareWithoutAnswer) {
  for (const auto& [task, name] :
       {std::pair{Task::squad1, "squad/squad1.json.xz"}, {Task::squad2, "squad/squad2.json.xz"}}) {
    const SquadSet set = read_squad(*fs_, task_data(name), task);
    TextPredictions first, none;
    for (const SquadQuestion& question : set.questions) {
      first[question.id] = question.answers.empty() ? "" : question.answers[0].text;
      none[question.id] = "";
    }
    const SquadScores best = score_squad(set, task, first), empty = score_squad(set, task, none);
    EXPECT_EQ(best.all.exact, 100);
    EXPECT_EQ(best.all.f1, 100);
    EXPECT_EQ(empty.all.exact, task == Task::squad1 ? 0 : 100.0 * 198 / 412);
    EXPECT_EQ(empty.all.f1, empty.all.exact);
  }
}

TEST(SquadScore, F1IsThatOfMultisets) {
  EXPECT_EQ(word_f1(Task::squad1, "x y y", "y x z y"), 6.0 / 7.0);
  EXPECT_EQ(word_f1(Task::squad1, "x x", "x"), 2.0 / 3.0);
  EXPECT_EQ(word_f1(Task::squad1, "x", "y"), 0);
  EXPECT_EQ(word_f1(Task::squad1, "the x", "X."), 1);
  EXPECT_EQ(exact_match("the x", "X."), 1);
  EXPECT_EQ(exact_match("x", "xy"), 0);
}

TEST(SquadScore, TheOfficialScriptsDifferWhereNoWordsRemain) {
  EXPECT_EQ(exact_match("the", "..."), 1);
  EXPECT_EQ(word_f1(Task::squad1, "the", "..."), 0);
  EXPECT_EQ(word_f1(Task::squad2, "the", "..."), 1);
  EXPECT_EQ(word_f1(Task::squad2, "the", "x"), 0);
  // Of several answers 2.0 drops those without words: "" is then no answer to this question.
  EXPECT_EQ(scores(Task::squad1, {{"the", "x"}}, {""}).all.exact, 100);
  EXPECT_EQ(scores(Task::squad2, {{"the", "x"}}, {""}).all.exact, 0);
  // If none has words, "" is right, and the question still counts among those with an answer.
  const SquadScores no_words = scores(Task::squad2, {{"the"}, {}}, {"", "x"});
  EXPECT_EQ(no_words.has_answer.value().exact, 100);
  EXPECT_EQ(no_words.has_answer->f1, 100);
  EXPECT_EQ(no_words.no_answer.value().exact, 0);
  EXPECT_EQ(no_words.all.total, 2);
}

TEST(SquadScore, TheBestOfSeveralAnswersCounts) {
  const SquadPart part = scores(Task::squad1, {{"x y", "y z", "w"}}, {"z y"}).all;
  EXPECT_EQ(part.exact, 0);
  EXPECT_EQ(part.f1, 100);
}

TEST(SquadScore, PartsThatHaveNoQuestionAreMissing) {
  EXPECT_FALSE(scores(Task::squad2, {{"x"}}, {"x"}).no_answer);
  EXPECT_FALSE(scores(Task::squad2, {{}}, {"x"}).has_answer);
}

TEST(SquadScore, AThresholdAboveOneAppliesToTheFigures) {
  const std::vector<std::vector<std::string>> answers = {{"x"}, {}, {"y"}};
  const SquadPart part = scores(Task::squad2, answers, {"x", "x", "y"}, {{"q0", 1.5}, {"q1", 0.5}, {"q2", 1.0}}).all;
  EXPECT_EQ(part.exact, 100.0 / 3) << "q0 becomes \"\", q2 stays: 1 is not above 1";
}

TEST(SquadScore, BestThresholdsTakeTheOrderOfTheFileForEqualNumbers) {
  const std::vector<std::vector<std::string>> answers = {{"x"}, {}};
  const std::vector<std::string> given = {"x", "z"};
  // With q0 first the score of the threshold rises to 2 of 2 before q1 lowers it.
  const auto best = [&](const NoAnswerScores& no_answer) {
    return scores(Task::squad2, answers, given, no_answer).best_exact.value();
  };
  EXPECT_EQ(best({{"q0", 0.25}, {"q1", 0.25}}).score, 100);
  EXPECT_EQ(best({{"q0", 0.25}, {"q1", 0.25}}).threshold, 0.25);
  EXPECT_EQ(best({{"q1", 0.25}, {"q0", 0.25}}).score, 50);
  EXPECT_EQ(best({{"q1", 0.25}, {"q0", 0.25}}).threshold, 0);
  EXPECT_EQ(best({{"other", -1}, {"q0", -0.5}, {"q1", 9}}).threshold, -0.5);
}

}  // namespace
}  // namespace megalith::tasks
