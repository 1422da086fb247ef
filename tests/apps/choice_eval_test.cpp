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

/// Two subjects of MMLU: the stored one, and its first three questions as another.
class MmluFolders : public ChoiceProgram {
 protected:
  void SetUp() override {
    for (const char* folder : {"test", "dev"}) std::filesystem::create_directory(dir_ / folder);
    std::ofstream(dir_ / "test/anatomy_test.csv") << read_all(kChoiceData + "anatomy_test.csv");
    std::ofstream(dir_ / "test/human_aging_test.csv") << first_rows();
    for (const char* subject : {"anatomy", "human_aging"})
      std::ofstream(dir_ / "dev" / (std::string(subject) + "_dev.csv")) << read_all(kChoiceData + "anatomy_dev.csv");
    std::ofstream(dir_ / "test/README.txt") << "no table";
  }
  static std::string first_rows() {
    const std::string rows = read_all(kChoiceData + "anatomy_test.csv");
    return rows.substr(0, rows.find("\"A long question"));
  }
  Finished mmlu(const std::string& data, const std::string& shots_data) const {
    return run_shell(eval("--task mmlu --precision fp64 --data " + out(data) +
                          (shots_data.empty() ? "" : " --shots 2 --shots-data " + out(shots_data))));
  }
};

TEST_F(MmluFolders, AFolderHasTheMeanOfItsSubjectsByQuestions) {
  for (const bool has_shots : {false, true}) {
    SCOPED_TRACE(has_shots);
    const Finished done = mmlu("test", has_shots ? "dev" : "");
    ASSERT_EQ(done.code, 0) << done.err;
    const nlohmann::json report = nlohmann::json::parse(done.out);
    EXPECT_EQ(report.at("counts").at("questions"), 7);
    EXPECT_EQ(report.at("counts").at("subjects"), 2);
    ASSERT_EQ(report.at("subjects").size(), 2u);
    double correct = 0, variance = 0;
    for (const auto& [subject, questions] : {std::pair{"anatomy", 4.0}, {"human_aging", 3.0}}) {
      const std::string name = subject;
      const Finished alone = mmlu("test/" + name + "_test.csv", has_shots ? "dev/" + name + "_dev.csv" : std::string());
      ASSERT_EQ(alone.code, 0) << alone.err;
      const nlohmann::json results = nlohmann::json::parse(alone.out).at("results");
      EXPECT_EQ(report.at("subjects").at(name), results);
      correct += results.at("acc").get<double>() * questions;
      const double error = results.at("acc_stderr");
      variance += (questions - 1) * error * error * questions;  // pooled_sample_stderr() of the harness
    }
    EXPECT_NEAR(report.at("results").at("acc").get<double>(), correct / 7, 1e-12);
    EXPECT_NEAR(report.at("results").at("acc_stderr").get<double>(), std::sqrt(variance / (7 - 2) / 7), 1e-12);
  }
  const Finished text = run_shell("megalith eval " + kChoiceData + "model --device cpu --task mmlu --data " +
                                  out("test") + " --shots 1 --shots-data " + out("dev"));
  EXPECT_THAT(text.out, ::testing::ContainsRegex("human aging +0\\.[0-9]{6} \\+- 0\\.[0-9]{6} of 3\n"));
}

TEST_F(MmluFolders, WhatAFolderLacksIsNamedTogether) {
  std::ofstream(dir_ / "test/law_test.csv") << first_rows();
  std::ofstream(dir_ / "test/law_val.csv") << first_rows();
  ASSERT_TRUE(std::filesystem::remove(dir_ / "dev/anatomy_dev.csv"));
  const Finished lacks = mmlu("test", "dev");
  EXPECT_EQ(lacks.code, 65);
  EXPECT_THAT(lacks.err, HasSubstr("dev] has no file of the subject anatomy: must have examples for"));
  EXPECT_THAT(lacks.err, HasSubstr("law_dev.csv"));
  EXPECT_THAT(lacks.err, HasSubstr("law_val.csv] is a second file of the subject law: name the folder of one split"));
  std::ofstream(dir_ / "test/law_test.csv") << "a,b\n";
  ASSERT_TRUE(std::filesystem::remove(dir_ / "test/law_val.csv"));
  std::ofstream(dir_ / "test/virology_test.csv") << "c\n";
  const Finished bad = mmlu("test", "");
  EXPECT_EQ(bad.code, 65);
  EXPECT_THAT(bad.err, HasSubstr("law_test.csv] line 1: has 2 columns"));
  EXPECT_THAT(bad.err, HasSubstr("virology_test.csv] line 1: has 1 columns"));
  EXPECT_THAT(mmlu("test", "dev/human_aging_dev.csv").err, HasSubstr("must be a folder, as --data is one"));
  std::filesystem::create_directory(dir_ / "empty");
  EXPECT_THAT(mmlu("empty", "").err, HasSubstr("has no .csv file: must have MMLU's, one per subject"));
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
