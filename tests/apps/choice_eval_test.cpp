#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/test_data.h"

// megalith eval --task choice, hellaswag, arc, piqa, mmlu: the numbers of lm-evaluation-harness on the same files.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::run_shell;
using ::testing::HasSubstr;

const std::string kChoiceData = std::string(MEGALITH_TEST_DATA) + "/choice/";

/// The options of a task on the stored file of its form.
std::string choice_task(const std::string& task, int shots) {
  const std::map<std::string, std::string> files = {{"choice", "choice.jsonl"},
                                                    {"hellaswag", "hellaswag_val.jsonl"},
                                                    {"arc", "arc.jsonl"},
                                                    {"piqa", "piqa_valid.jsonl"},
                                                    {"mmlu", "anatomy_test.csv"}};
  std::string options = " --task " + task + " --data " + kChoiceData + files.at(task);
  if (shots > 0)
    options += " --shots " + std::to_string(shots) + " --shots-data " + kChoiceData +
               (task == "mmlu" ? "anatomy_dev.csv" : "arc_train.jsonl");
  return options;
}

class ChoiceProgram : public Program {
 protected:
  std::string eval(const std::string& options) const {
    return "megalith eval " + kChoiceData + "model --device cpu --format json " + options;
  }
};

TEST_F(ChoiceProgram, FormsHaveTheNumbersOfTheHarness) {
  const nlohmann::json cases = nlohmann::json::parse(read_all(kChoiceData + "expected.json"));
  ASSERT_EQ(cases.size(), 7u);
  for (const nlohmann::json& one : cases) {
    const std::string options = choice_task(one.at("task"), one.at("shots")), lines = out("lines.jsonl");
    SCOPED_TRACE(options);
    std::filesystem::remove(lines);
    const Finished finished = run_shell(eval(options + " --per-example " + lines));
    ASSERT_EQ(finished.code, 0) << finished.err;
    const nlohmann::json report = nlohmann::json::parse(finished.out);
    EXPECT_EQ(report.at("task"), one.at("task"));
    EXPECT_EQ(report.at("protocol"), "lm-evaluation-harness");
    EXPECT_EQ(report.at("counts").at("shots"), one.at("shots"));
    for (const auto& [name, value] : one.at("results").items())
      EXPECT_NEAR(report.at("results").at(name).get<double>(), value.get<double>(), 1e-12) << name;
    std::vector<double> want;
    for (const nlohmann::json& question : one.at("log_probabilities"))
      want.insert(want.end(), question.begin(), question.end());
    std::vector<double> got(want.size());
    std::ifstream file(lines);
    std::string line;
    std::getline(file, line);  // names the evaluation
    std::size_t count = 0;
    for (; std::getline(file, line); ++count) {
      const nlohmann::json result = nlohmann::json::parse(line);
      got.at(result.at("example").get<std::size_t>()) = result.at("log_probability");
    }
    ASSERT_EQ(count, want.size());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-5 * std::abs(want[i])) << i;
  }
}

TEST_F(ChoiceProgram, GridsGiveTheAnswersOfOneRank) {
  const std::string options = choice_task("hellaswag", 0) + " --precision fp64 ";
  const auto results = [&](const std::string& grid) {
    const Finished finished = run_shell(eval(options + grid));
    EXPECT_EQ(finished.code, 0) << finished.err;
    return nlohmann::json::parse(finished.out).at("results");
  };
  const nlohmann::json want = results("");
  for (const char* const grid : {"--set parallel.tp=2", "--set parallel.pp=2", "--ranks 2"})
    EXPECT_EQ(results(grid), want) << grid;
}

TEST_F(ChoiceProgram, TheReportNamesAllFiles) {
  const std::string labels = kChoiceData + "piqa_valid-labels.lst";
  const Finished beside = run_shell(eval(choice_task("piqa", 0))),
                 named = run_shell(eval(choice_task("piqa", 0) + " --labels " + labels));
  ASSERT_EQ(named.code, 0) << named.err;
  const nlohmann::json report = nlohmann::json::parse(named.out);
  EXPECT_EQ(report.at("labels").at("file"), labels);
  EXPECT_EQ(report.at("labels"), nlohmann::json::parse(beside.out).at("labels"));
  const Finished text = run_shell("megalith eval " + kChoiceData + "model --device cpu" + choice_task("mmlu", 2));
  EXPECT_THAT(text.out, HasSubstr("mmlu, protocol lm-evaluation-harness, window 160"));
  EXPECT_THAT(text.out, HasSubstr(kChoiceData + "anatomy_dev.csv ("));
}

TEST_F(ChoiceProgram, OptionsThatDoNotFitAreRefusedTogether) {
  const Finished arc = run_shell(eval(choice_task("arc", 0) + " --shots 2 --labels x --stride 4"));
  EXPECT_EQ(arc.code, 64);
  EXPECT_THAT(arc.err, HasSubstr("--shots = 2: needs --shots-data FILE with the examples"));
  EXPECT_THAT(arc.err, HasSubstr("--labels = x: is for questions of piqa; leave it away"));
  EXPECT_THAT(arc.err, HasSubstr("--stride = 4"));
  const Finished own = run_shell(eval(choice_task("arc", 0) + " --shots 1 --shots-data " + kChoiceData + "arc.jsonl"));
  EXPECT_EQ(own.code, 64);
  EXPECT_THAT(own.err,
              HasSubstr("arc.jsonl: is the file of the questions: must be another file, or a question would be "
                        "its own example"));
  const Finished few =
      run_shell(eval(choice_task("arc", 0) + " --shots 3 --shots-data " + kChoiceData + "arc_train.jsonl"));
  EXPECT_EQ(few.code, 65);
  EXPECT_THAT(few.err, HasSubstr("arc_train.jsonl] has 2 questions: must have --shots = 3 or more"));
  const Finished loss = run_shell(eval("--task loss --data x --shots 2"));
  EXPECT_EQ(loss.code, 64);
  EXPECT_THAT(loss.err, HasSubstr("--shots = 2: is for tasks of multiple choice; leave it away"));
}

}  // namespace
}  // namespace megalith
