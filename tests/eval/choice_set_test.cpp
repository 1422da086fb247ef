#include "megalith/eval/choice_set.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tokenizer/tokenizers.h"

namespace megalith::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tokenizer::bytes;

std::vector<ChoiceQuestion> questions_of(ChoiceForm form, const std::string& text, const std::string& labels = "") {
  EvalSet set;
  auto questions = read_choice_questions(
      form, {.data = {text, "d/high_school_biology_test.csv"}, .labels = {labels, labels.empty() ? "" : "l.lst"}}, set);
  EXPECT_THAT(set.problems, IsEmpty());
  return questions;
}

std::vector<std::string> choice_problems(ChoiceForm form, const std::string& text, const std::string& labels = "") {
  return choice_set(form, {.data = {text, "f"}, .labels = {labels, labels.empty() ? "" : "l"}}, *bytes(), 64).problems;
}

// What Python gives for preprocess() of the harness's hellaswag.
TEST(ChoiceFile, HellaswagIsCleanedAsByTheHarness) {
  EXPECT_EQ(clean_hellaswag(" a [title] b [step] c \n"), "a. b c");
  EXPECT_EQ(clean_hellaswag("[title] a"), " a");
  EXPECT_EQ(clean_hellaswag("a   b    c"), "a  b  c") << "each pair of spaces becomes one, once";
  EXPECT_EQ(clean_hellaswag("a [b\nc] d [e] f]"), "a [b\nc] d f]") << "a bracket ends in its line";
  EXPECT_EQ(clean_hellaswag("[[a] b"), " b");
  EXPECT_EQ(clean_hellaswag("a ["), "a [");
  EXPECT_EQ(clean_hellaswag("\u00a0\u2003a\x1c"), "a") << "white space as of str.strip()";
}

TEST(ChoiceFile, PromptsAreThoseOfTheHarness) {
  const auto hellaswag = questions_of(ChoiceForm::hellaswag,
                                      "{\"activity_label\": \"Roof\", \"ctx_a\": \"A man.\", \"ctx_b\": \"he \\u00c9 "
                                      "X\", \"endings\": [\"a [b] c\", \"d\"], \"label\": \"1\"}\n\n");
  ASSERT_EQ(hellaswag.size(), 1u);
  EXPECT_EQ(hellaswag[0].prompt, "Roof: A man. He \u00e9 x");
  EXPECT_THAT(hellaswag[0].choices, ElementsAre("a c", "d"));
  EXPECT_EQ(hellaswag[0].answer, 1u);
  const auto arc = questions_of(ChoiceForm::arc,
                                "{\"question\": {\"stem\": \"Q?\", \"choices\": [{\"text\": \"x\", \"label\": \"1\"}, "
                                "{\"text\": \"y\", \"label\": \"2\"}]}, \"answerKey\": \"2\"}\n"
                                "{\"question\": \"Q?\", \"choices\": {\"text\": [\"x\", \"y\"], \"label\": [\"A\", "
                                "\"B\"]}, \"answerKey\": \"B\"}");
  ASSERT_EQ(arc.size(), 2u);
  for (const ChoiceQuestion& question : arc) {
    EXPECT_EQ(question.prompt, "Question: Q?\nAnswer:");
    EXPECT_THAT(question.choices, ElementsAre("x", "y"));
    EXPECT_EQ(question.answer, 1u);
  }
  const std::string goals =
      "{\"goal\": \"G\", \"sol1\": \"a\", \"sol2\": \"b\"}\n{\"goal\": \"H\", \"sol1\": \"c\", \"sol2\": \"d\"}\n";
  const auto piqa = questions_of(ChoiceForm::piqa, goals, "1\n0\n");
  ASSERT_EQ(piqa.size(), 2u);
  EXPECT_EQ(piqa[1].prompt, "Question: H\nAnswer:");
  EXPECT_EQ(piqa[0].answer, 1u);
  EXPECT_EQ(piqa[1].answer, 0u);
  const auto mmlu = questions_of(ChoiceForm::mmlu, "\xEF\xBB\xBF Why? ,a,\"b, \"\"c\"\"\",d,e,C\r\n");
  ASSERT_EQ(mmlu.size(), 1u);
  EXPECT_EQ(mmlu[0].before,
            "The following are multiple choice questions (with answers) about high school biology.\n\n");
  EXPECT_EQ(mmlu[0].prompt, "Why?\nA. a\nB. b, \"c\"\nC. d\nD. e\nAnswer:");
  EXPECT_THAT(mmlu[0].choices, ElementsAre("A", "B", "C", "D"));
  EXPECT_EQ(mmlu[0].answer, 2u);
}

// What Python's csv.reader gives.
TEST(ChoiceFile, CsvIsReadAsByPython) {
  const auto rows = csv_rows("a,\"b\nc\"d\"\",\"\"\r\n\n,x\"y,\r\"open, end");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_THAT(rows[0].fields, ElementsAre("a", "b\ncd\"\"", ""));
  EXPECT_THAT(rows[1].fields, ElementsAre("", "x\"y", ""));
  EXPECT_EQ(rows[1].line, 4);
  EXPECT_THAT(rows[2].fields, ElementsAre("open, end"));
}

TEST(ChoiceSet, TokensOfAChoiceFollowThoseOfTheTextBeforeIt) {
  const std::string lines =
      "{\"question\": \"ab \", \"choices\": [\"c\", \"d\\u00e9\"], \"answer\": \"B\"}\n"
      "{\"question\": \"\", \"choices\": [\"x\", \"y\"], \"answer\": 0}\n";
  const EvalSet set = choice_set(ChoiceForm::choice, {.data = {lines, "f"}}, *bytes(), 6);
  ASSERT_THAT(set.problems, IsEmpty());
  ASSERT_EQ(set.passages.size(), 4u);
  const auto text = [&](std::size_t passage) { return bytes()->decode(set.passages[passage].ids); };
  EXPECT_EQ(text(0), "ab  c") << "the space at the end of the question goes to the choice";
  EXPECT_EQ(set.passages[0].first_target, 2);
  EXPECT_EQ(text(1), "ab  d\u00e9");
  EXPECT_EQ(text(2), std::string("\0 x", 3));
  EXPECT_EQ(set.passages[2].first_target, 1);
  EXPECT_EQ(set.count("passages_cut"), 0);
  const EvalSet narrow = choice_set(ChoiceForm::choice, {.data = {lines, "f"}}, *bytes(), 5);
  EXPECT_EQ(narrow.count("passages_cut"), 1);
  EXPECT_EQ(narrow.passages[1].ids.size(), 6u);
  EXPECT_EQ(narrow.passages[1].first_target, 1);
}

TEST(ChoiceSet, ShotsPrecedeEachQuestion) {
  const std::string examples = "{\"question\": \"1?\", \"choices\": [\"a\", \"b\"], \"answer\": 1}\n",
                    lines = "{\"question\": \"2?\", \"choices\": [\"c\", \"d\"], \"answer\": 0}\n";
  const EvalSet set = choice_set(ChoiceForm::choice, {.data = {lines, "f"}}, *bytes(), 64,
                                 {.count = 1, .source = {.data = {examples, "g"}}});
  ASSERT_EQ(set.passages.size(), 2u);
  EXPECT_EQ(bytes()->decode(set.passages[1].ids), "1? b\n\n2? d");
  EXPECT_EQ(set.passages[1].targets(), 2);
}

TEST(ChoiceSet, FiguresDivideByCharactersAndByBytes) {
  EvalSet set;
  set.questions = {{.answer = 0, .characters = {2, 5}, .bytes = {6, 5}},
                   {.answer = 1, .characters = {1, 1, 1}, .bytes = {1, 1, 1}}};
  // Of the first: -12 against -14 in all, -6 against -2.8 a character, -2 against -2.8 a byte. Of equals the first one.
  std::vector<ExampleResult> results;
  for (const double l : {-12.0, -14.0, -3.0, -2.0, -2.0}) results.push_back({.log_probability = l, .targets = 1});
  const auto figure = [figures = choice_figures(set, results)](std::string_view name) {
    for (const auto& [known, value] : figures)
      if (known == name) return value;
    return std::nan("");
  };
  EXPECT_EQ(figure("acc"), 1.0);
  EXPECT_EQ(figure("acc_norm"), 0.5);
  EXPECT_EQ(figure("acc_bytes"), 1.0);
  EXPECT_EQ(figure("acc_norm_stderr"), 0.5);
  EXPECT_EQ(figure("correct_norm"), 1.0);
}

TEST(ChoiceSet, BadLinesAreNamedTogether) {
  EXPECT_THAT(
      choice_problems(ChoiceForm::choice,
                      "[1]\n{\"question\": 3, \"choices\": [\"a\"]}\n"
                      "{\"question\": \"q\", \"choices\": [\"a\"], \"answer\": 0}\n"
                      "{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": \"C\"}\n"
                      "{\"question\": \"q\", \"choices\": [\"a\", \"b\"]}\n"
                      "{\"question\": \"q\", \"choices\": \"a\", \"answer\": 0}\nno"),
      ElementsAre(
          "[f] line 1: must be a JSON object", "[f] line 2: question = 3: must be a string",
          "[f] line 3: has 1 choices: must have 2 or more",
          "[f] line 4: answer = \"C\": must be the number of one of the 2 choices, from 0, or its letter, from A",
          "[f] line 5: answer: is missing: is it a test set without answers? Give one that has them",
          "[f] line 6: choices = \"a\": must be a list of strings", HasSubstr("[f] line 7")));
  const std::string piqa = "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}\n";
  EXPECT_THAT(
      choice_problems(ChoiceForm::piqa, piqa),
      ElementsAre("[f] line 1: label: is missing: PIQA's labels lie in a second file: put NAME-labels.lst beside "
                  "this one"));
  EXPECT_THAT(
      choice_problems(ChoiceForm::piqa, piqa + piqa, "2\n"),
      ElementsAre("[l] line 1 = 2: must be 0 or 1, the number of the right solution",
                  "[l] has 1 labels, and f has 2 questions: must be equally many; are they of the same split?"));
  EXPECT_THAT(choice_problems(ChoiceForm::mmlu, "q,a,b,c,d,E\nq,a,b,c,A\n"),
              ElementsAre("[f] line 1: answer = E: must be A, B, C or D",
                          "[f] line 2: has 5 columns: must have 6, as MMLU's: question, four choices, answer"));
  EXPECT_THAT(choice_problems(ChoiceForm::arc,
                              "{\"question\": {\"stem\": \"q\", \"choices\": [{\"text\": \"a\", "
                              "\"label\": \"A\"}, {\"text\": \"b\", \"label\": \"B\"}]}, "
                              "\"answerKey\": \"C\"}"),
              ElementsAre("[f] line 1: answerKey = C: must be one of the labels A, B"));
  EXPECT_THAT(choice_problems(ChoiceForm::hellaswag,
                              "{\"activity_label\": \"a\", \"endings\": [\"x\", \"y\"], "
                              "\"label\": \"\"}"),
              ElementsAre("[f] line 1: label: is missing: is it a test set without answers? Give one that has them"));
  EXPECT_THAT(choice_problems(ChoiceForm::choice, "{\"question\": \"q\", \"choices\": [\"" + std::string(64, 'x') +
                                                      "\", \"b\"], \"answer\": 0}"),
              ElementsAre("[f] line 1: a choice of 65 tokens: must be of 1 to the 64 of a window"));
  EXPECT_THAT(choice_problems(ChoiceForm::choice, "\n"),
              ElementsAre("[f] is empty: must hold text; is it the right file?"));
}

}  // namespace
}  // namespace megalith::eval
