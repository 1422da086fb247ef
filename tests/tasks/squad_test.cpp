#include "megalith/tasks/squad.h"

#include "tests/tasks/task_files.h"

namespace megalith::tasks {
namespace {

class SquadFile : public TaskFiles {
 protected:
  /// A file of one paragraph with the context "The café of Ann." and these questions.
  io::Path paragraph(const std::string& questions) const {
    return file("dev.json", R"({"version": "v2.0", "data": [{"title": "T", "paragraphs": [{"qas": [)" + questions +
                                "], \"context\": \"The caf\xC3\xA9 of Ann.\"}]}]}");
  }
  std::string refusal(const std::string& questions, Task task = Task::squad2) const {
    const io::Path path = paragraph(questions);
    return refused([&] { read_squad(*fs_, path, task); });
  }
};

TEST_F(SquadFile, StartsCountCharactersAndRangesBytes) {
  const SquadSet set =
      read_squad(*fs_, paragraph(R"({"id": "a", "question": "Whose?", "is_impossible": false, "answers": [
        {"text": "Ann", "answer_start": 12}, {"text": "café", "answer_start": 4, "start_ambiguous": true}]},
        {"id": "b", "question": "Why?", "answers": [], "plausible_answers": [{"text": "x", "answer_start": 99}]})"),
                 Task::squad2);
  ASSERT_EQ(set.questions.size(), 2U);
  EXPECT_EQ(set.contexts, std::vector<std::string>{"The caf\xC3\xA9 of Ann."});
  const SquadQuestion& first = set.questions[0];
  EXPECT_EQ(first.id, "a");
  EXPECT_EQ(first.text, "Whose?");
  ASSERT_EQ(first.answers.size(), 2U);
  EXPECT_EQ(first.answers[0].range, (TextRange{13, 16}));
  EXPECT_FALSE(first.answers[0].is_ambiguous);
  EXPECT_EQ(first.answers[1].range, (TextRange{4, 9}));
  EXPECT_TRUE(first.answers[1].is_ambiguous);
  EXPECT_TRUE(set.questions[1].answers.empty());
}

TEST_F(SquadFile, PackedPartsOfTheDevelopmentSetsAreRead) {
  const SquadSet one = read_squad(*fs_, task_data("squad/squad1.json.xz"), Task::squad1);
  EXPECT_EQ(one.contexts.size(), 48U);
  EXPECT_EQ(one.questions.size(), 327U);
  const SquadSet two = read_squad(*fs_, task_data("squad/squad2.json.xz"), Task::squad2);
  EXPECT_EQ(two.contexts.size(), 35U);
  EXPECT_EQ(two.questions.size(), 412U);
  for (const SquadQuestion& question : one.questions) {
    for (const SquadAnswer& answer : question.answers)
      EXPECT_EQ(one.contexts[static_cast<std::size_t>(question.context)].substr(
                    static_cast<std::size_t>(answer.range.begin), static_cast<std::size_t>(answer.range.size())),
                answer.text);
  }
}

TEST_F(SquadFile, AllProblemsAreListed) {
  EXPECT_EQ(
      refusal(R"({"id": "a", "question": "q", "answers": [{"text": "Ann", "answer_start": 11}]},
                       {"id": "a", "question": "q", "answers": [{"text": "Bob", "answer_start": 0}]},
                       {"id": "c", "question": 3, "answers": []},
                       {"question": "q", "answers": []},
                       {"id": "e", "question": "q", "answers": [{"text": "Ann", "answer_start": -1}, {"text": "x"}]},
                       {"id": "f", "question": "q", "answers": {}}, 7)"),
      "[dev.json] 9 problems\n"
      "  [dev.json] data[0].paragraphs[0].qas[0].answers[0].text = \"Ann\": must stand in the context at "
      "answer_start = 11, id \"a\"; it stands at 12\n"
      "  [dev.json] data[0].paragraphs[0].qas[1].id = \"a\": must be unique; data[0].paragraphs[0].qas[0] has it, "
      "too\n"
      "  [dev.json] data[0].paragraphs[0].qas[1].answers[0].text = \"Bob\": must stand in the context at "
      "answer_start = 0, id \"a\"; it stands nowhere in it\n"
      "  [dev.json] data[0].paragraphs[0].qas[2].question = 3: must be a string\n"
      "  [dev.json] data[0].paragraphs[0].qas[3].id: is missing\n"
      "  [dev.json] data[0].paragraphs[0].qas[4].answers[0].answer_start = -1: must be a whole number from 0 on\n"
      "  [dev.json] data[0].paragraphs[0].qas[4].answers[1].answer_start: is missing\n"
      "  [dev.json] data[0].paragraphs[0].qas[5].answers: must be an array\n"
      "  [dev.json] data[0].paragraphs[0].qas[6] = 7: must be an object with \"id\"");
}

TEST_F(SquadFile, OneAnswersEveryQuestion) {
  const std::string none = R"({"id": "a", "question": "q", "answers": []})";
  EXPECT_EQ(refusal(none), "nothing is refused");
  EXPECT_EQ(refusal(none, Task::squad1),
            "[dev.json] data[0].paragraphs[0].qas[0].answers: is empty, id \"a\": SQuAD 1.1 answers every question; "
            "questions without an answer are for squad2");
}

TEST_F(SquadFile, AStartBeyondTheContextIsRefused) {
  EXPECT_EQ(
      refusal(R"({"id": "a", "question": "q", "answers": [{"text": "", "answer_start": 17}]})"),
      "[dev.json] data[0].paragraphs[0].qas[0].answers[0].text = \"\": must stand in the context at answer_start = "
      "17, id \"a\"; it stands at 0");
  EXPECT_EQ(refusal(R"({"id": "a", "question": "q", "answers": [{"text": "", "answer_start": 16}]})"),
            "nothing is refused");
}

TEST_F(SquadFile, OtherFilesAreRefused) {
  const auto refusal_of = [&](const std::string& contents) {
    const io::Path path = file("x.json", contents);
    return refused([&] { read_squad(*fs_, path, Task::squad2); });
  };
  EXPECT_EQ(refusal_of(""), "[x.json] is empty; is it the right file?");
  EXPECT_EQ(refusal_of(" \n"), "[x.json] is empty; is it the right file?");
  EXPECT_EQ(refusal_of("{}"), "[x.json] data: is missing");
  EXPECT_EQ(refusal_of("[1]"), "[x.json] the file: must be an object with \"data\"");
  EXPECT_EQ(refusal_of(R"({"data": []})"),
            "[x.json] has no questions: must be SQuAD's JSON, {\"data\": [{\"paragraphs\": [...]}]}");
  EXPECT_THAT(refusal_of("{\"data\": \"\xFF\"}"), ::testing::HasSubstr("[x.json] line 1, column"));
  EXPECT_THAT(refusal_of("{\"data\": [], \"data\": []}"), ::testing::HasSubstr("[x.json] line 1, column"));
  EXPECT_THAT(refused([&] { read_squad(*fs_, dir_ / "none.json", Task::squad2); }), ::testing::HasSubstr("none.json"));
}

}  // namespace
}  // namespace megalith::tasks
