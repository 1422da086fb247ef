#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/task_program.h"

// Fine-tuning by the program: from a pretrained checkpoint to a dev score after each epoch.
namespace megalith {
namespace {

using support::Finished;
using support::run_shell;
using support::TaskProgram;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(TaskProgram, FineTunesAndResumesWithTheSameBits) {
  pretrain();
  const Finished whole = finetune("whole", "--set checkpoint.interval=2 " + set_file("data.valid", "dev.tsv"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.err, HasSubstr("task.init: the checkpoint has no head.classes.weight, head.classes.bias: from the "
                                   "seed"));
  EXPECT_THAT(whole.err, HasSubstr("step 3  valid: loss "));
  EXPECT_THAT(whole.err, HasSubstr("  accuracy "));
  const std::vector<std::string> lines = metrics("whole");
  ASSERT_EQ(lines.size(), 8U) << "three steps an epoch, then its score";
  EXPECT_THAT(lines[3], HasSubstr("{\"eval\":\"valid\",\"step\":3,\"loss\":"));
  EXPECT_THAT(lines[7], HasSubstr("\"total\":9"));
  EXPECT_THAT(lines[1], HasSubstr("\"labels\":8"));
  EXPECT_THAT(lines[2], HasSubstr("\"labels\":6")) << "22 samples: two of the third batch have no loss";
  ASSERT_EQ(run_shell("cp -r " + out("whole") + " " + out("half") + " && rm -r " + out("half") +
                      "/checkpoints/step_00000006 " + out("bert"))
                .code,
            0);
  const Finished rest = finetune("half", "--resume --set checkpoint.interval=2 ");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.err, HasSubstr("at step 4"));
  const std::vector<std::string> again = metrics("half");
  ASSERT_EQ(again.size(), lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(numbers_of(again[i]), numbers_of(lines[i])) << i;
}

TEST_F(TaskProgram, GraphsAreEagerAndGridsAgree) {
  pretrain();
  const auto lines_of = [&](const std::string& name, const std::string& more) {
    const Finished run = finetune(name, more);
    EXPECT_EQ(run.code, 0) << run.err;
    std::vector<std::string> lines;
    for (const std::string& line : metrics(name))
      if (!line.starts_with("{\"graphs\"")) lines.push_back(numbers_of(line));
    return lines;
  };
  const std::vector<std::string> eager = lines_of("eager", "");
  EXPECT_EQ(lines_of("iteration", "--set graphs.mode=iteration --set graphs.warmup_steps=1"), eager);
  EXPECT_EQ(lines_of("layers", "--set graphs.mode=layers --set graphs.warmup_steps=1"), eager);
  EXPECT_EQ(lines_of("recomputed", "--set recompute.mode=full"), eager);
  const auto loss_of = [](const std::string& line) { return std::stod(line.substr(line.find("\"loss\":") + 7)); };
  pretrain("bert64", "--set train.precision=fp64");
  const std::string fp64 = "--set train.precision=fp64 --set task.init=" + out("bert64") + " ";
  EXPECT_NEAR(loss_of(lines_of("grid", fp64 + "--set parallel.tp=2 --set parallel.pp=2 --set parallel.ranks=4").back()),
              loss_of(lines_of("one", fp64).back()), 1e-10);
}

TEST_F(TaskProgram, MatchedAndMismatchedAreScoredByThemselves) {
  pretrain();
  write_all(dir_ / "other.tsv", pairs(4));
  const Finished run = finetune(
      "two", "--set 'data.valid=[\"" + (dir_ / "dev.tsv").string() + "\", \"" + (dir_ / "other.tsv").string() + "\"]'");
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<std::string> lines = metrics("two");
  EXPECT_THAT(lines[lines.size() - 2], HasSubstr("{\"eval\":\"dev\",\"step\":6,"));
  EXPECT_THAT(lines.back(), HasSubstr("{\"eval\":\"other\",\"step\":6,"));
  EXPECT_THAT(lines.back(), HasSubstr("\"total\":4"));
  std::filesystem::create_directory(dir_ / "mm");
  write_all(dir_ / "mm/dev.tsv", pairs(4));
  const Finished named =
      finetune("named", "--set 'data.valid=[\"" + out("dev.tsv") + "\", \"" + out("mm/dev.tsv") + "\"]'");
  ASSERT_EQ(named.code, 0) << named.err;
  EXPECT_THAT(metrics("named").back(), HasSubstr("{\"eval\":\"" + out("mm/dev.tsv") + "\",\"step\":6,"))
      << "files of one name have their whole paths";
}

TEST_F(TaskProgram, WhatDoesNotFitIsRefused) {
  pretrain();
  const auto refused = [&](int code, const std::string& more, const std::string& text) {
    const Finished run = finetune("refused", more);
    EXPECT_EQ(run.code, code) << more << run.err;
    EXPECT_THAT(run.err, HasSubstr(text)) << more;
    EXPECT_FALSE(std::filesystem::exists(dir_ / "refused")) << more;
  };
  refused(66, "--set model.family=gpt2 --set train.steps=9", "model.family = gpt2: task.init has bert; remove the key");
  const Finished decoder = run_shell(train("refused", "--set task.name=mnli --set model.family=gpt2"));
  EXPECT_EQ(decoder.code, 64);
  EXPECT_THAT(decoder.err, HasSubstr("model.family = gpt2: must be bert with task.name: an encoder is fine-tuned"));
  refused(64, "--set train.steps=9 --set bert.max_ngram=2",
          "train.steps = 9: does not go with task.name: steps follow from task.epochs; remove it");
  refused(64, "--set train.steps=9 --set bert.max_ngram=2", "bert.max_ngram = 2: is for pretraining");
  refused(64, "--set train.init=x", "train.init = x: does not go with task.name");
  refused(64, "--set data.split=0.9", "does not go with task.name; name data.valid");
  refused(64, "--set task.name=mnlo", "mnli");
  refused(64, "--set task.name=squad1 --set task.doc_stride=4 --set task.max_query=10",
          "task.max_query + task.doc_stride + 3 = 17: must be at most model.seq_len = 16");
  refused(64, "--set task.name=race --set task.max_query=13", "task.max_query + 3 = 16: must be below model.seq_len");
  refused(65, "--set task.init=" + out("nowhere"), "there is no such folder of a checkpoint");
  refused(66, "--set model.hidden_size=20", "model.hidden_size = 20: task.init has 16; remove the key");
  refused(66, "--set model.seq_len=25", "model.seq_len = 25: must be at most 24, the positions of task.init");
  refused(66, "--set data.tokenizer=byte", "data.tokenizer = byte: task.init has bert-uncased");
  const std::string both = "--set model.tied=false --set model.position=rope --set model.norm_eps=1e-12";
  refused(66, both, "model.norm_eps = 1e-12: task.init has 1e-05; remove the key");
  refused(66, both, "model.tied = false: task.init has true; remove the key");
  refused(66, both, "model.position = rope: task.init has learned; remove the key");
  refused(65, "--set data.train=" + out("nof1"), "[data.train] " + out("nof1") + ": there is no such file");
  refused(65, "--set data.valid=" + out("nof1"), "[data.valid] " + out("nof1") + ": there is no such file");
  pretrain("one_type", "--set model.token_types=1 --set bert.order=none");
  refused(66, "--set task.init=" + out("one_type"),
          ": model.token_types = 1: must be at least 2: a task has two segments");
  const Finished other = run_shell("megalith train " + (dir_ / "bert.toml").string() + " --out " + out("refused") +
                                   " --set model.norm=rms --set train.init=" + out("bert"));
  EXPECT_EQ(other.code, 66) << other.err;
  EXPECT_THAT(other.err, HasSubstr("[train.init] "));
  EXPECT_THAT(other.err, HasSubstr("does not fit the recipe:\n  model.norm = rms: the checkpoint's model has layer"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "refused"));
  write_all(dir_ / "wrong.tsv", "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tentail\n");
  refused(65, set_file("data.train", "wrong.tsv"),
          "gold_label = \"entail\": must be entailment, neutral or contradiction");
  const std::string two_files = set_file("data.train", "wrong.tsv") + set_file("data.valid", "nowhere.tsv");
  refused(65, two_files, "wrong.tsv:2] gold_label = \"entail\"");
  refused(65, two_files, "\n[data.valid] " + out("nowhere.tsv") + ": there is no such file");
  ASSERT_EQ(run_shell(train("gpt")).code, 0);
  refused(66, "--set task.init=" + out("gpt"), "model.family = gpt2: must be bert");
  EXPECT_THAT(
      run_shell("megalith train " + (dir_ / "bert.toml").string() + " --set task.epochs=2 --out " + out("x")).err,
      HasSubstr("task.epochs = 2: is for fine-tuning: needs task.name"));
}

TEST_F(TaskProgram, RowsThatAreLeftOutAreCountedAtTheStart) {
  pretrain();
  write_all(dir_ / "train.tsv", pairs(8) + "8\tthe birds\tthey flew\t-\n9\tbroken\n");
  const Finished run = finetune("run");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("data.train: " + out("train.tsv") +
                                 ": 2 of 10 rows are left out: 1 with another number of columns than the first line, "
                                 "1 with the label \"-\", on which annotators did not agree\n"));
  EXPECT_THAT(run.err, Not(HasSubstr("data.valid: ")));
}

TEST_F(TaskProgram, PlansARecipeWithoutItsSteps) {
  pretrain();
  const Finished plan = run_shell("megalith plan " + (dir_ / "mnli.toml").string() + " --set parallel.pp=2");
  EXPECT_EQ(plan.code, 0) << plan.err;
  const Finished recipe =
      run_shell("megalith recipe " + (dir_ / "mnli.toml").string() + " --set task.preset=336m --set task.epochs=3");
  EXPECT_EQ(recipe.code, 0) << recipe.err;
  EXPECT_THAT(recipe.out, HasSubstr("num_positions = 24"));
  EXPECT_THAT(recipe.out, HasSubstr("epochs = 3"));
  EXPECT_THAT(recipe.out, Not(HasSubstr("\nsteps = ")));
}

}  // namespace
}  // namespace megalith
