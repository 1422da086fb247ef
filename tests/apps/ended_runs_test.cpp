#include <csignal>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/support/sanitizers.h"

// How runs are refused, stopped and ended: exit codes, what is printed, and what is left behind.
namespace megalith {
namespace {

using support::beside_a_run;
using support::Finished;
using support::has_gpu;
using support::kStop;
using support::mpirun;
using support::Program;
using support::run_shell;

// A product's innermost loop may use its stack pointer for data, and a handler would write over what it shows: one
// thread takes the signals, and those that compute are not interrupted.
TEST_F(Program, StopSignalsAreTakenByOneThreadThatComputesNothing) {
  const Finished run = beside_a_run("OMP_NUM_THREADS=2 " + train_process("a", "--set parallel.pp=2"), out("a"),
                                    "cat /proc/$pid/task/*/status | sed -n 's/^SigBlk:[[:space:]]*//p'; " + kStop);
  EXPECT_EQ(run.code, 75) << run.err;
  // Not SIGINT, which the shell has its job ignore.
  constexpr std::uint64_t kStops = (1U << (SIGHUP - 1)) | (1U << (SIGTERM - 1)) | (1U << (SIGUSR1 - 1));
  std::istringstream masks(run.out);
  int take = 0, compute = 0;
  for (std::string mask; masks >> mask;) (std::stoull(mask, nullptr, 16) & kStops) == kStops ? ++compute : ++take;
  EXPECT_EQ(take, 1) << run.out;
  EXPECT_GE(compute, 2) << "the ranks: " << run.out;
}

TEST_F(Program, AStoppedRunSaysHowManyStepsAgreed) {
  const Finished run = beside_a_run(
      train_process("a", "--set graphs.mode=iteration --set graphs.warmup_steps=1 --set graphs.check=1000"), out("a"),
      kStop);
  EXPECT_EQ(run.code, 75) << run.err;
  EXPECT_THAT(run.err,
              ::testing::ContainsRegex("graphs.check = 1000: [0-9]+ steps were compared before the run ended"));
}

TEST_F(Program, ASignalSavesAndStopsAndTheRunGoesOn) {
  const Finished stopped = beside_a_run(train_process("a", "--set optimizer.decay_steps=1000"), out("a"), kStop);
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_NE(stopped.err.find("error: E75"), std::string::npos) << stopped.err;
  EXPECT_NE(stopped.err.find("saved step"), std::string::npos) << stopped.err;
  const std::size_t done = metrics("a").size();
  const Finished resumed =
      run_shell(train("a", "--resume --set optimizer.decay_steps=1000 --set train.eval_interval=0 --set train.steps=" +
                               std::to_string(done + 2)));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_GE(metrics("a").size(), done + 2);
}

TEST_F(Program, ARunThatTheHostCannotHoldIsRefusedInOneLine) {
  const Finished refused =
      run_shell(train("large", "--set model.num_layers=64 --set model.hidden_size=16384 --set model.num_heads=256"));
  EXPECT_EQ(refused.code, 74) << refused.err;
  EXPECT_THAT(refused.err, ::testing::ContainsRegex("^error: E74 rank 0: \\[memory\\] the plan: needs 3\\.[0-9]+ TiB "
                                                    "\\([0-9]+ bytes\\) of host memory for the rank on the host of "
                                                    "rank 0, which has [^\n]*\n$"));
}

TEST_F(Program, AnAllocationThatFailsEndsARunInOneLine) {
  if (support::kSanitizer) GTEST_SKIP() << "sanitizers take more address space than the limit";
  const Finished failed = run_shell("ulimit -v 1500000; " + train("large", "--set model.hidden_size=2048"));
  EXPECT_EQ(failed.code, 74) << failed.err;
  EXPECT_THAT(failed.err, ::testing::ContainsRegex("error: E74 rank 0: \\[memory\\] [^\n]*\n$"));
}

/// A run that does not come to its first step is sent a signal; the seconds that it then takes are printed.
Finished signalled_at_the_start(const std::string& train, const std::string& signal) {
  return run_shell("MEGALITH_FAULT='0:*:1:sleep=600s' " + train +
                   " & pid=$!; until grep -Eq '^SigBlk:.*[4-7c-f]...$' /proc/$pid/status || ! kill -0 $pid; do sleep "
                   "0.05; done; sleep 1; "
                   "start=$SECONDS; kill -" +
                   signal + " $pid; wait $pid; code=$?; echo $((SECONDS - start)); exit $code");
}

TEST_F(Program, ASignalBeforeTheFirstStepOfAResumeLosesNothing) {
  const std::string go_on = "--resume=auto --set train.steps=12";
  const Finished fresh = signalled_at_the_start(train_process("a", go_on), "TERM");
  EXPECT_EQ(fresh.code, 128 + SIGTERM) << fresh.err;
  EXPECT_LE(std::stoi(fresh.out), 5);
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const Finished resumed = signalled_at_the_start(train_process("a", go_on), "USR1");
  EXPECT_EQ(resumed.code, 75) << resumed.err;
  EXPECT_LE(std::stoi(resumed.out), 5);
  EXPECT_THAT(resumed.err,
              ::testing::HasSubstr("error: E75 stopped by a signal (User defined signal 1) before the first step: "
                                   "the checkpoint has all that was done"));
  EXPECT_EQ(run_shell(train("a", go_on)).code, 0);
}

TEST_F(Program, ASignalEndsALongPlanning) {
  const Finished run = run_shell(train_process("a", "--set model.num_layers=4096 --set model.hidden_size=64") +
                                 " & pid=$!; sleep 1; start=$SECONDS; kill -TERM $pid; wait $pid; code=$?; "
                                 "echo $((SECONDS - start)); exit $code");
  EXPECT_EQ(run.code, 128 + SIGTERM) << run.err;
  EXPECT_LE(std::stoi(run.out), 5);
  EXPECT_THAT(run.err, ::testing::HasSubstr("stopped by a signal (Terminated) before the first step"));
}

// A write that never ends, as on a server that has gone: the other ranks' verdict is printed, and the process ends.
TEST_F(Program, ARankThatStandsStillDoesNotKeepTheProcess) {
  for (const std::string still : {"3", "0"}) {
    const Finished run = run_shell("start=$SECONDS; MEGALITH_FAULT=" + still + ":write:5:sleep=600s " +
                                   train_process("a" + still,
                                                 "--set parallel.tp=2 --set parallel.pp=2 --set "
                                                 "parallel.timeout_s=2 --set checkpoint.interval=2") +
                                   "; code=$?; echo $((SECONDS - start)); exit $code");
    EXPECT_EQ(run.code, 72) << run.err;
    EXPECT_LE(std::stoi(run.out), 2 + 10) << still;
    EXPECT_THAT(run.err, ::testing::ContainsRegex("error: E72 rank [0-9]: .* waited [2-9]\\.[0-9] s in .*for rank"))
        << still;
  }
}

TEST_F(Program, DiskErrorsAreWarningsUntilTheLastSave) {
  const Finished early = run_shell("MEGALITH_FAULT='0:sync_dir:3:EIO' " + train("a", "--set checkpoint.interval=4"));
  EXPECT_EQ(early.code, 0) << early.err;
  EXPECT_NE(early.err.find("was not saved, training goes on"), std::string::npos) << early.err;
  const Finished late = run_shell("MEGALITH_FAULT='0:sync_dir:3+:ENOSPC' " + train("b"));
  EXPECT_EQ(late.code, 74) << late.err;
  EXPECT_NE(late.err.find("no space left"), std::string::npos) << late.err;
}

// Every look at a folder and every opening of a file fails once.
TEST_F(Program, ReadsThatFailForAMomentAreTriedAgain) {
  std::string faults = "MEGALITH_FAULT=";
  for (const char* read : {"list", "exists", "is_dir", "map", "file_size"}) {
    for (int n = 1; n < 80; n += 2) faults += "0:" + std::string(read) + ':' + std::to_string(n) + ":EIO,";
  }
  faults.back() = ' ';
  const std::string more = "--set train.steps=10 --set optimizer.decay_steps=10 ";
  write_all(dir_ / "tokens.json", "[[1, 2, 3]]");
  for (const std::string& command :
       {train("a"), train("a", more + "--resume"), train("b", "--set train.init=" + out("a")),
        "megalith generate --checkpoint " + out("a") + " --prompt the --max-tokens 2",
        "megalith score --checkpoint " + out("a") + " --tokens " + out("tokens.json"),
        "megalith eval " + out("a") + " --task loss --data " + out("text.txt"),
        "megalith checkpoint export-hf " + out("a") + " --out " + out("hf"),
        "megalith generate --checkpoint " + out("hf") + " --prompt the --max-tokens 2"}) {
    const Finished finished = run_shell(faults + command);
    EXPECT_EQ(finished.code, 0) << command << '\n' << finished.err;
    const Finished stays = run_shell("MEGALITH_FAULT=0:exists:*:ESTALE " + command);
    EXPECT_EQ(stays.code, 74) << command << '\n' << stays.err;
  }
}

TEST_F(Program, LinesThatADiskRefusedAreWrittenLater) {
  ASSERT_EQ(run_shell(train("whole")).code, 0);
  // The first writes are recipe.toml and history.jsonl.
  for (const std::string fault : {"0:write:4:ENOSPC", "0:write:4:short", "0:write:4:EIO,0:append:3:EIO"}) {
    const std::string name = "a" + std::to_string(fault.size());
    const Finished run = run_shell("MEGALITH_FAULT=" + fault + " " + train(name));
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(metrics(name), metrics("whole")) << fault;
    EXPECT_NE(run.err.find("metrics.jsonl is not complete, and is tried again at every step: cannot write "),
              std::string::npos)
        << run.err;
    EXPECT_NE(run.err.find("metrics.jsonl is complete again"), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("MEGALITH_FAULT = " + fault + ": file operations or communication calls are made to fail"),
              std::string::npos);
  }
}

TEST_F(Program, ASaveWithoutSpaceIsMissedBeforeItBeginsAndCounted) {
  const Finished run = run_shell("MEGALITH_FAULT='0:free_bytes:2:ENOSPC' " + train("a", "--set checkpoint.interval=3"));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, ::testing::ContainsRegex("checkpoint of step 3 was not saved, training goes on: .* a checkpoint "
                                                "takes [0-9.]+ KiB, 0 B are free: free some space"));
  EXPECT_NE(run.err.find("saved step 6"), std::string::npos) << run.err;
  const std::vector<std::string> lines = metrics("a");
  EXPECT_EQ(nlohmann::json::parse(lines.at(2)).at("missed_saves"), 0) << lines.at(2);
  EXPECT_EQ(nlohmann::json::parse(lines.at(3)).at("missed_saves"), 1) << lines.at(3);
  const Finished early = run_shell("MEGALITH_FAULT='0:free_bytes:*:ENOSPC' " + train("b"));
  EXPECT_EQ(early.code, 0) << "the last save is tried in any case: " << early.err;
  EXPECT_NE(early.err.find("the next save will fail: ["), std::string::npos) << early.err;
}

TEST_F(Program, AnOldCheckpointWithoutAReadableManifestStaysAndIsNamedOnce) {
  ASSERT_EQ(run_shell(train("a", "--set train.steps=2")).code, 0);
  const std::filesystem::path old = out("a") + "/checkpoints/step_00000002";
  ASSERT_EQ(run_shell(train("a", "--resume --set train.steps=4")).code, 0);
  const std::string manifest = "{\"version\": 9}";
  write_all(old / "MANIFEST", manifest);
  const Finished run = run_shell(train("a", "--resume --set train.steps=12 --set checkpoint.interval=2"));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(read_all(old / "MANIFEST"), manifest);
  const std::string warning =
      "old checkpoint " + old.string() + " stays: its manifest is damaged or of another version";
  EXPECT_NE(run.err.find(warning), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find(warning), run.err.rfind(warning)) << "once";
}

TEST_F(Program, AnOutThatIsRemovedUnderARunEndsItAndStaysRemoved) {
  for (const std::string grid : {"", "--set parallel.tp=2"}) {
    const Finished run = beside_a_run(train_process("a", grid + " --set checkpoint.interval=50"), out("a"),
                                      "rm -r " + out("a") + "; wait $pid");
    EXPECT_EQ(run.code, 74) << run.err;
    EXPECT_NE(run.err.find("run.lock] was removed or replaced while this job held it"), std::string::npos) << run.err;
    EXPECT_FALSE(std::filesystem::exists(out("a")));
  }
}

/// `command` while another job, `train` with many steps, is at work in `busy`.
Finished run_beside(const std::string& train, const std::string& busy, const std::string& command) {
  return beside_a_run(train + " 2>/dev/null", busy, command + "; code=$?; kill -9 $pid; wait $pid; exit $code");
}

TEST_F(Program, AFolderOfCheckpointsElsewhereIsLockedToo) {
  const std::string elsewhere = " --set checkpoint.dir=" + out("shared");
  const Finished second = run_beside(train_process("a", elsewhere), out("a"), train("b", elsewhere));
  EXPECT_EQ(second.code, 74) << second.err;
  EXPECT_NE(second.err.find("the folder is in use by"), std::string::npos) << second.err;
}

TEST_F(Program, AFolderOfCheckpointsThatCannotBeMadeLeavesNothing) {
  const std::string folder = "/proc/steps";
  const Finished refused = run_shell(train("a", "--set checkpoint.dir=" + folder));
  EXPECT_EQ(refused.code, 74) << refused.err;
  EXPECT_NE(refused.err.find("checkpoint.dir = " + folder + ": cannot "), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(out("a")));
  const Finished no_out = run_shell("megalith train " + recipe() + " --out " + folder);
  EXPECT_EQ(no_out.code, 74) << no_out.err;
  EXPECT_NE(no_out.err.find("--out = " + folder + ": cannot "), std::string::npos) << no_out.err;
}

TEST_F(Program, AFileInThePlaceOfAFolderIsNamed) {
  for (const std::string below : {"", "/steps", "/steps/more", "/"}) {
    const std::string folder = recipe() + below,
                      is = (below.empty() ? "" : ": " + recipe()) + ": is a file: name a folder\n";
    for (const std::string more : {"", " --resume=auto"}) {
      const Finished no_out = run_shell("megalith train " + recipe() + " --out " + folder + more);
      EXPECT_EQ(no_out.code, 64) << no_out.err;
      EXPECT_EQ(no_out.err, "error: --out = " + folder + is);
    }
    const Finished apart = run_shell(train("a", "--set checkpoint.dir=" + folder));
    EXPECT_EQ(apart.code, 64) << apart.err;
    EXPECT_EQ(apart.err, "error: checkpoint.dir = " + folder + is);
    EXPECT_FALSE(std::filesystem::exists(out("a")));
  }
}

TEST_F(Program, AnOutOfAnotherJobLeavesNoFolderOfCheckpoints) {
  const Finished second = run_beside(train_process("a"), out("a"), train("a", "--set checkpoint.dir=" + out("apart")));
  EXPECT_EQ(second.code, 74) << second.err;
  EXPECT_NE(second.err.find("--out = " + out("a") + ": ["), std::string::npos) << second.err;
  EXPECT_FALSE(std::filesystem::exists(out("apart")));
}

TEST_F(Program, AFolderOfCheckpointsThatIsInUseIsNamedByItsSetting) {
  const std::string apart = "--set checkpoint.dir=" + out("apart");
  ASSERT_EQ(run_shell(train("a", apart)).code, 0);
  const Finished refused = run_shell(train("b", apart));
  EXPECT_EQ(refused.code, 64) << refused.err;
  EXPECT_NE(refused.err.find("checkpoint.dir = " + out("apart") +
                             ": holds checkpoints of an earlier run; go on with --resume, or choose another "
                             "checkpoint.dir"),
            std::string::npos)
      << refused.err;
}

TEST_F(Program, ChangedTrainingDataIsRefusedAtResume) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  ASSERT_EQ(run_shell("printf '%0100d' 7 | dd of=" + (dir_ / "text.txt").string() + " bs=1 seek=500 conv=notrunc").code,
            0);
  const Finished changed = run_shell(train("a", "--resume --set train.steps=10"));
  EXPECT_EQ(changed.code, 66) << changed.err;
  EXPECT_NE(changed.err.find("data.train: its tokens differ"), std::string::npos) << changed.err;
}

TEST_F(Program, ARefusedRunLeavesNothing) {
  for (const char* more : {"--set model.vocab_size=100", "--resume", "--set data.train=/nowhere"}) {
    EXPECT_NE(run_shell(train("refused", more)).code, 0);
    EXPECT_FALSE(std::filesystem::exists(out("refused"))) << more;
  }
  EXPECT_EQ(run_shell("megalith train --resume=auto " + recipe() + " --out " + out("a")).code, 0);
  EXPECT_EQ(run_shell("megalith train --resume " + recipe() + " --out " + out("a")).code, 0);
}

TEST_F(Program, AnFp16RunThatOverflowsAtTheSmallestScaleEnds) {
  const Finished hopeless = run_shell(
      train("a",
            "--set train.precision=fp16 --set train.loss_scale=1 --set train.steps=60 --set optimizer.lr=1e5 --set "
            "optimizer.warmup_steps=0 --set checkpoint.interval=0 --set parallel.pp=2"));
  EXPECT_EQ(hopeless.code, 73) << hopeless.err;
  EXPECT_THAT(hopeless.err, ::testing::ContainsRegex(
                                "E73 .*the last 20 steps were not finite at train.loss_scale_min = 1: parameters stay "
                                "those of step [0-9]+. A lower optimizer.lr"));
}

TEST_F(Program, ALastUpdateThatBreaksTheParametersIsNoSuccess) {
  const Finished broken = run_shell(
      train("a", "--set train.steps=1 --set optimizer.lr=1e38 --set optimizer.warmup_steps=0 --set parallel.pp=2"));
  EXPECT_EQ(broken.code, 73) << broken.err;
  EXPECT_THAT(broken.err, ::testing::ContainsRegex("E73 .*the held-out loss is -?(nan|inf)"));
  const Finished resumed = run_shell(train("a", "--resume --set train.steps=3 --set parallel.pp=2"));
  EXPECT_EQ(resumed.code, 73) << resumed.err;
  EXPECT_THAT(resumed.err,
              ::testing::ContainsRegex("E73 .*parameters stay those of step 1.*It is the first step from "
                                       ".*step_00000001.*, whose parameters may be broken: move that folder away"));
}

// No rate mends a model that cannot make its first step.
TEST_F(Program, NumbersThatAreBadBeforeTheFirstUpdateAreNotTheLearningRates) {
  const auto ended = [&](const std::string& name, const std::string& more) {
    const Finished finished = run_shell(train(name, more));
    EXPECT_EQ(finished.code, 73) << finished.err;
    EXPECT_THAT(finished.err, ::testing::Not(::testing::HasSubstr("optimizer.lr"))) << more;
    return finished.err;
  };
  const std::string none =
      "parameters stay those of step 0. No update has been made, so the learning rate is not the "
      "reason: ";
  EXPECT_THAT(ended("a", "--set model.init_std=1e39"),
              ::testing::HasSubstr(none + "model.init_std = 1e+39 may be too large for train.precision = fp32\n"));
  EXPECT_THAT(ended("b",
                    "--set model.init_std=1e5 --set train.precision=fp16 --set train.loss_scale=1 "
                    "--set train.skip_limit=3"),
              ::testing::HasSubstr("the last 3 steps were not finite at train.loss_scale_min = 1: " + none +
                                   "model.init_std = 1e+05 may be too large for train.precision = fp16\n"));
  const std::string update = "--set train.steps=1 --set optimizer.lr=1e38 --set optimizer.warmup_steps=0 ";
  EXPECT_THAT(run_shell(train("c", update)).err, ::testing::HasSubstr("A lower optimizer.lr"));
  EXPECT_THAT(
      ended("d", "--set train.init=" + out("c")),
      ::testing::HasSubstr(none + "the parameters of train.init = " + out("c") + " may be broken, or too large"));
}

TEST_F(Program, ARunThatAGpuCannotHoldIsRefusedOnAGpu) {
  if (!has_gpu()) GTEST_SKIP() << "needs a GPU";
  const Finished refused = run_shell(train("large",
                                           "--set device.type=cuda --set train.micro_batch=8 --set model.num_layers=64 "
                                           "--set model.hidden_size=16384 --set model.num_heads=256"));
  EXPECT_EQ(refused.code, 64) << refused.err;
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, ::testing::ContainsRegex(
                               "error: train.micro_batch = 8: rank 0 takes 3\\.[0-9]+ TiB \\(activations [0-9.]+ "
                               "GiB, .*optimizer 1\\.50 TiB, .*parameters 768\\.[0-9]+ GiB, .*\\) of its GPU, "
                               "where [0-9.]+ [MG]iB are left "));
  EXPECT_NE(refused.err.find("use a smaller train.micro_batch, more of parallel.tp or parallel.pp, a smaller model"),
            std::string::npos)
      << refused.err;
  // The job has claimed its folders by then and done no more.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(out("large")))
    EXPECT_TRUE(entry.is_directory() || entry.path().filename() == "run.lock") << entry.path();
}

TEST_F(Program, WithoutAGpuCudaIsRefusedAndLeavesNothing) {
  if (has_gpu()) GTEST_SKIP() << "this machine has a GPU";
  for (const char* grid : {"", " --ranks 2", " --resume=auto --set parallel.tp=2"}) {
    const Finished refused = run_shell(train("gpu", std::string("--set device.type=cuda") + grid));
    EXPECT_EQ(refused.code, 70) << grid;
    EXPECT_NE(refused.err.find("error: E70 device.type = cuda: this "), std::string::npos) << refused.err;
    EXPECT_FALSE(std::filesystem::exists(out("gpu"))) << grid;
  }
#ifdef MEGALITH_WITH_MPI
  const Finished refused = run_shell(mpirun(2, train_process("gpu", "--set device.type=cuda")));
  EXPECT_EQ(refused.code, 70);
  EXPECT_NE(refused.err.find("device.type = cuda: this "), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(out("gpu")));
#endif
}

TEST_F(Program, MoreRanksThanGpusAreRefusedAndLeaveNothing) {
  const nlohmann::json doctor = nlohmann::json::parse(run_shell("megalith doctor --format json").out);
  int gpus = 0;
  while (doctor.contains("GPU " + std::to_string(gpus))) ++gpus;
  if (gpus == 0) GTEST_SKIP() << "this machine has no GPU";
  if (doctor.at("GPUs between them").at("state") == "no") GTEST_SKIP() << "built without NCCL";
  const std::string ranks = std::to_string(gpus + 1);
  const Finished refused = run_shell(train("gpu", "--set device.type=cuda --ranks " + ranks +
                                                      " --set train.global_batch=" + std::to_string(8 * (gpus + 1))));
  EXPECT_EQ(refused.code, 64) << refused.err;
  EXPECT_NE(refused.err.find("error: parallel.ranks = " + ranks + ": "), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(out("gpu")));
}

}  // namespace
}  // namespace megalith
