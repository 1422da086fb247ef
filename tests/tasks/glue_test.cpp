#include "megalith/tasks/glue.h"

#include "megalith/tasks/race.h"
#include "megalith/tasks/squad.h"

#include "tests/tasks/task_files.h"

namespace megalith::tasks {
namespace {

constexpr const char* kMnliHead =
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
    "sentence1\tsentence2\tlabel1\tgold_label\n";
constexpr const char* kQqpHead = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n";

std::string mnli_row(const std::string& index, const std::string& first, const std::string& second,
                     const std::string& label) {
  return index + "\t1\t1e\tfiction\t( a )\t( b )\t(ROOT a)\t(ROOT b)\t" + first + '\t' + second + "\tneutral\t" +
         label + '\n';
}

class GlueFile : public TaskFiles {
 protected:
  PairSet read(const std::string& name, const std::string& contents, Task task = Task::mnli,
               Labels labels = Labels::required) const {
    return read_pairs(*fs_, file(name, contents), task, labels, 4096);
  }
  std::string refusal(const std::string& name, const std::string& contents, Task task = Task::mnli) const {
    return refused([&] { read(name, contents, task); });
  }
};

void expect_example(const PairExample& example, const PairExample& want) {
  EXPECT_EQ(example.id, want.id);
  EXPECT_EQ(example.first, want.first);
  EXPECT_EQ(example.second, want.second);
  EXPECT_EQ(example.label, want.label);
}

TEST_F(GlueFile, MnliIsReadByItsColumns) {
  const PairSet set = read("train.tsv", kMnliHead + mnli_row("31", "\"A\" cat .", "B", "contradiction") +
                                            mnli_row("32", "C", "\xC3\xA9", "entailment"));
  ASSERT_EQ(set.examples.size(), 2U);
  expect_example(set.examples[0], {.id = "31", .first = "\"A\" cat .", .second = "B", .label = 2});
  expect_example(set.examples[1], {.id = "32", .first = "C", .second = "\xC3\xA9", .label = 0});
  EXPECT_EQ(set.left_out, 0);
}

TEST_F(GlueFile, QqpIsReadByItsColumns) {
  const PairSet set =
      read("dev.tsv", std::string(kQqpHead) + "7\t1\t2\tWhy?\tHow?\t0\r\n9\t1\t2\tA?\t\t1\r\n", Task::qqp);
  ASSERT_EQ(set.examples.size(), 2U);
  expect_example(set.examples[0], {.id = "7", .first = "Why?", .second = "How?", .label = 0});
  expect_example(set.examples[1], {.id = "9", .first = "A?", .second = "", .label = 1});
}

TEST_F(GlueFile, BrokenRowsAreCountedAndLeftOut) {
  const PairSet set =
      read("dev.tsv", std::string(kQqpHead) + "1\t1\t2\tWhy\n2\t1\t2\tWhy?\tHow?\t1\n3\t1\t2\tWhy?\tHow?\t1\t1\n",
           Task::qqp);
  ASSERT_EQ(set.examples.size(), 1U);
  EXPECT_EQ(set.examples[0].id, "2");
  EXPECT_EQ(set.left_out, 2);
  const PairSet undecided =
      read("dev2.tsv", kMnliHead + mnli_row("0", "a", "b", "-") + mnli_row("1", "a", "b", "neutral"));
  EXPECT_EQ(undecided.examples.size(), 1U);
  EXPECT_EQ(undecided.left_out, 1);
  EXPECT_EQ(undecided.undecided, 1);
  EXPECT_EQ(set.left_out_text(), "2 of 3 rows are left out: 2 with another number of columns than the first line");
  EXPECT_EQ(undecided.left_out_text(),
            "1 of 2 rows is left out: 1 with the label \"-\", on which annotators did not agree");
  const PairSet both = read("dev3.tsv", kMnliHead + mnli_row("0", "a", "b", "-") + "1\n" +
                                            mnli_row("2", "a", "b", "-") + mnli_row("3", "a", "b", "neutral"));
  EXPECT_EQ(both.left_out_text(),
            "3 of 4 rows are left out: 1 with another number of columns than the first line, 2 with the label \"-\", "
            "on which annotators did not agree");
  EXPECT_EQ(read("dev4.tsv", kMnliHead + mnli_row("3", "a", "b", "neutral")).left_out_text(), "");
  EXPECT_EQ(refusal("none.tsv", kMnliHead + mnli_row("0", "a", "b", "-") + mnli_row("1", "a", "b", "-")),
            "[none.tsv] has no example: no row has a label, all 2 have \"-\"; is it the right file?");
  EXPECT_EQ(refusal("few.tsv", kMnliHead + mnli_row("0", "a", "b", "-") + "1\n"),
            "[few.tsv] has no example: no row has a label, 1 have \"-\" and 1 are broken; is it the right file?");
  EXPECT_EQ(refusal("bad.tsv", std::string(kQqpHead) + "1\n2\n", Task::qqp),
            "[bad.tsv] has no example: all 2 rows are broken; is it the right file?");
}

TEST_F(GlueFile, JsonLinesHaveTheNamesOfBothForms) {
  const PairSet set = read("a.jsonl",
                           "{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": \"neutral\"}\n\n"
                           "{\"gold_label\": \"entailment\", \"hypothesis\": \"d\", \"premise\": \"c\", \"index\": 77, "
                           "\"genre\": {\"x\": 1}}\n");
  ASSERT_EQ(set.examples.size(), 2U);
  expect_example(set.examples[0], {.id = "0", .first = "a", .second = "b", .label = 1});
  expect_example(set.examples[1], {.id = "77", .first = "c", .second = "d", .label = 0});
  const PairSet qqp = read("q.jsonl",
                           "{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": 1}\n"
                           "{\"question1\": \"c\", \"question2\": \"d\", \"is_duplicate\": \"0\"}\n",
                           Task::qqp);
  EXPECT_EQ(qqp.examples[0].label, 1);
  EXPECT_EQ(qqp.examples[1].label, 0);
}

TEST_F(GlueFile, TestSetsHaveNoLabels) {
  const std::string test = "index\tsentence1\tsentence2\n0\ta\tb\n";
  const PairSet set = read("test.tsv", test, Task::mnli, Labels::optional);
  EXPECT_EQ(set.examples[0].label, -1);
  EXPECT_EQ(
      refusal("test.tsv", test),
      "[test.tsv:1] columns = 3: must name gold_label, as the first line of GLUE's MNLI does; JSON lines must end "
      "with .jsonl");
  const std::string lines = "{\"premise\": \"a\", \"hypothesis\": \"b\"}\n";
  EXPECT_EQ(read("test.jsonl", lines, Task::mnli, Labels::optional).examples[0].label, -1);
  EXPECT_EQ(refusal("test.jsonl", lines),
            "[test.jsonl:1] label: is missing; a line is {\"premise\": ..., \"hypothesis\": ..., \"label\": ...}");
}

TEST_F(GlueFile, AMissingMemberIsNamedAsItsLineWouldNameIt) {
  const auto missing = [&](const std::string& line, Task task = Task::mnli) {
    return refusal("a.jsonl", line + "\n", task);
  };
  const std::string form = "a line is {\"sentence1\": ..., \"sentence2\": ..., \"label\": ...}";
  EXPECT_EQ(missing(R"({"sentence1": "a", "sentense2": "b", "label": "neutral"})"),
            "[a.jsonl:1] sentence2: is missing (as \"sentense2\"?); " + form);
  EXPECT_EQ(missing(R"({"sentence1": "a", "label": "neutral"})"), "[a.jsonl:1] sentence2: is missing; " + form);
  EXPECT_EQ(missing(R"({"premis": "a", "hypothesis": "b", "label": "neutral"})"),
            "[a.jsonl:1] premise: is missing (as \"premis\"?); a line is {\"premise\": ..., \"hypothesis\": ..., "
            "\"label\": ...}");
  EXPECT_EQ(missing(R"({"sentence1": "a", "sentence2": "b", "gold_labl": "neutral"})"),
            "[a.jsonl:1] gold_label: is missing (as \"gold_labl\"?); a line is {\"sentence1\": ..., \"sentence2\": "
            "..., \"gold_label\": ...}");
  EXPECT_THAT(
      missing(R"({"question_1": "a", "question_2": "b", "label": 1})", Task::qqp),
      ::testing::AllOf(::testing::HasSubstr("question1: is missing (as \"question_1\"?); a line is {\"question1"),
                       ::testing::HasSubstr("question2: is missing (as \"question_")));
  EXPECT_THAT(missing(R"({"premis": "a", "hypothesi": "b", "label": "neutral"})"),
              ::testing::AllOf(::testing::HasSubstr("premise: is missing (as \"premis\"?)"),
                               ::testing::HasSubstr("hypothesis: is missing (as \"hypothesi\"?)")));
}

TEST_F(GlueFile, AMissingFileIsNamedByItsSetting) {
  for (const std::string setting : {"data.train", "--data"}) {
    const std::string want = "[" + setting + "] none.x: there is no such file";
    EXPECT_THAT(refused([&] { read_pairs(*fs_, dir_ / "none.x", Task::mnli, Labels::required, 4096, setting); }),
                ::testing::StartsWith(want));
    EXPECT_THAT(refused([&] { read_race(*fs_, dir_ / "none.x", 4096, setting); }), ::testing::StartsWith(want));
    EXPECT_THAT(refused([&] { read_squad(*fs_, dir_ / "none.x", Task::squad1, setting); }),
                ::testing::StartsWith(want));
  }
}

TEST_F(GlueFile, AllProblemsAreListed) {
  EXPECT_EQ(
      refusal("mnli_train.tsv", kMnliHead + mnli_row("1", "a", "b", "entail") + mnli_row("2", "a", "\xFF", "neutral") +
                                    mnli_row("3", "a", "b", "neutral") + mnli_row("3", "c", "d", "neutral")),
      "[mnli_train.tsv] 3 problems\n"
      "  [mnli_train.tsv:2] gold_label = \"entail\": must be entailment, neutral or contradiction\n"
      "  [mnli_train.tsv:3] byte 48 of the line: must be UTF-8; convert the file, as by iconv\n"
      "  [mnli_train.tsv:5] index = \"3\": must be unique; line 4 has it, too");
  EXPECT_EQ(
      refusal("q.tsv", "id\tquestion1\tquestion\tis_duplicates\n1\ta\tb\t0\n", Task::qqp),
      "[q.tsv:1] columns = 4: must name question2 (as \"question1\"?), is_duplicate (as \"is_duplicates\"?), as the "
      "first line of GLUE's QQP does; JSON lines must end with .jsonl");
  EXPECT_THAT(
      refusal("a.jsonl",
              "{\"sentence1\": 3, \"sentence2\": \"b\", \"label\": \"x\"}\n{\n"
              "{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": 0}\n"
              "{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": \"2\"}\n"),
      ::testing::AllOf(::testing::HasSubstr("[a.jsonl] 4 problems\n  [a.jsonl:1] sentence1: must be a string\n"),
                       ::testing::HasSubstr("\n  [a.jsonl] line 2, "),
                       ::testing::HasSubstr("\n  [a.jsonl:3] label: must be a string, a class by its name\n"),
                       ::testing::HasSubstr("\n  [a.jsonl:4] label = \"2\": must be entailment")));
}

TEST_F(GlueFile, EmptyFilesAndLongLinesAreRefused) {
  EXPECT_EQ(refusal("e.tsv", "\n \n"), "[e.tsv] is empty; is it the right file?");
  EXPECT_EQ(refusal("h.tsv", kMnliHead), "[h.tsv] has no example; is it the right file?");
  EXPECT_THAT(refusal("l.tsv", kMnliHead + mnli_row("1", std::string(5000, 'x'), "b", "neutral")),
              ::testing::HasSubstr("line 2 has over 4096 bytes"));
}

TEST_F(GlueFile, OnlyTheFirst20ProblemsAreListed) {
  std::string lines = kQqpHead;
  for (int i = 0; i < 25; ++i) lines += std::to_string(i) + "\t1\t2\ta\tb\tx\n";
  const std::string text = refusal("many.tsv", lines, Task::qqp);
  EXPECT_THAT(text, ::testing::StartsWith("[many.tsv] 25 problems\n"));
  EXPECT_THAT(text, ::testing::EndsWith("[many.tsv:21] is_duplicate = \"x\": must be 0 or 1\n  and 5 more"));
}

TEST_F(GlueFile, CorrectClassesAreCounted) {
  const PairSet set =
      read("q.tsv", std::string(kQqpHead) + "1\t1\t2\ta\tb\t0\n2\t1\t2\ta\tb\t1\n3\t1\t2\ta\tb\t1\n", Task::qqp);
  const Correct correct = count_correct(set, [](const PairExample& example) { return example.id == "3" ? 0 : 1; });
  EXPECT_EQ(correct.correct, 1);
  EXPECT_EQ(correct.total, 3);
  EXPECT_EQ(correct.fraction(), 1.0 / 3);
}

}  // namespace
}  // namespace megalith::tasks
