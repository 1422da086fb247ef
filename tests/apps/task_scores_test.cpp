#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/test_data.h"

// megalith eval --score, and megalith report.
namespace megalith {
namespace {

using nlohmann::json;
using support::Finished;
using support::run_shell;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class ScoredPredictions : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& contents) const {
    std::ofstream(dir_ / name) << contents;
    return (dir_ / name).string();
  }
  static std::string squad(const std::string& name) { return std::string(MEGALITH_TEST_DATA) + "/squad/" + name; }
  static Finished eval(const std::string& arguments) { return run_shell("megalith eval " + arguments); }
  static json report(const std::string& arguments) {
    const Finished finished = eval(arguments + " --format json");
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.code == 0 ? json::parse(finished.out) : json();
  }

  TempDir dir_;
};

const std::string kSquad2 = "--task squad2 --data " + std::string(MEGALITH_TEST_DATA) +
                            "/squad/squad2.json.xz --score " + MEGALITH_TEST_DATA + "/squad/squad2.pred.json.xz";

TEST_F(ScoredPredictions, SquadHasTheFiguresOfTheReferenceScript) {
  const json got = report(kSquad2 + " --na-probs " + squad("squad2.na.json.xz"));
  const json want = json::parse(std::ifstream(squad("squad2.scores.json")));
  EXPECT_EQ(got.at("results"), want);
  EXPECT_EQ(got.at("task"), "squad2");
  EXPECT_EQ(got.at("counts"), (json{{"contexts", 35}, {"questions", 412}, {"other_predictions", 0}}));
  EXPECT_EQ(got.at("data").at("file"), squad("squad2.json.xz"));
  EXPECT_EQ(got.at("data").at("xxh3_128").get<std::string>().size(), 32U);
  const Finished text = eval(kSquad2);
  EXPECT_THAT(text.out, HasSubstr("HasAns f1                 "));
  EXPECT_THAT(text.out, ::testing::Not(HasSubstr("best")));
}

TEST_F(ScoredPredictions, ClassesAndAnswersAreCounted) {
  const std::string mnli =
      file("dev.tsv",
           "index\tsentence1\tsentence2\tgold_label\n1\ta\tb\tneutral\n2\tc\td\n3\te\tf\tentailment\n"
           "4\tg\th\tneutral\n");
  const json got = report("--task mnli --data " + mnli + " --score " +
                          file("p.tsv", "index\tprediction\n1\tneutral\n3\tneutral\n4\tneutral\n9\tneutral\n"));
  EXPECT_EQ(got.at("results"), (json{{"accuracy", 2.0 / 3}, {"correct", 2}, {"total", 3}}));
  EXPECT_EQ(got.at("counts"), (json{{"examples", 3}, {"left_out", 1}, {"other_predictions", 1}}));
  const std::string race =
      R"({"id": "high1.txt", "article": "t", "questions": ["q", "r"], "options": [["a","b","c","d"],["a","b","c","d"]], "answers": )";
  const json scores = report("--task race --data " + file("r.jsonl", race + "[\"A\", \"B\"]}") + " --score " +
                             file("rp.jsonl", race + "[\"A\", \"C\"]}"));
  EXPECT_EQ(scores.at("results"), (json{{"accuracy", 0.5},
                                        {"correct", 1},
                                        {"total", 2},
                                        {"high_accuracy", 0.5},
                                        {"high_correct", 1},
                                        {"high_total", 2}}));
}

TEST_F(ScoredPredictions, PredictionsThatLackIdsAreRefused) {
  const Finished finished =
      eval("--task squad1 --data " + squad("squad1.json.xz") + " --score " + file("p.json", "{}"));
  EXPECT_EQ(finished.code, 65);
  EXPECT_THAT(finished.err, HasSubstr("error: E65 ["));
  EXPECT_THAT(finished.err, HasSubstr("p.json] prediction of 327 of 327 ids = missing (\""));
  EXPECT_EQ(finished.out, "");
  EXPECT_EQ(eval(kSquad2 + " --na-probs " + file("na.json", "{}")).code, 65);
  const std::string broken = file("broken.json", "{"), none = file("none.json", "{}"), qqp = file("qqp.tsv", "q\n1\n");
  const Finished all = eval("--task squad2 --data " + broken + " --score " + broken + " --na-probs " + broken);
  EXPECT_EQ(all.code, 65);
  EXPECT_THAT(all.err, ContainsRegex("broken.json[^\n]*\n[^\n]*broken.json[^\n]*\n[^\n]*broken.json"))
      << "each of the three files";
  const Finished lacks =
      eval("--task squad2 --data " + squad("squad2.json.xz") + " --score " + none + " --na-probs " + none);
  EXPECT_THAT(lacks.err, ContainsRegex("prediction of [^\n]*\n[^\n]*no-answer score of"));
  const Finished pairs = eval("--task qqp --data " + qqp + " --score " + file("nothing", ""));
  EXPECT_EQ(pairs.code, 65);
  EXPECT_THAT(pairs.err, ContainsRegex("qqp.tsv[^\n]*(\n[^\n]*)*nothing"));
}

TEST_F(ScoredPredictions, OptionsOfModelsAreRefused) {
  const Finished finished = eval(kSquad2 + " --checkpoint out/x --window 5 --precision fp32 --na-probs");
  EXPECT_EQ(finished.code, 64) << "--na-probs without a value";
  const Finished all = eval("--task squad1 --score p.json --data d.json --na-probs n.json out/x --window 5");
  EXPECT_EQ(all.code, 64);
  EXPECT_THAT(all.err, HasSubstr("eval: 3 problems"));
  EXPECT_THAT(all.err, HasSubstr("checkpoint = out/x: must be left away: --score takes predictions, not a model"));
  EXPECT_THAT(all.err, HasSubstr("--na-probs = n.json: is for --task squad2; leave it away"));
  EXPECT_THAT(all.err, HasSubstr("--window = 5: is for models; leave it away with --score"));
  const Finished neither = eval("--task race --data d");
  EXPECT_EQ(neither.code, 64);
  EXPECT_THAT(neither.err, HasSubstr("needs a checkpoint that is fine-tuned on it, or --score FILE with predictions"));
  EXPECT_THAT(eval("--task race --data d out/x").err, HasSubstr("[out/x] there is no such folder"));
  const Finished loss = eval("--task loss --data d --score p");
  EXPECT_EQ(loss.code, 64);
  EXPECT_THAT(loss.err, HasSubstr("--score = p: is for --task mnli, qqp, squad1, squad2 and race, not for loss"));
  const Finished none = eval("--task loss --data d");
  EXPECT_EQ(none.code, 64);
  EXPECT_THAT(none.err, HasSubstr("checkpoint is required"));
}

TEST_F(ScoredPredictions, StandInTheTablesOfThePaper) {
  const std::string out = (dir_ / "s.json").string();
  ASSERT_EQ(run_shell("megalith eval " + kSquad2 + " --format json >" + out).code, 0);
  const Finished table = run_shell("megalith report table5 mine=" + out);
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("  -                33.9/20.4        -\n"));
  EXPECT_EQ(run_shell("megalith report table3").code, 0);
  EXPECT_EQ(run_shell("megalith report table6 --format json").code, 0);
  EXPECT_THAT(run_shell("megalith report table6 " + out).err, HasSubstr("must be a report of `megalith finetune`"));
  EXPECT_THAT(run_shell("megalith report table5 =" + out).err, HasSubstr("must be NAME=FILE with a name"));
  EXPECT_THAT(run_shell("megalith report table5 mine=").err, HasSubstr("must be NAME=FILE with a name and a file"));
  const Finished twice =
      run_shell("megalith report table5 a=" + out + " a=" + out + " " + out + " b=" + file("x", "3"));
  EXPECT_EQ(twice.code, 65);
  EXPECT_THAT(twice.err, ContainsRegex("a has two of it\n[^\n]*must be a report of"));
}

}  // namespace
}  // namespace megalith
