#include "megalith/eval/choice_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megalith::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> task_problems(std::string_view text) {
  Problems problems;
  const bool is_task = choice_task_named("eval.tasks", text, problems).has_value();
  EXPECT_EQ(is_task, problems.empty());
  return problems.lines();
}

std::string problem(std::string_view text, std::string_view rule) { return str("eval.tasks = ", text, ": ", rule); }

TEST(ChoiceTaskName, IsAFormAFileAndOptions) {
  Problems problems;
  const auto plain = choice_task_named("k", "hellaswag:d/hellaswag_val.jsonl", problems);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->file, "d/hellaswag_val.jsonl");
  EXPECT_EQ(plain->options.form, ChoiceForm::hellaswag);
  EXPECT_EQ(plain->options.shots, 0);
  EXPECT_EQ(plain->series(), "hellaswag/hellaswag_val");
  const auto shots = choice_task_named("k", "mmlu:d/a--b:c test.csv  --shots 5 --shots-data d/a dev.csv ", problems);
  ASSERT_TRUE(shots);
  EXPECT_EQ(shots->file, "d/a--b:c test.csv");
  EXPECT_EQ(shots->options.shots, 5);
  EXPECT_EQ(shots->options.shots_data, "d/a dev.csv");
  EXPECT_EQ(shots->series(), "mmlu/a--b:c test/5-shot");
  const auto labels = choice_task_named("k", "piqa:valid.jsonl --labels=l.lst --shots=0", problems);
  ASSERT_TRUE(labels);
  EXPECT_EQ(labels->options.labels, "l.lst");
  EXPECT_EQ(labels->series(), "piqa/valid");
  EXPECT_THAT(problems.lines(), IsEmpty());
}

TEST(ChoiceTaskName, AllThatIsWrongIsNamed) {
  constexpr const char* kForm = "must be FORM:FILE, and FORM one of choice, hellaswag, arc, piqa and mmlu";
  for (const char* text : {"", "choice", "choice:", "race:a.jsonl", " arc:a", "mmlu:  --labels"})
    EXPECT_EQ(task_problems(text).front(), problem(text, kForm));
  const char* const options = "arc:a.jsonl --shot 1 --shots --labels x --labels y --shots 2x --shots-data b";
  EXPECT_THAT(
      task_problems(options),
      ElementsAre(problem(options,
                          "--shot: is no option of a task: must be --shots N, --shots-data FILE or "
                          "--labels FILE"),
                  problem(options, "--shots: needs a value after it"), problem(options, "--labels: must be given once"),
                  problem(options, "--shots: must be given once")));
  for (const char* number : {"-1", "1001", "2x", "99999999999999999999"}) {
    const std::string text = str("arc:a --shots ", number);
    EXPECT_THAT(task_problems(text),
                ElementsAre(problem(text, str("--shots ", number, ": must be a whole number from 0 to 1000"))));
  }
  const char* const rules = "arc:a.jsonl --labels l --shots 0 --shots-data a.jsonl";
  EXPECT_THAT(task_problems(rules),
              ElementsAre(problem(rules, "--labels = l: is for questions of piqa; leave it away"),
                          problem(rules, "--shots-data = a.jsonl: needs --shots N, the number of examples"),
                          problem(rules,
                                  "--shots-data = a.jsonl: is the file of the questions: must be another file, or a "
                                  "question would be its own example")));
  EXPECT_THAT(task_problems("arc:a --shots 3"),
              ElementsAre(problem("arc:a --shots 3", "--shots = 3: needs --shots-data FILE with the examples")));
}

}  // namespace
}  // namespace megalith::eval
