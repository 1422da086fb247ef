#include "megalith/tasks/race.h"

#include "tests/tasks/task_files.h"

namespace megalith::tasks {
namespace {

std::string article(const std::string& id, const std::string& answers = R"(["A", "D"])") {
  return R"({"id": ")" + id + R"(", "article": "Text of )" + id +
         R"(.", "questions": ["Who?", "It is _ ."], "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]], "answers": )" +
         answers + "}\n";
}

class RaceFile : public TaskFiles {
 protected:
  RaceSet lines(const std::string& contents) const { return read_race(*fs_, file("dev.jsonl", contents), 1 << 20); }
  std::string refusal(const std::string& contents) const {
    return refused([&] { lines(contents); });
  }
};

TEST_F(RaceFile, LinesHaveAnArticleEach) {
  const RaceSet set = lines(article("middle1.txt") + "\n" + article("high2.txt") + article("sat0"));
  ASSERT_EQ(set.articles.size(), 3U);
  EXPECT_EQ(set.articles[0].level, RaceLevel::middle);
  EXPECT_EQ(set.articles[1].level, RaceLevel::high);
  EXPECT_EQ(set.articles[2].level, RaceLevel::none);
  EXPECT_EQ(set.articles[1].text, "Text of high2.txt.");
  ASSERT_EQ(set.questions.size(), 6U);
  EXPECT_EQ(set.questions[3].id, "high2.txt#1");
  EXPECT_EQ(set.questions[3].text, "It is _ .");
  EXPECT_EQ(set.questions[3].options[2], "g");
  EXPECT_EQ(set.questions[3].answer, 3);
  EXPECT_EQ(set.questions[3].article, 1);
}

TEST_F(RaceFile, FoldersHaveAFilePerArticle) {
  file("RACE/dev/high/10.txt", article("high10.txt"));
  file("RACE/dev/high/2.txt", article("2"));
  file("RACE/dev/middle/1.txt", article("middle1.txt"));
  file("RACE/dev/middle/notes.md", "no article");
  const RaceSet set = read_race(*fs_, dir_ / "RACE", 1 << 20);
  ASSERT_EQ(set.articles.size(), 3U);
  EXPECT_EQ(set.articles[1].id, "2");
  EXPECT_EQ(set.articles[1].level, RaceLevel::high) << "by its folder";
  EXPECT_EQ(set.articles[2].level, RaceLevel::middle);
  EXPECT_EQ(read_race(*fs_, dir_ / "RACE/dev/middle", 1 << 20).questions.size(), 2U);
}

TEST_F(RaceFile, AllProblemsAreListed) {
  EXPECT_EQ(
      refusal(article("high1", R"(["A", "E"])") + article("high1") + R"({"id": "x", "article": 1, "questions": []})" +
              "\n" + article("high3", R"(["F"])") +
              R"({"id": "h4", "article": "t", "questions": ["q"], "options": [["a", "b", "c"]], "answers": ["B"]})" +
              "\n[]\n"),
      "[dev.jsonl] 9 problems\n"
      "  [dev.jsonl:1] answers[1] = \"E\": must be A, B, C or D\n"
      "  [dev.jsonl:2] id = \"high1\": must be unique; [dev.jsonl:1] has it, too\n"
      "  [dev.jsonl:3] article: must be a string\n"
      "  [dev.jsonl:3] options: is missing\n"
      "  [dev.jsonl:3] answers: is missing\n"
      "  [dev.jsonl:4] questions, options, answers = 2, 2, 1: must be equally many\n"
      "  [dev.jsonl:4] answers[0] = \"F\": must be A, B, C or D\n"
      "  [dev.jsonl:5] options[0]: must be an array of 4 strings\n"
      "  [dev.jsonl:6] must be an object with id, article, questions, options and answers");
  EXPECT_THAT(refusal("{\"id\": \"\xFF\"}"), ::testing::HasSubstr("[dev.jsonl] line 1, column"));
  EXPECT_EQ(refusal(""), "[dev.jsonl] is empty; is it the right file?");
  file("empty/x.md", "");
  EXPECT_EQ(refused([&] { read_race(*fs_, dir_ / "empty", 1 << 20); }),
            "[empty] has no files NAME.txt: must be a folder of RACE, or a file of JSON lines");
}

TEST_F(RaceFile, PredictionsAreAnswersById) {
  const auto read = [&](const std::string& contents) {
    return read_race_predictions(*fs_, file("pred.jsonl", contents), 1 << 20);
  };
  EXPECT_EQ(read("{\"id\": \"high1\", \"answers\": [\"A\", \"C\"]}\n{\"id\": \"x\", \"answers\": []}"),
            (std::unordered_map<std::string, int>{{"high1#0", 0}, {"high1#1", 2}}));
  EXPECT_EQ(read(article("high1")).at("high1#1"), 3) << "a file of RACE is one of predictions";
  EXPECT_EQ(refused([&] {
              read("{\"id\": \"a\", \"answers\": [\"e\"]}\n{\"answers\": [\"A\"]}\n" + article("b") + article("b"));
            }),
            "[pred.jsonl] 3 problems\n"
            "  [pred.jsonl:1] answers[0] = \"e\": must be A, B, C or D\n"
            "  [pred.jsonl:2] id: is missing\n"
            "  [pred.jsonl:4] id = \"b\": must be unique; an earlier article has it, too");
}

TEST_F(RaceFile, LevelsAreCountedApart) {
  const RaceSet set = lines(article("middle1") + article("high1") + article("high2") + article("sat0"));
  const RaceScores scores = score_race(set, [](const RaceQuestion&) { return 3; });
  EXPECT_EQ(scores.middle.correct, 1);
  EXPECT_EQ(scores.middle.total, 2);
  EXPECT_EQ(scores.high.correct, 2);
  EXPECT_EQ(scores.high.total, 4);
  EXPECT_EQ(scores.all().correct, 4);
  EXPECT_EQ(scores.all().total, 8);
}

// Table 5 of Shoeybi et al. 2019: 91.8 and 88.6 percent of 1,436 and 3,498 questions are 89.5 of all 4,934. The mean of
// the two is 90.2.
TEST(RaceScore, AllCountsQuestions) {
  const RaceScores scores{
      .middle = {.correct = 1318, .total = 1436}, .high = {.correct = 3099, .total = 3498}, .none = {}};
  EXPECT_NEAR(100 * scores.middle.fraction(), 91.8, 0.05);
  EXPECT_NEAR(100 * scores.high.fraction(), 88.6, 0.05);
  EXPECT_EQ(scores.all().total, 4934);
  EXPECT_NEAR(100 * scores.all().fraction(), 89.5, 0.05);
}

}  // namespace
}  // namespace megalith::tasks
