#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/test_data.h"

// eval.tasks: multiple-choice questions that a run scores at its evaluations.
namespace megalith {
namespace {

using support::Finished;
using support::run_shell;
using ::testing::HasSubstr;

class TrainTasks : public support::Program {
 protected:
  void SetUp() override {
    std::ofstream lines(dir_ / "questions.jsonl"), examples(dir_ / "examples.jsonl");
    // Choices of three letters by a linear congruential generator: of one length, and unlike the text, so that the
    // answers follow from the parameters alone.
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < kQuestions + kExamples; ++i) {
      nlohmann::json choices;
      for (int k = 0; k < 4; ++k) {
        std::string letters;
        for (int letter = 0; letter < 3; ++letter) {
          state = (state * 1103515245U + 12345U) & 0x7fffffffU;
          letters += static_cast<char>('a' + (state >> 16) % 26);
        }
        choices.push_back(letters);
      }
      const nlohmann::json line = {{"question", "the " + std::to_string(i)}, {"choices", choices}, {"answer", i % 4}};
      (i < kQuestions ? lines : examples) << line << '\n';
    }
  }
  /// The recipe's tasks, in fp64, with a rate at which a few steps change many answers.
  std::string task_train(const std::string& name, const std::string& more) const {
    return train(
        name,
        "--set model.seq_len=64 --set train.precision=fp64 --set optimizer.lr=0.08 --set checkpoint.interval=4 "
        "--set eval.tasks='[\"choice:" +
            out("questions.jsonl") + "\", \"piqa:" + kPiqa + "\", \"" + with_shots(2) + "\"]' " + more);
  }
  /// The questions after examples with their answers, as a task.
  std::string with_shots(int shots) const { return "choice:" + out("questions.jsonl") + shot_options(shots); }
  std::string shot_options(int shots) const {
    return " --shots " + std::to_string(shots) + " --shots-data " + out("examples.jsonl");
  }
  /// The evaluations of a task in metrics.jsonl, by step.
  std::map<int, nlohmann::json> scores(const std::string& name, const std::string& task) const {
    std::map<int, nlohmann::json> found;
    for (const std::string& line : metrics(name)) {
      const nlohmann::json entry = nlohmann::json::parse(line);
      if (entry.contains("eval") && entry.at("eval") == task) found[entry.at("step").get<int>()] = entry;
    }
    return found;
  }
  static constexpr std::size_t kQuestions = 60, kExamples = 5;
  const std::string kPiqa = MEGALITH_TEST_DATA "/choice/piqa_valid.jsonl";
};

TEST_F(TrainTasks, EveryEvaluationHasTheNumbersOfEval) {
  const Finished trained = run_shell(task_train("one", "--set log.tensorboard=true"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(scores("one", "piqa/piqa_valid").size(), 2U);
  const auto plain = scores("one", "choice/questions"), after_shots = scores("one", "choice/questions/2-shot");
  for (const auto& [own, options] : {std::pair{plain, std::string()}, {after_shots, shot_options(2)}}) {
    ASSERT_EQ(own.size(), 2U) << "steps 4 and 8";
    for (const auto& [step, score] : own) {
      EXPECT_EQ(score.at("questions"), kQuestions);
      EXPECT_FALSE(score.contains("loss"));
      const Finished eval =
          run_shell("megalith eval " + out("one") + "/checkpoints/step_0000000" + std::to_string(step) +
                    " --task choice --precision fp64 --format json --data " + out("questions.jsonl") + options);
      ASSERT_EQ(eval.code, 0) << eval.err;
      const nlohmann::json results = nlohmann::json::parse(eval.out).at("results");
      EXPECT_GE(results.size(), 8U);
      for (const auto& [name, value] : results.items())
        EXPECT_EQ(score.at(name), value) << name << " of step " << step << options;
    }
  }
  EXPECT_NE(plain.at(4).at("correct"), plain.at(8).at("correct")) << "the parameters are those of the step";
  EXPECT_NE(plain.at(8).at("correct"), after_shots.at(8).at("correct"));
  EXPECT_THAT(trained.err, HasSubstr("3 of 6 texts of piqa/piqa_valid are longer than model.seq_len + 1 tokens"));
  EXPECT_THAT(trained.err, testing::Not(HasSubstr("choice/questions are longer")));
  EXPECT_THAT(trained.err, testing::Not(HasSubstr("choice/questions/2-shot are longer")));
  EXPECT_THAT(trained.err, HasSubstr("step 8  choice/questions  acc "));
  EXPECT_THAT(trained.err, HasSubstr("(60 questions)"));
  EXPECT_EQ(run_shell("cat " + out("one") + "/tensorboard/* | grep -a -o 'choice/questions/acc_norm' | wc -l").out,
            "4\n")
      << "two evaluations, also as the begin of acc_norm_stderr";
}

TEST_F(TrainTasks, TextsOverTheWindowAreCounted) {
  const Finished trained = run_shell(
      train("cut", "--set model.seq_len=64 --set train.steps=1 --set eval.tasks='[\"" + with_shots(5) + "\"]'"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  // Five examples of at least 12 bytes, and a question of at least 9.
  EXPECT_THAT(trained.err, HasSubstr("eval.tasks: 240 of 240 texts of choice/questions/5-shot are longer than "
                                     "model.seq_len + 1 tokens, and lose their beginning"));
}

TEST_F(TrainTasks, EveryGridHasTheScoresOfOneRank) {
  const std::string steps = " --set train.steps=4 --set optimizer.decay_steps=8";
  const auto same = [&](const std::string& name, const std::string& more, const std::vector<const char*>& grids) {
    ASSERT_EQ(run_shell(task_train(name, more + steps)).code, 0);
    const auto want = scores(name, "choice/questions"), want_after_shots = scores(name, "choice/questions/2-shot");
    ASSERT_EQ(want.size(), 1U);
    ASSERT_EQ(want_after_shots.size(), 1U);
    for (const char* const grid : grids) {
      const Finished trained = run_shell(task_train(name + "_grid", more + steps + grid));
      EXPECT_EQ(trained.code, 0) << trained.err;
      EXPECT_EQ(scores(name + "_grid", "choice/questions"), want) << more << grid;
      EXPECT_EQ(scores(name + "_grid", "choice/questions/2-shot"), want_after_shots) << more << grid;
      std::filesystem::remove_all(out(name + "_grid"));
    }
  };
  same("dense", "--set train.micro_batch=2",
       {" --set parallel.tp=2 --set parallel.sequence_parallel=true", " --set parallel.pp=2 --set parallel.chunks=2",
        " --ranks 4 --set parallel.pp=2 --set optimizer.distributed=true"});
  same("experts",
       "--set train.micro_batch=2 --set moe.num_experts=4 --set moe.top_k=2 --set moe.ffn_hidden_size=16 "
       "--set moe.expert_bias_rate=0.05 --set moe.score=sigmoid",
       {" --ranks 2 --set parallel.ep=2 --set optimizer.distributed=true"});
}

TEST_F(TrainTasks, ARunIsScoredWithoutHeldOutDataAndWhereItGoesOn) {
  ASSERT_EQ(run_shell("sed -i /split/d " + recipe()).code, 0);
  const std::string bf16 = "--set train.precision=bf16 --set optimizer.distributed=true --ranks 2 ";
  ASSERT_EQ(run_shell(task_train("whole", bf16)).code, 0);
  const auto want = scores("whole", "choice/questions");
  ASSERT_EQ(want.size(), 2U);
  ASSERT_EQ(run_shell(task_train("half", bf16 + "--set train.steps=5 --set optimizer.decay_steps=8")).code, 0);
  ASSERT_EQ(scores("half", "choice/questions").size(), 2U) << "steps 4 and 5";
  const Finished rest = run_shell(task_train("half", bf16 + "--set optimizer.decay_steps=8 --resume"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  const auto got = scores("half", "choice/questions");
  EXPECT_EQ(got.at(4), want.at(4));
  EXPECT_EQ(got.at(8), want.at(8));
}

TEST_F(TrainTasks, WhatCannotBeScoredIsRefusedTogetherBeforeTheFirstStep) {
  std::ofstream(dir_ / "bad.jsonl") << "{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 7}\n";
  const auto refused = [&](const std::string& tasks, const std::string& more, int code) {
    const Finished finished = run_shell(train("bad", "--set eval.tasks='" + tasks + "' " + more));
    EXPECT_EQ(finished.code, code) << finished.err;
    EXPECT_FALSE(std::filesystem::exists(out("bad") + "/metrics.jsonl"));
    return finished.err;
  };
  const std::string names =
      refused(R"(["race:a.jsonl", "choice:", "choice:x/q.jsonl", "choice:y/q.jsonl", "arc:z.jsonl --shots 2"])",
              "--set train.micro_batch=3", 64);
  EXPECT_THAT(names, HasSubstr("eval.tasks = race:a.jsonl: must be FORM:FILE, and FORM one of choice, hellaswag, arc"));
  EXPECT_THAT(names, HasSubstr("eval.tasks = choice:: must be FORM:FILE"));
  EXPECT_THAT(names, HasSubstr("eval.tasks = choice:y/q.jsonl: its results would have the name of another one's, "
                               "choice/q"));
  EXPECT_THAT(names, HasSubstr("eval.tasks = arc:z.jsonl --shots 2: --shots = 2: needs --shots-data FILE with the "
                               "examples"));
  EXPECT_THAT(names, HasSubstr("train.micro_batch"));
  const std::string files = refused("[\"choice:" + out("bad.jsonl") + "\", \"arc:" + out("missing.jsonl") +
                                        "\", \"choice:" + out("questions.jsonl") + " --shots 1 --shots-data " +
                                        out("gone.jsonl") + "\", \"" + with_shots(9) + "\"]",
                                    "--set data.train=" + out("no.txt"), 65);
  EXPECT_THAT(files, HasSubstr("[eval.tasks, --shots-data] " + out("gone.jsonl") + ": there is no such file"));
  EXPECT_THAT(files, HasSubstr("examples.jsonl] has 5 questions: must have --shots = 9 or more"));
  EXPECT_THAT(files, HasSubstr("bad.jsonl"));
  EXPECT_THAT(files, HasSubstr("missing.jsonl"));
  EXPECT_THAT(files, HasSubstr("no.txt"));
  EXPECT_THAT(refused("[\"choice:" + out("questions.jsonl") + "\"]",
                      "--set model.family=bert --set data.tokenizer=bert-uncased", 64),
              HasSubstr("questions are for models that predict the next token, not for model.family = bert"));
}

}  // namespace
}  // namespace megalith
