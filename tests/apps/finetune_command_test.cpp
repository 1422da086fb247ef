#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/task_program.h"

// megalith finetune: search, seeds, ensemble, restarts.
namespace megalith {
namespace {

using nlohmann::json;
using support::Finished;
using support::run_shell;
using ::testing::HasSubstr;
using ::testing::Not;

class FinetuneCommand : public support::TaskProgram {
 protected:
  FinetuneCommand() {
    write_all(dir_ / "dev_matched.tsv", pairs(9));
    write_all(dir_ / "dev_mismatched.tsv", mixed(14));
    write_all(dir_ / "test.tsv", mixed(17));
  }
  /// Of which a third has another label, so that scores are not 1.
  static std::string mixed(int count) {
    std::string text = pairs(count), changed;
    std::istringstream lines(text);
    int row = 0;
    for (std::string line; std::getline(lines, line); ++row) {
      const std::size_t label = line.rfind('\t');
      changed += row % 3 == 2 ? line.substr(0, label) + "\tentailment\n" : line + "\n";
    }
    return changed;
  }
  /// Two rates, two seeds, two dev files and a test file.
  std::string command(const std::string& name, const std::string& more = "", const std::string& seeds = "2") const {
    return "megalith finetune " + out("mnli.toml") + " --out " + out(name) + " --seeds " + seeds +
           " --lr 1e-6,5e-3 --ensemble --set task.epochs=3 --set train.seed=1233 --set 'data.valid=[\"" +
           out("dev_matched.tsv") + "\",\"" + out("dev_mismatched.tsv") + "\"]' " + set_file("data.test", "test.tsv") +
           more;
  }
  std::string report_of(const std::string& name) const { return read_all(out(name) + "/report.json"); }
  std::vector<float> logits(const std::string& name, const std::string& run, const std::string& file) const {
    const std::string bytes = read_all(out(name) + "/runs/" + run + "/scores/" + file + ".logits");
    std::vector<float> numbers(bytes.size() / sizeof(float));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }
};

const char* const kClasses[] = {"entailment", "neutral", "contradiction"};

/// index<TAB>prediction of the mean of what models give to three classes.
std::string predictions_of(const std::vector<std::vector<float>>& models) {
  std::string text = "index\tprediction\n";
  for (std::size_t sample = 0; sample < models.front().size() / 3; ++sample) {
    std::array<double, 3> mean{};
    for (const std::vector<float>& model : models) {
      std::array<double, 3> weights{};
      for (std::size_t c = 0; c < 3; ++c) weights[c] = std::exp(static_cast<double>(model[3 * sample + c]));
      for (std::size_t c = 0; c < 3; ++c) mean[c] += weights[c] / (weights[0] + weights[1] + weights[2]);
    }
    text += std::to_string(sample) + '\t' + kClasses[std::ranges::max_element(mean) - mean.begin()] + '\n';
  }
  return text;
}

double accuracy_of(const std::string& predictions, const std::string& data) {
  std::istringstream given(predictions), rows(data);
  std::string prediction, row;
  std::getline(given, prediction);
  std::getline(rows, row);
  int correct = 0, total = 0;
  for (; std::getline(given, prediction) && std::getline(rows, row); ++total)
    correct += prediction.substr(prediction.find('\t')) == row.substr(row.rfind('\t')) ? 1 : 0;
  return static_cast<double>(correct) / total;
}

TEST_F(FinetuneCommand, SearchesTrainsSeedsAndScoresTheMedian) {
  pretrain();
  const Finished whole = run_shell(command("whole"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.err, HasSubstr("run 1 of 3: lr_1e-06_batch_8_seed_1233\n"));
  EXPECT_THAT(whole.err, HasSubstr("run 3 of 3: lr_0.005_batch_8_seed_1234\n"));
  EXPECT_THAT(whole.out, HasSubstr("median of 2               accuracy "));
  const json report = json::parse(report_of("whole"));

  // The rate: that of the higher mean of both files.
  ASSERT_EQ(report.at("search").size(), 2U);
  EXPECT_EQ(report.at("search")[1].at("run"), "lr_0.005_batch_8_seed_1233");
  EXPECT_GT(report.at("search")[1].at("dev_score"), report.at("search")[0].at("dev_score"));
  EXPECT_EQ(report.at("best").at("lr"), 5e-3);

  // Scores are those of `eval`.
  ASSERT_EQ(report.at("seeds").size(), 2U);
  std::vector<double> scores;
  for (const json& run : report.at("seeds")) {
    double sum = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const std::string file = i == 0 ? "dev_matched.tsv" : "dev_mismatched.tsv";
      const Finished eval = run_shell("megalith eval " + out("whole/runs/") + run.at("run").get<std::string>() +
                                      " --task mnli --format json --data " + out(file));
      ASSERT_EQ(eval.code, 0) << eval.err;
      const json found = json::parse(eval.out);
      EXPECT_EQ(run.at("dev")[i].at("results"), found.at("results"));
      EXPECT_EQ(run.at("dev")[i].at("data"), found.at("data"));
      EXPECT_EQ(run.at("digest"), found.at("checkpoint").at("digest"));
      sum += found.at("results").at("accuracy").get<double>();
    }
    EXPECT_EQ(run.at("dev_score").get<double>(), sum / 2);
    scores.push_back(sum / 2);
  }
  EXPECT_NE(scores[0], scores[1]) << "else any run is the median";
  const std::size_t lower = scores[1] < scores[0] ? 1 : 0;
  EXPECT_EQ(report.at("median").at("run"), report.at("seeds")[lower].at("run"));
  EXPECT_EQ(report.at("dev"), report.at("seeds")[lower].at("dev"));

  // The ensemble answers by the mean of the probabilities.
  for (const auto& [name, data] :
       {std::pair("dev_1", "dev_matched.tsv"), {"dev_2", "dev_mismatched.tsv"}, std::pair("test_1", "test.tsv")}) {
    const std::string want = predictions_of(
        {logits("whole", "lr_0.005_batch_8_seed_1233", name), logits("whole", "lr_0.005_batch_8_seed_1234", name)});
    EXPECT_EQ(read_all(out("whole/ensemble/") + name + ".predictions"), want);
    const json& set = report.at("ensemble").at(std::string(name).substr(0, std::string(name).find('_')));
    EXPECT_EQ(set[name == std::string("dev_2") ? 1 : 0].at("results").at("accuracy").get<double>(),
              accuracy_of(want, read_all(dir_ / data)));
  }
  EXPECT_EQ(report.at("test")[0].at("results").at("accuracy").get<double>(),
            accuracy_of(predictions_of({logits("whole", report.at("median").at("run"), "test_1")}),
                        read_all(dir_ / "test.tsv")));
  EXPECT_FALSE(std::filesystem::exists(out("whole/runs/lr_1e-06_batch_8_seed_1233/scores/test_1.json")))
      << "the test set is for the runs of the seeds";

  const Finished table = run_shell("megalith report table5 mine=" + out("whole/report.json"));
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("\nmine ensemble "));
  EXPECT_THAT(read_all(out("whole/report.md")), HasSubstr("\nMegatron-3.9B ensemble "));
}

// A task that most seeds learn whole: those that confuse two of the classes are outvoted.
TEST_F(FinetuneCommand, TheEnsembleIsAtLeastTheMedian) {
  write_all(dir_ / "train.tsv", pairs(66));
  write_all(dir_ / "dev.tsv", pairs(63));
  pretrain();
  const Finished run = run_shell("megalith finetune " + out("mnli.toml") + " --out " + out("learnt") +
                                 " --seeds 5 --ensemble --lr 2e-2 --set task.epochs=20 --set train.micro_batch=8 "
                                 "--set train.seed=100");
  ASSERT_EQ(run.code, 0) << run.err;
  const json report = json::parse(report_of("learnt"));
  std::vector<double> scores;
  for (const json& seed : report.at("seeds")) scores.push_back(seed.at("dev_score"));
  std::ranges::sort(scores);
  EXPECT_LT(scores.front(), 0.9) << "else any seed is the ensemble";
  const json median = report.at("dev")[0].at("results").at("accuracy");
  EXPECT_EQ(median, scores[2]);
  EXPECT_GT(median, 0.9) << "it learns";
  EXPECT_GE(report.at("ensemble").at("dev")[0].at("results").at("accuracy"), median);
}

TEST_F(FinetuneCommand, ARestartRunsOnlyWhatIsMissing) {
  pretrain();
  const Finished first = run_shell(command("whole"));
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string report = report_of("whole"), page = read_all(out("whole/report.md"));
  const Finished again = run_shell(command("whole"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, first.out);
  EXPECT_THAT(again.err, HasSubstr("run 3 of 3: lr_0.005_batch_8_seed_1234, done before"));
  EXPECT_THAT(again.err, Not(HasSubstr("model 2 layers"))) << "no training";
  EXPECT_THAT(again.err, Not(HasSubstr("scoring")));
  EXPECT_EQ(report_of("whole"), report);
  EXPECT_EQ(read_all(out("whole/report.md")), page);

  // One more seed is one more run; changed scores are computed again.
  write_all(dir_ / "whole/runs/lr_0.005_batch_8_seed_1234/scores/test_1.logits", "cut");
  const Finished more = run_shell(command("whole", "", "3"));
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_THAT(more.err, HasSubstr("run 3 of 4: lr_0.005_batch_8_seed_1234, done before"));
  EXPECT_THAT(more.err, HasSubstr("run 4 of 4: lr_0.005_batch_8_seed_1235\n"));
  EXPECT_THAT(more.err, HasSubstr("test_1.logits] is not what was written: another size or checksum"));
  EXPECT_EQ(json::parse(report_of("whole")).at("ensemble").at("models"), 3);
  EXPECT_EQ(json::parse(report_of("whole")).at("seeds")[1], json::parse(report).at("seeds")[1]);

  // Another test set is scored, by the models that there are.
  write_all(dir_ / "test.tsv", pairs(11));
  const Finished scored = run_shell(command("whole", "", "3"));
  ASSERT_EQ(scored.code, 0) << scored.err;
  EXPECT_THAT(scored.err, Not(HasSubstr("model 2 layers")));
  EXPECT_EQ(json::parse(report_of("whole")).at("test")[0].at("results").at("total"), 11);
  EXPECT_EQ(json::parse(report_of("whole")).at("ensemble").at("test")[0].at("results").at("total"), 11);

  // A version that had no such key had its default.
  json facts = json::parse(read_all(out("whole/finetune.json")));
  ASSERT_EQ(facts.erase("fp8.experts"), 1U);
  write_all(dir_ / "whole/finetune.json", facts.dump());
  EXPECT_EQ(run_shell(command("whole", "", "3")).code, 0);

  const Finished other = run_shell(command("whole", "--set model.dropout=0.3 " + set_file("data.train", "test.tsv")));
  EXPECT_EQ(other.code, 64);
  EXPECT_THAT(other.err,
              HasSubstr("model.dropout = 0.3: the runs of " + out("whole") + " have 0.1; give another --out"));
  EXPECT_THAT(other.err, HasSubstr("the samples of data.train = "));
}

// A rate that breaks the model is named; the others go on. A restart does not train it again.
TEST_F(FinetuneCommand, ARateWithoutFiniteNumbersIsNamedAndTheSearchGoesOn) {
  pretrain();
  const std::string more = "--seeds 1 --lr 1e38,5e-3 --set optimizer.clip=0";
  const auto run = [&](const std::string& name, const std::string& options) {
    return run_shell("megalith finetune " + out("mnli.toml") + " --out " + out(name) + " " + options);
  };
  const Finished whole = run("broken", more);
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.err, HasSubstr("[warning] lr_1e+38_batch_8_seed_1234: "));
  const json report = json::parse(report_of("broken"));
  const json& broken = report.at("search")[0];
  EXPECT_EQ(broken.at("run"), "lr_1e+38_batch_8_seed_1234");
  EXPECT_THAT(broken.at("not_finite").get<std::string>(), HasSubstr("must be finite"));
  EXPECT_FALSE(broken.contains("dev_score"));
  EXPECT_EQ(report.at("best").at("lr"), 5e-3);
  EXPECT_EQ(report.at("median").at("run"), "lr_0.005_batch_8_seed_1234");
  EXPECT_THAT(read_all(out("broken/report.md")),
              HasSubstr("| lr_1e+38_batch_8_seed_1234 | 1e+38 | 8 | 1234 | not finite |  |\n"));

  const std::string page = report_of("broken");
  const Finished again = run("broken", more);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("run 1 of 2: lr_1e+38_batch_8_seed_1234, done before"));
  EXPECT_THAT(again.err, Not(HasSubstr("model 2 layers"))) << "no training";
  EXPECT_EQ(report_of("broken"), page);

  const Finished none = run("none", "--seeds 1 --lr 1e38 --set optimizer.clip=0");
  EXPECT_EQ(none.code, 73) << none.err;
  EXPECT_THAT(none.err, HasSubstr("No other run of the search has a score: give --lr a lower rate"));
  EXPECT_FALSE(std::filesystem::exists(out("none/report.json")));
}

// A median needs all seeds. The second one's training is what a run leaves behind that broke.
TEST_F(FinetuneCommand, ASeedWithoutFiniteNumbersEndsIt) {
  pretrain();
  const std::string seed = "lr_0.005_batch_8_seed_1235";
  std::filesystem::create_directories(out("seeds/runs/" + seed));
  write_all(dir_ / "seeds/runs" / seed / "not_finite.txt", "[step 2] loss = nan: must be finite");
  const Finished broken = run_shell("megalith finetune " + out("mnli.toml") + " --seeds 2 --out " + out("seeds"));
  EXPECT_EQ(broken.code, 73) << broken.err;
  EXPECT_THAT(broken.err, HasSubstr(seed + ": [step 2] loss = nan: must be finite. A median needs all seeds: leave "
                                           "this rate out"));
  EXPECT_FALSE(std::filesystem::exists(out("seeds/report.json")));
}

// On ranks that one process cannot have, a run may be trained by `train` in its folder.
TEST_F(FinetuneCommand, TakesARunThatTrainMadeInItsFolder) {
  pretrain();
  const std::string more = "--set train.seed=1234 ", folder = "mixed/runs/lr_0.005_batch_8_seed_1234";
  const Finished whole = run_shell("megalith finetune " + out("mnli.toml") + " --seeds 1 --out " + out("whole"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(finetune(folder, more).code, 0);
  const Finished mixed = run_shell("megalith finetune " + out("mnli.toml") + " --seeds 1 --out " + out("mixed"));
  ASSERT_EQ(mixed.code, 0) << mixed.err;
  EXPECT_THAT(mixed.err, Not(HasSubstr("step 1/")));
  EXPECT_EQ(report_of("mixed"), report_of("whole"));
}

TEST_F(FinetuneCommand, AKilledOneGivesTheSameReport) {
  pretrain();
  const std::string more = "--set checkpoint.interval=2 ";
  ASSERT_EQ(run_shell(command("whole", more)).code, 0);
  // In the first training, after a score of a later run, and before a score on the test set.
  for (const int rename : {8, 11, 16}) {
    const std::string name = "killed" + std::to_string(rename);
    const Finished killed =
        run_shell("MEGALITH_FAULT=0:rename:" + std::to_string(rename) + ":kill " + command(name, more));
    EXPECT_EQ(killed.code, 137) << rename << killed.err;
    EXPECT_FALSE(std::filesystem::exists(out(name) + "/report.json"));
    const Finished rest = run_shell(command(name, more));
    ASSERT_EQ(rest.code, 0) << rename << rest.err;
    EXPECT_EQ(report_of(name), report_of("whole")) << rename;
  }
}

TEST_F(FinetuneCommand, AStoppedOneSavesAndGoesOn) {
  pretrain();
  const std::string more =
      "--seeds 1 --set task.epochs=100000 --set train.eval_interval=1000 --set optimizer.warmup_steps=1";
  const std::string arguments = " finetune " + out("mnli.toml") + " --out " + out("stopped") + " " + more;
  const Finished stopped = run_shell(support::program() + arguments + " & pid=$!; " +
                                     support::wait_for_step(out("stopped") + "/runs/*", 9) + support::kStop);
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("state saved: start the same command again"));
  EXPECT_TRUE(std::filesystem::exists(out("stopped/runs/lr_0.005_batch_8_seed_1234/checkpoints")));
  const Finished rest =
      run_shell(support::program() + arguments + " & pid=$!; until grep -q '\"event\":\"resume\"' " + out("stopped") +
                "/runs/*/history.jsonl 2>/dev/null || ! kill -0 $pid; do sleep 0.02; "
                "done; kill -KILL $pid; wait $pid");
  EXPECT_EQ(rest.code, 137) << rest.err;
}

TEST_F(FinetuneCommand, AllProblemsAreNamedAtOnce) {
  pretrain();
  const auto refused = [&](int code, const std::string& more, std::initializer_list<std::string> texts) {
    const Finished run = run_shell("megalith finetune " + out("mnli.toml") + " --out " + out("no") + " " + more);
    EXPECT_EQ(run.code, code) << more << run.err;
    for (const std::string& text : texts) EXPECT_THAT(run.err, HasSubstr(text)) << more;
    EXPECT_FALSE(std::filesystem::exists(dir_ / "no")) << more;
  };
  refused(64,
          "--lr 1e-5,x,1e-5 --batch 8,0 --seeds 1 --ensemble --set data.valid=[] --set checkpoint.dir=c "
          "--set train.micro_batch=3",
          {"--lr = x: must be numbers above 0, as 1e-5,2e-5", "--lr = 1e-5: comes twice", "--batch = 0: must be whole",
           "--ensemble = true: needs --seeds above 1", "data.valid is not set: its score chooses the runs",
           "checkpoint.dir = c: does not go with `finetune`", "train.global_batch"});
  refused(64, "--lr '' --batch '' --set data.valid=[]",
          {"--lr = \"\": must be numbers above 0", "--batch = \"\": must be whole numbers", "data.valid is not set"});
  refused(64, "--batch 8,9", {"train.global_batch = 9"});
  refused(64, "--lr 1e-5,2e-5 --batch 9 --set train.gemm=x",
          {"mnli.toml: 2 problems\n  train.", "train.global_batch = 9"});
  refused(64, "--set 'data.valid=[\"a.tsv\",\"b.tsv\"]'",
          {"data.valid = 2 files: must name at most one matched and one "
           "mismatched set"});
  refused(64, "--set train.init=x", {"train.init = x: does not go with task.name"});
  refused(65, set_file("data.test", "nowhere.tsv"), {"nowhere.tsv"});
  write_all(dir_ / "wrong.tsv", "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tentail\n");
  write_all(dir_ / "short.tsv", "index\tsentence1\n0\ta\n");
  refused(65, set_file("data.train", "wrong.tsv") + set_file("data.test", "short.tsv"),
          {"wrong.tsv:2] gold_label = \"entail\"", "short.tsv"});
  const Finished no_task = run_shell("megalith finetune " + out("bert.toml") + " --out " + out("no"));
  EXPECT_EQ(no_task.code, 64);
  EXPECT_THAT(no_task.err, HasSubstr("task.name is not set: `finetune` is for recipes with [task]"));
  const Finished launched =
      run_shell("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 megalith finetune " + out("mnli.toml"));
  EXPECT_EQ(launched.code, 64);
  EXPECT_THAT(launched.err, HasSubstr("start it without mpirun or srun. It takes runs that `train` made"));
}

TEST_F(FinetuneCommand, TrainingRefusesATestSet) {
  pretrain();
  const Finished run = finetune("refused", set_file("data.test", "test.tsv"));
  EXPECT_EQ(run.code, 64);
  EXPECT_THAT(run.err, HasSubstr("data.test = "));
  EXPECT_THAT(run.err, HasSubstr("is for `finetune`, which scores it once; remove it"));
  EXPECT_EQ(finetune("empty", "--set data.test=[] --set task.epochs=1").code, 0);
  const Finished bert = run_shell("megalith plan " + out("bert.toml") + " " + set_file("data.test", "test.tsv"));
  EXPECT_EQ(bert.code, 64);
  EXPECT_THAT(bert.err, HasSubstr("is for fine-tuning: needs task.name; `eval --task loss` scores a text"));
}

}  // namespace
}  // namespace megalith
