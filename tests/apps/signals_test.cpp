#include <filesystem>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

// What signals do to a run, and faults that the system reports by a signal.
namespace megalith {
namespace {

using support::beside_a_run;
using support::Finished;
using support::kStop;
using support::mpirun;
using support::Program;
using support::run_shell;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

/// The number after `words` in a text; -1 where they are not in it.
std::int64_t number_behind(const std::string& words, const std::string& text) {
  const std::size_t at = text.find(words);
  return at == std::string::npos ? -1 : std::stoll(text.substr(at + words.size()));
}

// A shell without job control starts its jobs with SIGINT ignored.
const std::string kJobControl = "set -m; ";

TEST_F(Program, SignalsThatAskForAnEndSaveIt) {
  for (const std::string signal : {"INT", "TERM", "HUP", "QUIT", "ALRM", "PWR", "USR1", "USR2", "XCPU", "PIPE"}) {
    const Finished run = run_shell(kJobControl + train_process(signal, "--set train.steps=100000") + " & pid=$!; " +
                                   support::wait_for_step(out(signal), 3) + "kill -" + signal + " $pid; wait $pid");
    EXPECT_EQ(run.code, 75) << signal << ": " << run.err;
    EXPECT_GE(number_behind("saved step ", run.err), 3) << signal << ": " << run.err;
    if (signal != "PIPE") {  // whose sender, as a rule a closed output, reads nothing
      EXPECT_THAT(run.err, HasSubstr(", saving; again to stop now\n")) << signal;
      EXPECT_EQ(number_behind("finishing step ", run.err), number_behind("saved step ", run.err)) << run.err;
    }
    EXPECT_THAT(run.err, HasSubstr("error: E75 stopped on request (")) << signal;
  }
}

TEST_F(Program, AClosedOutputSavesAndStops) {
  const Finished run = run_shell("set -o pipefail; " + train("a", "--set train.steps=100000 2>&1") + " | head -n 5");
  EXPECT_EQ(run.code, 75) << run.out;
  EXPECT_FALSE(std::filesystem::is_empty(out("a") + "/checkpoints"));
  EXPECT_EQ(run_shell(train("a", "--resume --set train.steps=1")).code, 0);
}

TEST_F(Program, SignalsThatWereIgnoredAtTheStartStayIgnored) {
  const Finished run =
      beside_a_run("trap '' HUP PIPE; " + train_process("a"), out("a"),
                   "kill -HUP $pid; kill -PIPE $pid; before=$(wc -l <" + out("a") +
                       "/metrics.jsonl); for i in $(seq 100); do [ $(wc -l <" + out("a") +
                       "/metrics.jsonl) -gt $((before + 20)) ] && echo goes on && break; sleep 0.1; done; " + kStop);
  EXPECT_EQ(run.code, 75) << run.err;
  EXPECT_EQ(run.out, "goes on\n");
  EXPECT_THAT(run.err, HasSubstr("stopped on request (User defined signal 1)"));
}

// The save takes seconds: signals meet it under way.
const std::string kSlowSave = "MEGALITH_FAULT='0:create:*:sleep=2500ms' ";

TEST_F(Program, ASecondSignalWithinASecondDropsNothing) {
  const Finished run = run_shell(
      kJobControl + kSlowSave + train_process("a", "--set train.steps=100000") + " & pid=$!; " +
      support::wait_for_step(out("a"), 3) +
      "kill -INT $pid; sleep 0.2; kill -INT $pid; sleep 0.2; kill -TERM $pid; sleep 1; kill -HUP $pid; wait $pid");
  EXPECT_EQ(run.code, 75) << run.err;
  EXPECT_THAT(run.err, HasSubstr("saved step "));
  EXPECT_THAT(run.err, HasSubstr("stopped on request (Interrupt)"));
}

TEST_F(Program, ASecondSignalLaterEndsTheRunAtOnce) {
  const Finished run =
      run_shell(kJobControl + kSlowSave + train_process("a", "--set train.steps=100000") + " & pid=$!; " +
                support::wait_for_step(out("a"), 3) + "kill -INT $pid; sleep 1.3; kill -INT $pid; wait $pid");
  EXPECT_EQ(run.code, 130) << run.err;
  EXPECT_THAT(run.err, HasSubstr("megalith: stopped by a signal (Interrupt) at once: steps after the last save are "
                                 "lost\n"));
  EXPECT_EQ(run.err.find("saved step "), std::string::npos) << run.err;
}

// Nothing but the signals' own thread looks at them while a step lasts.
TEST_F(Program, ASecondSignalEndsARunInTheMiddleOfALongStep) {
  const std::string long_steps = train_process(
      "a",
      "--set train.steps=1000 --set train.eval_interval=0 --set train.micro_batch=1 --set train.global_batch=16000");
  for (const auto& [first, second, code] : {std::tuple{"INT", "INT", 130}, {"QUIT", "PWR", 158}}) {
    const Finished run = run_shell(kJobControl + long_steps + " & pid=$!; " + support::wait_for_step(out("a"), 1) +
                                   "kill -" + first + " $pid; sleep 1.3; start=$(date +%s%N); kill -" + second +
                                   " $pid; wait $pid; code=$?; echo $(( ($(date +%s%N) - start) / 1000000 )); rm -r " +
                                   out("a") + "; exit $code");
    EXPECT_EQ(run.code, code) << run.err;
    EXPECT_LE(std::stoi(run.out), 2000) << "ms";
    EXPECT_THAT(run.err, ContainsRegex("finishing step [23], saving; again to stop now\n"));
    EXPECT_THAT(run.err, HasSubstr(" at once: steps after the last save are lost\n"));
    EXPECT_EQ(run.err.find("saved step "), std::string::npos) << run.err;
  }
}

TEST_F(Program, ASignalBeforeTheFirstStepEndsTheRun) {
  const Finished run = run_shell(kJobControl + "MEGALITH_FAULT='0:map:1:sleep=3s' " + train_process("a") +
                                 " & pid=$!; sleep 0.7; kill -TERM $pid; wait $pid");
  EXPECT_EQ(run.code, 143) << run.err;
  EXPECT_THAT(run.err,
              HasSubstr("megalith: stopped by a signal (Terminated) before the first step: nothing was trained\n"));
}

TEST_F(Program, AFileThatReachesItsLimitFailsAsAFullDiskDoes) {
  const Finished run = run_shell("ulimit -f 8; " + train("a"));  // KiB: less than a checkpoint
  EXPECT_EQ(run.code, 74) << run.err;
  EXPECT_THAT(run.err,
              ContainsRegex("E74 .*cannot write .*: file too large: raise the limit on the size of files .ulimit -f."));
}

TEST_F(Program, ATokenFileThatIsCutUnderARunIsNamed) {
  const std::string prefix = out("tokens");
  ASSERT_EQ(
      run_shell("megalith data build --tokenizer byte --input " + (dir_ / "text.txt").string() + " --output " + prefix)
          .code,
      0);
  const Finished run = beside_a_run(train_process("a", "--set data.train=" + prefix), out("a"),
                                    "truncate -s 0 " + prefix + ".bin; wait $pid");
  EXPECT_EQ(run.code, 74) << run.err;
  EXPECT_THAT(run.err,
              HasSubstr("error: E74 [" + prefix + ".bin] was cut, or its disk failed, while it was being read\n"));
#ifdef MEGALITH_WITH_MPI
  ASSERT_EQ(run_shell("megalith data build --overwrite --tokenizer byte --input " + (dir_ / "text.txt").string() +
                      " --output " + prefix)
                .code,
            0);
  const Finished ranks = beside_a_run(mpirun(2, train_process("b", "--set data.train=" + prefix)), out("b"),
                                      "truncate -s 0 " + prefix + ".bin; wait $pid");
  EXPECT_EQ(ranks.code, 74) << ranks.err;
  EXPECT_THAT(ranks.err, ContainsRegex("error: E74 rank [01]: \\[" + prefix + ".bin\\] was cut"));
#endif
}

}  // namespace
}  // namespace megalith
