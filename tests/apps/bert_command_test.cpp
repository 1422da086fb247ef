#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/bert_program.h"

// A small BERT from text to a held-out loss, by the program.
namespace megalith {
namespace {

using support::BertProgram;
using support::Finished;
using support::run_shell;
using ::testing::HasSubstr;

/// A line of metrics without what a clock measures.
std::string numbers_of(const std::string& line) { return line.substr(0, line.find(",\"step_time_s\"")); }

TEST_F(BertProgram, TrainsFromSentencesAndResumesWithTheSameBits) {
  ASSERT_EQ(build_sentences().code, 0);
  const Finished whole = train_bert("whole", "--set checkpoint.interval=3");
  ASSERT_EQ(whole.code, 0) << whole.err;
  const std::vector<std::string> lines = metrics("whole");
  ASSERT_EQ(lines.size(), 8U);
  for (const char* name : {"\"mlm_loss\":", "\"masked_tokens\":", "\"order_loss\":", "\"order_accuracy\":"}) {
    EXPECT_THAT(lines[0], HasSubstr(name));
    EXPECT_THAT(lines[3], HasSubstr(name)) << "an evaluation";
  }
  ASSERT_EQ(
      run_shell("cp -r " + out("whole") + " " + out("half") + " && rm -r " + out("half") + "/checkpoints/step_00000006")
          .code,
      0);
  const Finished rest = train_bert("half", "--resume --set checkpoint.interval=3");
  ASSERT_EQ(rest.code, 0) << rest.err;
  const std::vector<std::string> again = metrics("half");
  ASSERT_EQ(again.size(), lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(numbers_of(again[i]), numbers_of(lines[i])) << i;
}

TEST_F(BertProgram, GridsAndTextsTrainAlike) {
  ASSERT_EQ(build_sentences().code, 0);
  const std::string fp64 = "--set train.precision=fp64 ";
  ASSERT_EQ(train_bert("one", fp64).code, 0);
  const Finished grid = train_bert("grid", fp64 + "--set parallel.tp=2 --set parallel.pp=2 --set parallel.ranks=4");
  ASSERT_EQ(grid.code, 0) << grid.err;
  const Finished text = train_bert("text", fp64 + "--set data.train=" + (dir_ / "stories.jsonl").string());
  ASSERT_EQ(text.code, 0) << text.err;
  const auto loss_of = [&](const std::string& name) {
    const std::string line = metrics(name).back();
    return std::stod(line.substr(line.find("\"loss\":") + 7));
  };
  EXPECT_NEAR(loss_of("grid"), loss_of("one"), 1e-11);
  EXPECT_EQ(loss_of("text"), loss_of("one")) << "a text is cut into the same sentences";
}

TEST_F(BertProgram, WhatDoesNotFitIsRefused) {
  ASSERT_EQ(build_sentences().code, 0);
  const Finished bytes = train_bert("bytes", "--set data.tokenizer=byte");
  EXPECT_EQ(bytes.code, 64);
  EXPECT_THAT(bytes.err, HasSubstr("has no [CLS], [SEP], [MASK], [PAD]"));
  write_all(dir_ / "single.jsonl", "{\"text\": \"One\"}\n{\"text\": \"Two\"}\n");
  const Finished single =
      train_bert("single", "--set data.split= --set data.train=" + (dir_ / "single.jsonl").string());
  EXPECT_EQ(single.code, 65) << single.err;
  EXPECT_THAT(single.err, HasSubstr("no document has two sentences: use bert.order = \"none\", or `data build "
                                    "--sentences`"));
  ASSERT_EQ(train_bert("done").code, 0);
  const Finished refused = run_shell("megalith generate --checkpoint " + out("done") + " --prompt a");
  EXPECT_EQ(refused.code, 64) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("model.family = bert: must be a model that predicts the next token"));
  EXPECT_THAT(run_shell("megalith checkpoint export-hf " + out("done") + " --out " + out("hf")).err,
              HasSubstr("model.family = bert"));
}

TEST_F(BertProgram, BenchesAStep) {
  const Finished bench = run_shell(
      "megalith bench step --layers 2 --hidden 16 --heads 2 --vocab 300 --seq 24 --batch 4 --steps 2 --warmup 1 --set "
      "model.family=bert");
  EXPECT_EQ(bench.code, 0) << bench.err;
  const Finished plan = run_shell("megalith plan " + (dir_ / "bert.toml").string() + " --set parallel.pp=2");
  EXPECT_EQ(plan.code, 0) << plan.err;
}

}  // namespace
}  // namespace megalith
