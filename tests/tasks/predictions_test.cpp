#include "megalith/tasks/predictions.h"

#include "tests/tasks/task_files.h"

namespace megalith::tasks {
namespace {

class PredictionFile : public TaskFiles {
 protected:
  std::string refusal_of_texts(const std::string& contents) const {
    const io::Path path = file("pred.json", contents);
    return refused([&] { read_text_predictions(*fs_, path); });
  }
  std::string refusal_of_numbers(const std::string& contents) const {
    const io::Path path = file("na.json", contents);
    return refused([&] { read_no_answer_scores(*fs_, path); });
  }
  ClassPredictions classes(const std::string& contents, Task task = Task::mnli) const {
    return read_class_predictions(*fs_, file("pred.tsv", contents), task, 1 << 20);
  }
};

TEST_F(PredictionFile, TextsAreReadById) {
  EXPECT_EQ(read_text_predictions(*fs_, file("p.json", "{\"a\": \"x \\u00e9\", \"b\": \"\"}")),
            (TextPredictions{{"a", "x \xC3\xA9"}, {"b", ""}}));
}

TEST_F(PredictionFile, NumbersKeepTheOrderOfTheFile) {
  EXPECT_EQ(read_no_answer_scores(*fs_, file("na.json", "{\"b\": 0.25, \"a\": -3e2, \"c\": 4}")),
            (NoAnswerScores{{"b", 0.25}, {"a", -300}, {"c", 4}}));
}

TEST_F(PredictionFile, OtherJsonIsRefused) {
  EXPECT_EQ(refusal_of_texts("{\"a\": 1,\n \"b\": [\"x\", [2]],\n \"c\": null, \"d\": {\"e\": \"x\"}}"),
            "[pred.json] 4 problems\n"
            "  [pred.json:1] \"a\" = 1: must be a string, \"\" for no answer\n"
            "  [pred.json:2] \"b\" = an array: must be a string, \"\" for no answer\n"
            "  [pred.json:3] \"c\" = null: must be a string, \"\" for no answer\n"
            "  [pred.json:3] \"d\" = an object: must be a string, \"\" for no answer");
  EXPECT_EQ(refusal_of_texts("[\"a\"]"), "[pred.json:1] is an array: must be an object {\"ID\": \"TEXT\"}");
  EXPECT_EQ(refusal_of_texts("\"a\""), "[pred.json:1] is \"a\": must be an object {\"ID\": \"TEXT\"}");
  EXPECT_EQ(refusal_of_texts(""), "[pred.json] is empty; is it the right file?");
  EXPECT_THAT(refusal_of_texts("{\"a\": \"x\", \"a\": \"y\"}"), ::testing::HasSubstr("[pred.json] line 1, column"));
  EXPECT_EQ(refusal_of_numbers("{\"a\": \"x\", \"b\": true, \"c\": {}}"),
            "[na.json] 3 problems\n"
            "  [na.json:1] \"a\" = \"x\": must be a finite number\n"
            "  [na.json:1] \"b\" = true: must be a finite number\n"
            "  [na.json:1] \"c\" = an object: must be a finite number");
  EXPECT_THAT(refusal_of_numbers("{\"a\": 1e999}"), ::testing::HasSubstr("[na.json] line 1, column"));
}

TEST_F(PredictionFile, ClassesAreReadWithAndWithoutAFirstLine) {
  const ClassPredictions want = {{"7", 2}, {"9", 0}};
  EXPECT_EQ(classes("index\tprediction\n7\tcontradiction\r\n\n9\tentailment"), want);
  EXPECT_EQ(classes("7\tcontradiction\n9\tentailment\n"), want);
  EXPECT_EQ(classes("7\t1\n", Task::qqp), (ClassPredictions{{"7", 1}}));
}

TEST_F(PredictionFile, BadLinesAreListed) {
  EXPECT_EQ(refused([&] { classes("1\tneutral\n2\tmaybe\n1\tneutral\n3\n4\tneutral\tx\n5\t\xFF\n"); }),
            "[pred.tsv] 5 problems\n"
            "  [pred.tsv:2] prediction = \"maybe\": must be entailment, neutral or contradiction\n"
            "  [pred.tsv:3] index = \"1\": must be unique; an earlier line has it, too\n"
            "  [pred.tsv:4] has 1 columns: must be index, a tab and prediction\n"
            "  [pred.tsv:5] has 3 columns: must be index, a tab and prediction\n"
            "  [pred.tsv:6] byte 3 of the line: must be UTF-8");
  EXPECT_EQ(refused([&] { classes("1\tyes\n", Task::qqp); }), "[pred.tsv:1] prediction = \"yes\": must be 0 or 1");
}

TEST(Predictions, ThatLackIdsAreCounted) {
  const std::vector<std::string> ids = {"a", "b", "c", "d", "e"};
  const auto refusal = [&](const std::string& has) {
    return error_of<InputError>([&] {
      require_predictions("p.json", "dev.json", ids, [&](const std::string& id) { return has.find(id) != has.npos; });
    });
  };
  EXPECT_EQ(refusal("abcde"), "");
  EXPECT_EQ(refusal("acde"),
            "[p.json] prediction of 1 of 5 ids = missing (\"b\"): must be there for every id of dev.json");
  EXPECT_EQ(refusal("c"),
            "[p.json] prediction of 4 of 5 ids = missing (\"a\", \"b\", \"d\", ...): must be there for every id of "
            "dev.json");
}

}  // namespace
}  // namespace megalith::tasks
