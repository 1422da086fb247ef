#include <fstream>
#include <sstream>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"

// The program as a user runs it: output, metrics, resuming, mpirun.
namespace megalith {
namespace {

using support::Finished;
using support::has_gpu;
using support::mpirun;
using support::Program;
using support::run_shell;

TEST_F(Program, TwoRunsWriteTheSameMetrics) {
  const Finished first = run_shell(train("a", "--set parallel.tp=2 --set parallel.pp=2"));
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(run_shell(train("b", "--set parallel.tp=2 --set parallel.pp=2")).code, 0);
  EXPECT_EQ(metrics("a"), metrics("b"));
  EXPECT_EQ(metrics("a").size(), 10u);  // 8 steps, 2 evaluations
  EXPECT_NE(first.err.find("held-out loss"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("memory of rank 0: activations "), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("state digest"), std::string::npos) << first.err;
}

TEST_F(Program, TheResolvedRecipeGivesTheSameRun) {
  ASSERT_EQ(run_shell(train("a", "--set parallel.tp=2")).code, 0);
  const Finished again = run_shell("megalith train " + out("a") + "/recipe.toml --out " + out("b"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(metrics("a"), metrics("b"));
}

TEST_F(Program, AnInterruptedRunGoesOnAsIfNothingHadHappened) {
  ASSERT_EQ(run_shell(train("whole")).code, 0);
  ASSERT_EQ(run_shell(train("cut", "--set checkpoint.interval=3 --set train.steps=8")).code, 0);
  // Throw the last checkpoint away: the newest one left is step 6, and the metrics run ahead of it.
  ASSERT_EQ(run_shell("rm -r " + out("cut") + "/checkpoints/step_00000008").code, 0);
  const Finished resumed = run_shell(train("cut", "--resume --set checkpoint.interval=3"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("at step 6"), std::string::npos) << resumed.err;
  EXPECT_EQ(metrics("cut"), metrics("whole"));
}

// Every line of metrics takes 50 ms: a run of 1.2 s and more.
TEST_F(Program, ARunSavesByTimeOnEveryGrid) {
  const auto saves = [&](const std::string& command) {
    const Finished run = run_shell("export MEGALITH_FAULT='0:write:*:sleep=10ms'; " + command);
    EXPECT_EQ(run.code, 0) << run.err;
    std::size_t count = 0;
    for (std::size_t at = run.err.find("saved step "); at != run.err.npos; at = run.err.find("saved step ", at + 1))
      ++count;
    return count;
  };
  const std::string steps = "--set train.steps=24 --set optimizer.decay_steps=24 --set checkpoint.every_s=";
  EXPECT_EQ(saves(train("never", steps + "0")), 1u);
  EXPECT_GE(saves(train("a", steps + "0.06")), 3u);
  EXPECT_EQ(metrics("a"), metrics("never"));
  EXPECT_GE(saves(train("b", steps + "0.06 --set parallel.tp=2 --set parallel.pp=2")), 3u);
#ifdef MEGALITH_WITH_MPI
  EXPECT_GE(saves(mpirun(4, train_process("c", steps + "0.06 --set parallel.tp=2 --set parallel.pp=2"))), 3u);
#endif
  EXPECT_EQ(run_shell(train("bad", "--set checkpoint.every_s=-1")).code, 64);
}

TEST_F(Program, ResumeWithoutACheckpointIsAnErrorUnlessAutomatic) {
  const Finished none = run_shell(train("a", "--resume"));
  EXPECT_EQ(none.code, 67);
  EXPECT_EQ(none.err.substr(0, 10), "error: E67") << none.err;
  EXPECT_EQ(run_shell(train("a", "--resume=auto")).code, 0);
  const Finished again = run_shell(train("a"));
  EXPECT_EQ(again.code, 64) << again.err;
  EXPECT_NE(again.err.find("holds checkpoints of an earlier run"), std::string::npos) << again.err;
}

TEST_F(Program, ADamagedCheckpointIsPassedOverLoudlyOrRefused) {
  const std::string save_often = "--set checkpoint.interval=3 --set parallel.tp=2";
  ASSERT_EQ(run_shell(train("whole", "--set parallel.tp=2")).code, 0);
  ASSERT_EQ(run_shell(train("a", save_often)).code, 0);
  const std::string shard = out("a") + "/checkpoints/step_00000008/shard_00001.safetensors";
  ASSERT_EQ(run_shell("printf X | dd of=" + shard + " bs=1 seek=3000 conv=notrunc").code, 0);
  const Finished refused = run_shell(train("a", "--resume --set checkpoint.on_corrupt=fail " + save_often));
  EXPECT_EQ(refused.code, 65) << refused.err;
  EXPECT_NE(refused.err.find("shard_00001.safetensors"), std::string::npos) << refused.err;
  const Finished resumed = run_shell(train("a", "--resume " + save_often));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("step_00000008 cannot be used and was passed over"), std::string::npos) << resumed.err;
  EXPECT_NE(resumed.err.find("at step 6"), std::string::npos) << resumed.err;
  EXPECT_EQ(metrics("a"), metrics("whole"));
}

TEST_F(Program, TokensAreBuiltInspectedAndTrainedOn) {
  const std::string prefix = out("tokens"), build = "megalith data build --tokenizer byte --input " +
                                                    (dir_ / "text.txt").string() + " --output " + prefix;
  const Finished built = run_shell(build);
  ASSERT_EQ(built.code, 0) << built.err;
  const Finished twice = run_shell(build);
  EXPECT_NE(twice.code, 0);
  EXPECT_NE(twice.err.find("--overwrite"), std::string::npos) << twice.err;
  const Finished info = run_shell("megalith data info " + prefix + " --format json");
  ASSERT_EQ(info.code, 0) << info.err;
  EXPECT_EQ(nlohmann::json::parse(info.out).at("documents").get<int>(), 1);
  ASSERT_EQ(run_shell(train("text")).code, 0);
  const Finished trained = run_shell(train("built", "--set data.train=" + prefix));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(metrics("built"), metrics("text"));
}

TEST_F(Program, GenerateUsesTheCheckpointBeforeADamagedOne) {
  ASSERT_EQ(run_shell(train("a", "--set checkpoint.interval=4 --set checkpoint.dir=" + out("steps"))).code, 0);
  const std::string shard = out("steps") + "/step_00000008/shard_00000.safetensors";
  ASSERT_EQ(run_shell("printf X | dd of=" + shard + " bs=1 seek=3000 conv=notrunc").code, 0);
  const Finished text = run_shell("megalith generate --checkpoint " + out("a") + " --prompt 'the ' --max-tokens 5");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out.substr(0, 4), "the ");
  EXPECT_NE(text.err.find("step_00000008 cannot be used"), std::string::npos) << text.err;
  EXPECT_EQ(run_shell("megalith generate --checkpoint " + out("steps") + "/step_00000008").code, 65);
}

TEST_F(Program, AnEvaluationThatWasCutOffIsMadeUpFor) {
  ASSERT_EQ(run_shell(train("whole", "--set checkpoint.interval=4")).code, 0);
  ASSERT_EQ(run_shell(train("cut", "--set checkpoint.interval=4")).code, 0);
  // As if the process had died between the last save and its evaluation.
  ASSERT_EQ(run_shell("sed -i '$d' " + out("cut") + "/metrics.jsonl").code, 0);
  ASSERT_NE(metrics("cut"), metrics("whole"));
  ASSERT_EQ(run_shell(train("cut", "--resume --set checkpoint.interval=4")).code, 0);
  EXPECT_EQ(metrics("cut"), metrics("whole"));
}

TEST_F(Program, AllOfTheHeldOutSetIsEvaluatedForAnyBatch) {
  std::vector<double> losses;
  for (const char* batch : {"1", "8", "1024"}) {
    ASSERT_EQ(
        run_shell(train(batch, std::string("--set train.steps=1 --set optimizer.lr=1e-300 --set train.eval_batches=0 "
                                           "--set train.precision=fp64 --set train.global_batch=") +
                                   batch))
            .code,
        0);
    losses.push_back(nlohmann::json::parse(metrics(batch).back()).at("loss").get<double>());
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-12);
  EXPECT_NEAR(losses[0], losses[2], 1e-12);
}

TEST_F(Program, ATableOfGemmAlgorithmsIsForGpus) {
  const Finished refused = run_shell(train("table", "--gemm-table " + out("table.json")));
  EXPECT_EQ(refused.code, 64);
  EXPECT_NE(refused.err.find("error: --gemm-table = "), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("needs device.type = \"cuda\" and train.gemm = \"timed\""), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(out("table")));
}

TEST_F(Program, RunsOnAGpuShareOneTableOfGemmAlgorithms) {
  if (!has_gpu()) GTEST_SKIP() << "needs a GPU";
  const std::string cache = "XDG_CACHE_HOME=" + out("cache") + " ", no_cache = "XDG_CACHE_HOME=/proc/nowhere ",
                    on_gpu = "--set device.type=cuda --set checkpoint.interval=4 ";
  const auto table = [&](const std::string& name) { return read_all(out(name) + "/gemm_table.json"); };
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
  };

  const Finished first = run_shell(cache + train("first", on_gpu));
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(count(first.err, " of them timed"), 1) << first.err;
  const Finished cached = run_shell(cache + train("cached", on_gpu));
  EXPECT_NE(cached.err.find(" 0 of them timed"), std::string::npos) << cached.err;
  const Finished given = run_shell(no_cache + train("given", on_gpu + "--gemm-table " + out("first/gemm_table.json")));
  EXPECT_NE(given.err.find(" 0 of them timed"), std::string::npos) << given.err;
  for (const char* other : {"cached", "given"}) {
    EXPECT_EQ(table(other), table("first")) << other;
    EXPECT_EQ(metrics(other), metrics("first")) << other;
  }

  ASSERT_EQ(run_shell("rm -r " + out("first/checkpoints/step_00000008") + " " + out("first/gemm_table.json")).code, 0);
  const Finished resumed = run_shell(no_cache + train("first", on_gpu + "--resume"));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find(" 0 of them timed"), std::string::npos) << resumed.err;
  EXPECT_EQ(table("first"), table("cached"));
  EXPECT_EQ(metrics("first"), metrics("cached"));

  ASSERT_EQ(run_shell("truncate -s 100 " + out("cache") + "/megalith/gemm/*.json").code, 0);
  const Finished damaged = run_shell(cache + train("damaged", on_gpu));
  EXPECT_EQ(damaged.code, 0) << damaged.err;
  EXPECT_EQ(count(damaged.err, "the cache of GEMM algorithms is ignored"), 1) << damaged.err;
  EXPECT_EQ(count(run_shell(cache + train("mended", on_gpu)).err, " 0 of them timed"), 1);

  const Finished heuristic = run_shell(cache + train("heuristic", on_gpu + "--set train.gemm=heuristic"));
  EXPECT_EQ(heuristic.code, 0) << heuristic.err;
  EXPECT_FALSE(std::filesystem::exists(out("heuristic/gemm_table.json")));
  EXPECT_EQ(run_shell(train("bad", on_gpu + "--gemm-table " + recipe())).code, 65);
  EXPECT_FALSE(std::filesystem::exists(out("bad")));
}

TEST_F(Program, AModelIsAskedOnTheDeviceThatTheCommandNames) {
  ASSERT_EQ(run_shell(train("a", "--set train.precision=fp64 --set train.steps=1")).code, 0);
  std::ofstream(dir_ / "one.json") << "[[1, 2]]";
  const Finished wide = run_shell("megalith score --device cuda --precision fp64 --checkpoint " + out("a") +
                                  " --tokens " + out("one.json"));
  EXPECT_EQ(wide.code, 64);
  EXPECT_NE(wide.err.find("--precision = fp64: is for --device cpu; a GPU computes in bf16 or fp32"), std::string::npos)
      << wide.err;
  ASSERT_EQ(run_shell(train("b", "--set train.steps=1")).code, 0);
  std::ofstream(dir_ / "ids.json") << "[[116, 104, 101, 32, 255, 0, 7], [1, 2]]";
  const std::string score = "megalith score --checkpoint " + out("b") + " --tokens " + (dir_ / "ids.json").string() +
                            " --precision fp32 --device ";
  const Finished cpu = run_shell(score + "cpu"), gpu = run_shell(score + "cuda");
  ASSERT_EQ(cpu.code, 0) << cpu.err;
  if (!has_gpu()) {
    EXPECT_EQ(gpu.code, 70);
    EXPECT_EQ(gpu.out, "");
    EXPECT_NE(gpu.err.find("error: E70 device.type = cuda: this "), std::string::npos) << gpu.err;
    return;
  }
  ASSERT_EQ(gpu.code, 0) << gpu.err;
  const nlohmann::json want = nlohmann::json::parse(cpu.out).at("logprobs"),
                       got = nlohmann::json::parse(gpu.out).at("logprobs");
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t list = 0; list < want.size(); ++list) {
    ASSERT_EQ(got[list].size(), want[list].size());
    for (std::size_t i = 1; i < want[list].size(); ++i)
      EXPECT_NEAR(got[list][i].get<double>(), want[list][i].get<double>(), 1e-5) << list << ", " << i;
  }
}

TEST_F(Program, WidthsOfOneTrain) {
  for (const char* shape :
       {"model.ffn_hidden_size=1", "model.ffn_hidden_size=4 --set parallel.tp=4",
        "model.hidden_size=1 --set model.num_heads=1", "model.seq_len=1", "model.hidden_size=4 --set parallel.tp=4"}) {
    const Finished got = run_shell(train("narrow", std::string("--set ") + shape) + " && rm -r " + out("narrow"));
    EXPECT_EQ(got.code, 0) << shape << "\n" << got.err;
  }
}

TEST_F(Program, AHuggingFaceRoundTripScoresTheSame) {
  ASSERT_EQ(run_shell(train("a", "--set parallel.tp=2 --set parallel.pp=2 --set parallel.ranks=4")).code, 0);
  std::ofstream(dir_ / "ids.json") << "[[1], [116, 104, 101, 32], [255, 0]]";
  const std::string ids = " --tokens " + (dir_ / "ids.json").string();
  const Finished want = run_shell("megalith score --checkpoint " + out("a") + ids);
  ASSERT_EQ(want.code, 0) << want.err;
  const nlohmann::json scores = nlohmann::json::parse(want.out).at("logprobs");
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(scores[0], nlohmann::json::parse("[null]"));
  EXPECT_LT(scores[1][3].get<double>(), 0);
  const Finished exported = run_shell("megalith checkpoint export-hf " + out("a") + " --out " + out("hf"));
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(run_shell("megalith checkpoint export-hf " + out("a") + " --out " + out("hf")).code, 64);
  ASSERT_EQ(run_shell("megalith checkpoint import-hf " + out("hf") + " --out " + out("b")).code, 0);
  EXPECT_EQ(run_shell("megalith score --checkpoint " + out("b") + ids).out, want.out);
  // Its data is not known, and must be named by who trains on.
  EXPECT_EQ(run_shell("grep '^train = ' " + out("b") + "/recipe.toml").out, "");
  const Finished no_data =
      run_shell("megalith train " + out("b") + "/recipe.toml --set train.steps=1 --out " + out("c"));
  EXPECT_EQ(no_data.code, 64);
  EXPECT_NE(no_data.err.find("data.train = []: must name at least one file"), std::string::npos) << no_data.err;
  const Finished no_steps = run_shell("megalith train " + out("b") + "/recipe.toml --out " + out("c"));
  EXPECT_EQ(no_steps.code, 64);
  EXPECT_NE(no_steps.err.find("data.train = []: must name at least one file"), std::string::npos) << no_steps.err;
  const Finished folder = run_shell(train("c", "--set train.init=" + out("hf")));
  EXPECT_EQ(folder.code, 65);
  EXPECT_EQ(folder.err,
            "error: E65 train.init = " + out("hf") + ": is a Hugging Face folder; make a checkpoint of it, " +
                "`megalith checkpoint import-hf " + out("hf") + " --out OUT`, and give train.init that OUT\n");
  std::ofstream(dir_ / "wrong.json") << "[[1], 2]";
  const Finished wrong =
      run_shell("megalith score --checkpoint " + out("a") + " --tokens " + (dir_ / "wrong.json").string());
  EXPECT_EQ(wrong.code, 65) << wrong.err;
  EXPECT_NE(wrong.err.find("list 1 = 2: must be a list of 1 to 16 ids"), std::string::npos) << wrong.err;
  ASSERT_EQ(run_shell("megalith checkpoint export-hf " + out("b") + " --out " + out("hf2")).code, 0);
  EXPECT_EQ(run_shell("cmp " + out("hf") + "/model.safetensors " + out("hf2") + "/model.safetensors").code, 0);
  const Finished resumed = run_shell(train("b", "--resume"));
  EXPECT_EQ(resumed.code, 66) << resumed.err;
  EXPECT_NE(resumed.err.find("train.init"), std::string::npos) << resumed.err;
  std::ofstream(dir_ / "bad.json") << "[[1, 256]]";
  const Finished bad =
      run_shell("megalith score --checkpoint " + out("a") + " --tokens " + (dir_ / "bad.json").string());
  EXPECT_EQ(bad.code, 65);
  EXPECT_NE(bad.err.find("list 0, token 1 = 256: must be a whole number from 0 to 255"), std::string::npos) << bad.err;
}

TEST_F(Program, FineTuningBeginsAnewWithTheValuesOfACheckpoint) {
  ASSERT_EQ(run_shell(train("a", "--set parallel.tp=2")).code, 0);
  const std::string init = "--set train.init=" + out("a");
  const Finished tuned = run_shell(train("b", init + " --set train.global_batch=4 --set train.seed=3"));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_EQ(tuned.err.find("warning"), std::string::npos) << tuned.err;
  EXPECT_NE(tuned.err.find("values of " + out("a") + "/checkpoints/step_00000008; all else starts as in a new run"),
            std::string::npos)
      << tuned.err;
  const auto first_loss = [&](const char* name) { return nlohmann::json::parse(metrics(name).front()).at("loss"); };
  EXPECT_EQ(nlohmann::json::parse(metrics("b").front()).at("step"), 1);
  EXPECT_LT(first_loss("b").get<double>(), first_loss("a").get<double>() - 0.1);
  // Going on, it needs what it began with no more.
  ASSERT_EQ(run_shell("rm -r " + out("a")).code, 0);
  const Finished longer =
      run_shell(train("b", init + " --resume --set train.global_batch=4 --set train.seed=3 --set train.steps=9"));
  EXPECT_EQ(longer.code, 0) << longer.err;
  const Finished missing = run_shell(train("c", init));
  EXPECT_EQ(missing.code, 65) << missing.err;
  EXPECT_NE(missing.err.find("train.init = " + out("a") + ": there is no such folder"), std::string::npos)
      << missing.err;
}

TEST_F(Program, AnEmptyOutIsRefused) {
  for (const std::string& command :
       {"train " + recipe(), "checkpoint export-hf " + out("a"), "checkpoint import-hf " + out("a")}) {
    const Finished refused = run_shell("megalith " + command + " --out ''");
    EXPECT_EQ(refused.code, 64) << command;
    EXPECT_NE(refused.err.find("--out = \"\": must name a folder"), std::string::npos) << refused.err;
  }
}

TEST_F(Program, ThreadsOfARankAreThoseOfTheRecipeAndChangeNoBit) {
  const Finished one = run_shell(train("a", "--set device.threads=1")),
                 three = run_shell(train("b", "--set device.threads=3"));
  EXPECT_NE(one.err.find(" at most, 1 thread each\n"), std::string::npos) << one.err;
  EXPECT_NE(three.err.find(" at most, 3 threads each\n"), std::string::npos) << three.err;
  EXPECT_EQ(metrics("a"), metrics("b"));
  const Finished two_ranks = run_shell("taskset -c 0 " + train_process("c", "--set parallel.tp=2"));
  EXPECT_NE(two_ranks.err.find(" at most, 1 thread each\n"), std::string::npos) << two_ranks.err;
}

TEST_F(Program, CommandsTakeTheCheckpointAlike) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  std::ofstream(dir_ / "ids.json") << "[[116, 104, 101, 32]]";
  const std::pair<std::string, std::string> commands[] = {
      {"megalith generate ", " --prompt 'the ' --max-tokens 4 --seed 1"},
      {"megalith score ", " --tokens " + out("ids.json")},
      {"megalith eval ", " --task loss --data " + out("text.txt") + " | sed /^speed/d"}};
  for (const auto& [command, rest] : commands) {
    const Finished word = run_shell("set -o pipefail; " + command + out("a") + rest);
    EXPECT_EQ(word.code, 0) << word.err;
    const Finished option = run_shell("set -o pipefail; " + command + "--checkpoint " + out("a") + rest);
    EXPECT_EQ(option.code, 0) << option.err;
    EXPECT_EQ(option.out, word.out) << command;
    EXPECT_NE(word.out, "");
    EXPECT_EQ(run_shell("set -o pipefail; " + command + out("a") + " --checkpoint " + out("a") + rest).code, 64);
    const Finished none = run_shell("set -o pipefail; " + command + rest);
    EXPECT_EQ(none.code, 64);
    EXPECT_EQ(none.err.substr(0, 32), "error: --checkpoint is required\n") << none.err;
  }
}

// Whatever fails, its first line begins alike: with the code, unless it is a mistake of the command line or recipe.
TEST_F(Program, EveryErrorBeginsAlike) {
  std::ofstream(dir_ / "bad.jsonl") << "{\n";
  const std::pair<std::string, std::string> cases[] = {
      {train("a", "--stepz 3"), "error: "},
      {train("a", "--set train.steps=x"), "error: "},
      {train("a", "--set data.train=" + out("nowhere")), "error: E65 "},
      {"megalith eval " + out("nowhere") + " --task loss --data x", "error: E65 "},
      {train("a", "--resume"), "error: E67 "},
      {"megalith data build --input " + out("nowhere") + " --output " + out("b"), "error: E65 "},
      {"megalith tokenize --tokenizer bpe --vocab-dir " + out("nowhere") + " --text a", "error: E65 "},
      {"megalith checkpoint info " + out("nowhere"), "error: E65 "},
      {train("a", "--set model.hidden_size=20000 --set model.num_heads=20"), "error: E74 rank 0: "}};
  for (const auto& [command, begin] : cases) {
    const Finished failed = run_shell(command);
    EXPECT_NE(failed.code, 0) << command;
    const std::string code = begin.size() > 8 ? begin.substr(8, 2) : "64";
    EXPECT_EQ(std::to_string(failed.code), code) << command << '\n' << failed.err;
    EXPECT_TRUE(failed.err.starts_with(begin)) << command << '\n' << failed.err;
    EXPECT_EQ(failed.err.find("megalith: E"), std::string::npos) << failed.err;
  }
}

TEST_F(Program, GenerateContinuesTheSameTextForTheSameSeed) {
  ASSERT_EQ(run_shell(train("a", "--set parallel.tp=2 --set parallel.pp=2")).code, 0);
  const std::string generate = "megalith generate --checkpoint " + out("a") + " --prompt 'the ' --max-tokens 20 ";
  const Finished greedy = run_shell(generate + "--temperature 0"), again = run_shell(generate + "--temperature 0");
  ASSERT_EQ(greedy.code, 0) << greedy.err;
  EXPECT_EQ(greedy.out, again.out);
  EXPECT_EQ(greedy.out.substr(0, 4), "the ");
  EXPECT_EQ(run_shell(generate + "--seed 3").out, run_shell(generate + "--seed 3").out);
  EXPECT_EQ(run_shell(generate + "--seed 3 --device cpu").out, run_shell(generate + "--seed 3").out);
  EXPECT_NE(run_shell(generate + "--seed 3 --temperature 5").out, run_shell(generate + "--seed 4 --temperature 5").out);
}

TEST_F(Program, MpirunGivesTheBitsOfThreadsOnEveryGrid) {
#ifdef MEGALITH_WITH_MPI
  constexpr const char* kLayers = "--set graphs.mode=layers --set graphs.warmup_steps=2";
  constexpr const char* kWholeSteps =
      "--set graphs.mode=iteration --set graphs.optimizer=true --set graphs.warmup_steps=2";
  const std::string kExperts = "--set moe.num_experts=4 --set moe.aux_loss=0.1 --set moe.aux_scope=sequence";
  const std::string kClones = kExperts + " --set moe.echo.slots=2 --set moe.echo.min_pairs=0";
  const std::string kShards = "--set optimizer.distributed=true --set optimizer.shard=gradients";
  const struct {
    int ranks;
    const char* grid;
    std::string graphs = "", more = "";
  } grids[] = {{1, ""},
               {2, "tp=2"},
               {4, "tp=4"},
               {2, "pp=2"},
               {4, "pp=4"},
               {2, "ranks=2"},
               {4, "tp=2 pp=2"},
               {4, "tp=2 ranks=4"},
               {4, "pp=2 ranks=4"},
               {8, "tp=2 pp=2 ranks=8"},
               {2, "pp=2 chunks=2"},
               {4, "tp=2 pp=2 chunks=2"},
               {8, "tp=2 pp=2 ranks=8 sequence_parallel=true"},
               {2, "tp=2", kLayers},
               {2, "pp=2", kLayers},
               {2, "ranks=2", kLayers},
               {2, "tp=2", kWholeSteps},
               {2, "pp=2", kWholeSteps},
               {2, "ranks=2", kWholeSteps},
               {4, "ep=2 ranks=4", "", kExperts},
               {4, "tp=2 etp=1 ep=2 ranks=4", "", kExperts},
               {4, "pp=2 ep=2", "", kExperts},
               {4, "ep=4 ranks=4", "", kClones},
               {4, "pp=2 ep=2", "", kClones + " --set moe.echo.backend=collective"},
               {2, "ranks=2", "", kShards},
               {4, "pp=2 chunks=2 ranks=4", "", kShards}};
  for (const auto& [ranks, grid, graphs, more] : grids) {
    std::string settings = more + (ranks % 4 == 0 ? " --set train.precision=fp64" : "");
    std::istringstream words(grid);
    for (std::string word; words >> word;) settings += " --set parallel." + word;
    // What is set in `more` is of both runs, graphs are of one.
    ASSERT_EQ(run_shell(train("threads", settings)).code, 0) << grid;
    const Finished mpi = run_shell(mpirun(ranks, train_process("mpi", settings + " " + graphs)));
    ASSERT_EQ(mpi.code, 0) << grid << " " << graphs << "\n" << mpi.err;
    std::vector<std::string> got = metrics("mpi");
    std::erase_if(got, [](const std::string& line) { return line.starts_with("{\"graphs\""); });
    EXPECT_EQ(got, metrics("threads")) << grid << " " << graphs;
    if (more.starts_with(kClones)) {
      EXPECT_THAT(got, ::testing::Contains(::testing::ContainsRegex("\"clones\":[1-9]"))) << grid;
    }
    ASSERT_EQ(run_shell("rm -r " + out("mpi") + " " + out("threads")).code, 0);
  }
#else
  GTEST_SKIP() << "MPI is not built in";
#endif
}

TEST_F(Program, MpirunPassesTheExitCodeOn) {
#ifdef MEGALITH_WITH_MPI
  const Finished none = run_shell(mpirun(2, train_process("mpi", "--resume")));
  EXPECT_EQ(none.code, 67) << none.err;
  EXPECT_NE(none.err.find("E67"), std::string::npos) << none.err;
  for (const auto& [setting, code, text] : {std::tuple{"data.train=/nowhere.txt", 65, "/nowhere.txt"},
                                            std::tuple{"data.trian=x", 64, "did you mean data.train?"}}) {
    const Finished bad = run_shell(mpirun(2, train_process("mpi", std::string("--set ") + setting)));
    EXPECT_EQ(bad.code, code) << bad.err;
    const std::size_t once = bad.err.find(text);
    EXPECT_NE(once, std::string::npos) << bad.err;
    EXPECT_EQ(bad.err.find(text, once + 1), std::string::npos) << bad.err;
  }
#else
  GTEST_SKIP() << "MPI is not built in";
#endif
}

}  // namespace
}  // namespace megalith
