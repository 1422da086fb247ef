#include "megalith/tasks/ensemble.h"

#include <cmath>
#include <string>

#include "megalith/tasks/run_choice.h"

#include "tests/tasks/word_pieces.h"

namespace megalith::tasks {
namespace {

TEST(RunChoice, TheMedianIsARun) {
  EXPECT_EQ(median_run(std::vector<double>{0.7}), 0U);
  EXPECT_EQ(median_run(std::vector<double>{0.9, 0.1, 0.5, 0.3, 0.7}), 2U);
  EXPECT_EQ(median_run(std::vector<double>{0.9, 0.1, 0.5, 0.3}), 3U) << "the lower one of the middle two";
  EXPECT_EQ(median_run(std::vector<double>{0.2, 0.1}), 1U);
  EXPECT_EQ(median_run(std::vector<double>{0.5, 0.5, 0.5}), 1U) << "equal ones in their order";
  EXPECT_EQ(median_run(std::vector<double>{0.5, 0.5, 0.1, 0.5, 0.9}), 1U);
}

TEST(RunChoice, TheBestIsTheFirstOfTheHighest) {
  EXPECT_EQ(best_run(std::vector<double>{0.1, 0.7, 0.3, 0.7}), 1U);
  EXPECT_EQ(best_run(std::vector<double>{0.0}), 0U);
}

class EnsembleOf : public WordPieces {
 protected:
  std::unique_ptr<const TaskSet> open(Task task, const std::string& name, const std::string& contents) const {
    return open_task_set(*fs_, file(name, contents),
                         {.task = task, .seq_len = 12, .max_query = 3, .doc_stride = 3, .max_line = 1 << 16},
                         *tokenizer_, SampleUse::scoring);
  }
  std::unique_ptr<const TaskSet> pairs() const {
    return open(Task::mnli, "dev.jsonl",
                "{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": \"neutral\"}\n"
                "{\"sentence1\": \"c\", \"sentence2\": \"d\", \"label\": \"entailment\"}\n");
  }
};

TEST_F(EnsembleOf, IsTheMeanOfTheProbabilities) {
  const std::unique_ptr<const TaskSet> set = pairs();
  // Logits of two models for two samples: ln of probabilities, plus a number that the softmax takes away.
  const auto ln = [](double p, double shift) { return static_cast<float>(std::log(p) + shift); };
  Ensemble ensemble(*set);
  ensemble.add(std::vector{ln(0.6, 30), ln(0.3, 30), ln(0.1, 30), ln(0.2, 0), ln(0.2, 0), ln(0.6, 0)});
  ensemble.add(std::vector{ln(0.1, -90), ln(0.5, -90), ln(0.4, -90), ln(0.7, 2), ln(0.2, 2), ln(0.1, 2)});
  const std::vector<float> mean = ensemble.mean();
  const double want[] = {0.35, 0.4, 0.25, 0.45, 0.2, 0.35};
  ASSERT_EQ(mean.size(), std::size(want));
  for (std::size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(mean[i], want[i], 1e-5) << i;
  // The mean of the logits would choose class 0 of the first sample.
  const TaskPredictions predictions = set->predict(mean);
  EXPECT_EQ(predictions.classes.at("0"), 1);
  EXPECT_EQ(predictions.classes.at("1"), 0);
  EXPECT_EQ(deciding_score(Task::mnli, set->figures(predictions)), 1.0);
}

TEST_F(EnsembleOf, SumsTheScoresOfSpans) {
  const std::unique_ptr<const TaskSet> set =
      open(Task::squad1, "squad.json",
           R"({"version": "v", "data": [{"title": "t", "paragraphs": [{"context": "a b c d", "qas": [
            {"id": "q", "question": "who ?", "answers": [{"text": "b", "answer_start": 2}]}]}]}]})");
  ASSERT_EQ(set->count(), 1);
  // [CLS] who ? [SEP] a b c d [SEP]: first tokens, then last ones, of 12 places each.
  std::vector<float> one(24, -9), two(24, -9);
  one[4] = one[12 + 4] = 5;  // the first model: "a", then "b"
  one[5] = one[12 + 5] = 4;
  two[7] = two[12 + 7] = 5;  // the second one: "d", then "b"
  two[5] = two[12 + 5] = 4;
  Ensemble ensemble(*set);
  ensemble.add(one);
  ensemble.add(two);
  EXPECT_EQ(ensemble.mean()[5], 4);
  EXPECT_EQ(ensemble.mean()[4], -2);
  EXPECT_EQ(set->predict(ensemble.mean()).texts.at("q"), "b");
  EXPECT_EQ(set->predict(one).texts.at("q"), "a");
  EXPECT_EQ(deciding_score(Task::squad1, set->figures(set->predict(ensemble.mean()))), 100.0);
}

TEST_F(EnsembleOf, RefusesOtherSizes) {
  const std::unique_ptr<const TaskSet> set = pairs();
  Ensemble ensemble(*set);
  EXPECT_THROW(ensemble.mean(), InternalError);
  EXPECT_THROW(ensemble.add(std::vector<float>(5)), InternalError);
}

}  // namespace
}  // namespace megalith::tasks
