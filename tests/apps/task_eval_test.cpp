#include <algorithm>
#include <array>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/task_program.h"

// megalith eval of fine-tuned models.
namespace megalith {
namespace {

using nlohmann::json;
using support::Finished;
using support::run_shell;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TaskEval : public support::TaskProgram {
 protected:
  /// Fine-tunes a model from the seed on a file of the task, which is also its dev set.
  Finished tune(const std::string& task, const std::string& more = "") const {
    std::ofstream(dir_ / (task + ".toml"))
        << "[task]\nname = \"" << task
        << "\"\nepochs = 6\n[model]\nnum_layers = 2\nhidden_size = 32\nnum_heads = 2\nseq_len = 24\n"
           "[train]\nglobal_batch = 4\nmicro_batch = 2\n[optimizer]\nlr = 5e-3\n"
           "[data]\ntokenizer = \"bert-uncased\"\ntrain = \""
        << data(task) << "\"\nvalid = \"" << data(task) << "\"\n";
    return run_shell("megalith train " + out(task + ".toml") + " --out " + out(task) + " " + sizes(task) + more);
  }
  static std::string sizes(const std::string& task) {
    if (task == "race") return "--set task.max_query=10 ";
    return task.starts_with("squad") ? "--set task.max_query=8 --set task.doc_stride=5 " : "";
  }
  /// The file of a task, which this writes.
  std::string data(const std::string& task) const {
    const bool is_squad = task.starts_with("squad");
    const std::string file = out(task + (is_squad ? ".json" : task == "race" ? ".jsonl" : ".tsv"));
    write_all(file, is_squad ? squad(task) : task == "race" ? race() : task == "qqp" ? duplicates() : pairs(14));
    return file;
  }
  static std::string duplicates() {
    std::string text = "id\tquestion1\tquestion2\tis_duplicate\n";
    for (int i = 0; i < 10; ++i)
      text += std::to_string(40 + i) + "\twhere are " + std::to_string(i) + " birds\twhere did they fly" +
              (i % 3 == 0 ? " to\t1\n" : "\t0\n");
    return text;
  }
  /// Contexts of several windows; in squad2 every third question has no answer.
  static std::string squad(const std::string& task) {
    json paragraphs = json::array();
    for (int i = 0; i < 5; ++i) {
      const std::string begin = "The " + std::to_string(i) + " birds flew over a house and a red tree to ",
                        town = i % 2 == 0 ? "Lima" : "Rome";
      json questions = json::array();
      for (int q = 0; q < 2; ++q) {
        json answers = {{
            {"text", q == 0 ? town : "red tree"},
        }};
        answers[0]["answer_start"] = (begin + town).find(answers[0]["text"].get<std::string>());
        if (task == "squad2" && (2 * i + q) % 3 == 0) answers = json::array();
        questions.push_back({{"id", "q" + std::to_string(2 * i + q)},
                             {"question", q == 0 ? "Where did they fly?" : "What was there?"},
                             {"answers", answers}});
      }
      paragraphs.push_back(
          {{"context", begin + town + ", and then they came back to the old house by the river."}, {"qas", questions}});
    }
    return json{{"version", "v"}, {"data", {{{"title", "Birds"}, {"paragraphs", paragraphs}}}}}.dump();
  }
  /// The answer is the same text, in another place each time.
  static std::string race() {
    std::string text;
    for (std::size_t i = 0; i < 8; ++i) {
      std::array<std::string, 4> animals{"birds", "cats", "dogs", "cows"}, verbs{"saw", "ate", "was", "heard"};
      std::ranges::rotate(animals, animals.begin() + static_cast<std::ptrdiff_t>(i % 4));
      std::ranges::rotate(verbs, verbs.begin() + static_cast<std::ptrdiff_t>((i + 1) % 4));
      text += json{{"id", (i < 3 ? "middle" : "high") + std::to_string(i) + ".txt"},
                   {"article", "The cat saw " + std::to_string(i) + " birds. They flew to the tree."},
                   {"questions", {"Who flew?", "The cat _ birds."}},
                   {"options", {animals, verbs}},
                   {"answers", {std::string(1, "ADCB"[i % 4]), std::string(1, "ADCB"[(i + 1) % 4])}}}
                  .dump() +
              '\n';
    }
    return text;
  }
  std::string eval(const std::string& name, const std::string& task) const {
    return "megalith eval " + out(name) + " --task " + task + " --data " + data(task) + " --format json ";
  }
  static json report_of(const Finished& finished) {
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.code == 0 ? json::parse(finished.out) : json();
  }
};

/// Figures of which the thresholds are logits: those have other bits with other batches.
void expect_same_figures(const json& got, const json& want) {
  for (const auto& [name, value] : got.items()) {
    if (name.ends_with("_thresh"))
      EXPECT_NEAR(value.get<double>(), want.at(name).get<double>(), 1e-5) << name;
    else
      EXPECT_EQ(value, want.at(name)) << name;
  }
}

class TaskEvalOf : public TaskEval, public ::testing::WithParamInterface<const char*> {};

TEST_P(TaskEvalOf, HasTheDevScoreOfTheRunAndThatOfItsPredictions) {
  const std::string task = GetParam();
  const Finished run = tune(task);
  ASSERT_EQ(run.code, 0) << run.err;
  const json dev = json::parse(metrics(task).back());
  ASSERT_TRUE(dev.contains("eval"));
  const std::string no_answer = task == "squad2" ? "--no-answer-scores " + out("na.json") : "";
  const json report = report_of(run_shell(eval(task, task) + "--predictions " + out("p") + " " + no_answer));
  expect_same_figures(report.at("results"), dev);
  EXPECT_EQ(report.at("task"), task);
  EXPECT_EQ(report.at("predictions").at("file"), out("p"));
  EXPECT_THAT(report.at("checkpoint").at("folder").get<std::string>(), HasSubstr("step_0000"));

  const std::string score =
      "megalith eval --task " + task + " --data " + data(task) + " --format json --score " + out("p");
  const json scored = report_of(run_shell(score + (no_answer.empty() ? "" : " --na-probs " + out("na.json"))));
  EXPECT_EQ(scored.at("results"), report.at("results"));
  EXPECT_EQ(scored.at("predictions").at("xxh3_128"), report.at("predictions").at("xxh3_128"));
  EXPECT_EQ(scored.at("counts").at("other_predictions"), 0);

  const std::string predictions = read_all(out("p"));
  for (const char* const grid : {"--set parallel.tp=2 --set parallel.pp=2", "--ranks 2 --batch 3"}) {
    const json same = report_of(run_shell(eval(task, task) + "--predictions " + out("q") + " " + grid));
    expect_same_figures(same.at("results"), report.at("results"));
    EXPECT_EQ(read_all(out("q")), predictions) << grid;
  }
}
#ifdef MEGALITH_WITH_MPI
TEST_P(TaskEvalOf, ProcessesOfMpirunGiveTheSame) {
  const std::string task = GetParam();
  ASSERT_EQ(tune(task).code, 0);
  const std::string threads = eval(task, task) + "--set parallel.tp=2 --ranks 4 --predictions ";
  const json want = report_of(run_shell(threads + out("p")));
  const json got = report_of(run_shell(support::mpirun(4, support::program() + threads.substr(8) + out("q"))));
  EXPECT_EQ(got.at("results"), want.at("results"));
  EXPECT_EQ(got.at("grid"), want.at("grid"));
  EXPECT_EQ(read_all(out("q")), read_all(out("p")));
}
#endif
INSTANTIATE_TEST_SUITE_P(Tasks, TaskEvalOf, ::testing::Values("mnli", "qqp", "squad1", "squad2", "race"));

TEST_F(TaskEval, WritesThePredictionsOfALearnedTask) {
  const Finished run = tune("mnli", "--set task.epochs=40 ");
  ASSERT_EQ(run.code, 0) << run.err;
  const Finished report = run_shell("megalith eval " + out("mnli") + " --task mnli --data " + out("dev.tsv") +
                                    " --predictions " + out("p.tsv"));
  ASSERT_EQ(report.code, 0) << report.err;
  EXPECT_THAT(report.out, HasSubstr("accuracy                  1.000000\n"));
  EXPECT_THAT(report.out, HasSubstr("run                       fp32 on cpu, "));
  EXPECT_THAT(read_all(out("p.tsv")),
              StartsWith("index\tprediction\n0\tentailment\n1\tneutral\n2\tcontradiction\n3\tentailment\n"));
}

TEST_F(TaskEval, RefusesOtherModelsAndOptions) {
  ASSERT_EQ(tune("mnli").code, 0);
  pretrain();
  const auto refused = [&](int code, const std::string& command, const std::string& text) {
    const Finished finished = run_shell(command);
    EXPECT_EQ(finished.code, code) << command << finished.err;
    EXPECT_THAT(finished.err, HasSubstr(text)) << command;
    EXPECT_EQ(finished.out, "");
  };
  refused(64, eval("mnli", "qqp"), "is fine-tuned on another task; use --task mnli");
  refused(64, eval("bert", "mnli"), "is not fine-tuned; `train` with task.name = mnli makes such a checkpoint");
  const std::string fine_tuned = "is fine-tuned, task.name = mnli: must be a model that predicts tokens";
  refused(64, "megalith eval " + out("mnli") + " --task loss --data " + out("stories.jsonl"), fine_tuned);
  refused(64, "megalith generate " + out("mnli") + " --prompt the", fine_tuned);
  refused(64, "megalith score " + out("mnli") + " --tokens " + out("stories.jsonl"), fine_tuned);
  refused(64, "megalith eval --task mnli --data " + data("mnli"), "needs a checkpoint that is fine-tuned on it, or");
  refused(64, eval("mnli", "mnli") + "--na-probs x", "--na-probs = x: is not for a model with --task mnli");
  refused(64, eval("mnli", "mnli") + "--resume --stride 4", "--stride = 4: is not for a model with --task mnli");
  refused(64, eval("mnli", "mnli") + "--no-answer-scores x", "--no-answer-scores = x: is for --task squad2");
  refused(64, eval("mnli", "mnli") + "--predictions " + out("no/p"), "there is no folder " + out("no"));
  refused(64, "megalith eval " + out("bert") + " --task loss --predictions p --data " + out("stories.jsonl"),
          "--predictions = p: is for --task mnli");
  refused(65, "megalith eval " + out("mnli") + " --task mnli --data " + out("bert.toml"), "sentence1");
  refused(65, "megalith eval " + out("mnli") + " --task mnli --data " + out("none.tsv"), "there is no such file");
}

}  // namespace
}  // namespace megalith
