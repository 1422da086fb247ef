// `megalith run`: a training that is killed, fails or is stopped, and what it writes about that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/str.h"

#include "tests/apps/crash_run.h"
#include "tests/apps/program.h"
#include "tests/support/sweep.h"

namespace megalith::support {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<nlohmann::json> history_of(const std::string& out) {
  std::ifstream file(out + "/history.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::vector<nlohmann::json> exits_of(const std::string& out) {
  std::vector<nlohmann::json> exits;
  for (const nlohmann::json& line : history_of(out))
    if (line.at("event") == "exit") exits.push_back(line);
  return exits;
}

/// "137 1-12": exit code, first and last step of each training.
std::vector<std::string> texts_of(const std::vector<nlohmann::json>& exits) {
  std::vector<std::string> texts;
  for (const nlohmann::json& exit : exits) {
    const std::string steps = exit.contains("first_step")
                                  ? str(' ', exit.at("first_step").get<int>(), '-', exit.at("last_step").get<int>())
                                  : "";
    texts.push_back(str(exit.at("exit_code").get<int>(), steps));
  }
  return texts;
}

class RunCommand : public Program {
 protected:
  std::string supervised(const std::string& name, const std::string& more = "") const {
    return program() + " run " + recipe() + " --out " + out(name) + " --backoff 0s " + more;
  }
  const std::string long_run_ = " --set train.steps=100000 --set train.eval_interval=0 --set checkpoint.interval=5 ";
  std::string until_step(const std::string& name, int step) const { return wait_for_step(out(name), step); }
  /// Until `count` trainings have begun: from the first step, or resumed where a checkpoint was there.
  std::string until_trainings(const std::string& name, int count) const {
    return wait_until(
        str("[ $(grep -csE '\"event\":\"(start|resume)\"' ", out(name), "/history.jsonl) -ge ", count, " ]"));
  }
  std::string last_pid(const std::string& name) const {
    return "$(grep -o '\"pid\":[0-9]*' " + out(name) + "/history.jsonl | tail -1 | cut -d: -f2)";
  }
};

TEST_F(RunCommand, RestartsAKilledTraining) {
  const Finished run =
      run_shell(supervised("a", "--set checkpoint.interval=2 --set train.steps=60 --set optimizer.decay_steps=60") +
                " & run=$!; " + until_step("a", 3) + "kill -KILL " + last_pid("a") + "; wait $run");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("killed by SIGKILL, after steps 1 to "));
  EXPECT_THAT(run.err, HasSubstr("; restart 1 of 5 in 0 s"));
  const std::vector<nlohmann::json> exits = exits_of(out("a"));
  ASSERT_EQ(exits.size(), 2U);
  EXPECT_EQ(exits[0].at("exit_code"), 137);
  EXPECT_EQ(exits[0].at("signal"), "SIGKILL");
  EXPECT_EQ(exits[0].at("first_step"), 1);
  EXPECT_EQ(exits[1].at("exit_code"), 0);
  EXPECT_EQ(exits[1].at("last_step"), 60);
  EXPECT_LE(exits[1].at("first_step").get<int>(), exits[0].at("last_step").get<int>() + 1);
  EXPECT_EQ(run_shell(train("b", "--set train.steps=60 --set optimizer.decay_steps=60")).code, 0);
  EXPECT_EQ(metrics("a"), metrics("b"));
}

TEST_F(RunCommand, StopsWhenAStepFailsTwice) {
  // The save of the last step fails in each training.
  const Finished run = run_shell("MEGALITH_FAULT='0:sync:3+:ENOSPC' " + supervised("a"));
  EXPECT_EQ(run.code, 74);
  EXPECT_THAT(run.err, HasSubstr("error: E74 [run] exit code 74 (disk or memory), after steps 1 to 8; not restarted: "
                                 "step 9 has failed twice"));
  const std::vector<nlohmann::json> exits = exits_of(out("a"));
  EXPECT_THAT(texts_of(exits), ElementsAre("74 1-8", "74 1-8"));
  EXPECT_THAT(exits[0].at("reason").get<std::string>(), HasSubstr("E74 rank 0: "));
}

TEST_F(RunCommand, ObeysItsLimit) {
  const Finished run = run_shell("MEGALITH_FAULT='0:sync_dir:3+:ENOSPC' " + supervised("a", "--max-restarts 0"));
  EXPECT_EQ(run.code, 74);
  EXPECT_THAT(run.err, HasSubstr("not restarted: 0 restarts: no more are allowed"));
  EXPECT_THAT(texts_of(exits_of(out("a"))), ElementsAre("74 1-8"));
}

TEST_F(RunCommand, ARefusedTrainingIsNotRestartedAndLeavesNothing) {
  const Finished run = run_shell(supervised("a", "--set model.hidden_sise=8"));
  EXPECT_EQ(run.code, 64);
  EXPECT_THAT(run.err, HasSubstr("error: [run] exit code 64 (command line or recipe) before the first step; not "
                                 "restarted: exit code 64 (command line or recipe): a restart would end alike"));
  EXPECT_FALSE(std::filesystem::exists(out("a")));
}

TEST_F(RunCommand, PassesAStopOn) {
  for (const char* const signal : {"TERM", "HUP", "USR1"}) {
    const Finished run = run_shell(supervised(signal, long_run_) + " & run=$!; " + until_step(signal, 3) + "kill -" +
                                   signal + " $run; wait $run");
    EXPECT_EQ(run.code, 75) << signal;
    EXPECT_THAT(run.err, HasSubstr("error: E75 stopped on request (")) << "the training's";
    EXPECT_THAT(run.err, HasSubstr("not restarted: a stop was requested. Start again with --resume=auto"));
    const std::vector<nlohmann::json> exits = exits_of(out(signal));
    ASSERT_EQ(exits.size(), 1U) << signal;
    EXPECT_EQ(exits[0].at("exit_code"), 75);
    EXPECT_THAT(exits[0].at("reason").get<std::string>(), HasSubstr("on request ("));
  }
}

TEST_F(RunCommand, AStopOfTheTrainingAloneIsRestarted) {
  const Finished run = run_shell(supervised("a", long_run_) + " & run=$!; " + until_step("a", 3) + "kill -TERM " +
                                 last_pid("a") + "; " + until_trainings("a", 2) + "kill -TERM $run; wait $run");
  EXPECT_EQ(run.code, 75);
  const std::vector<nlohmann::json> exits = exits_of(out("a"));
  ASSERT_EQ(exits.size(), 2U) << run.err;
  EXPECT_EQ(exits[0].at("reason"), "on request (Terminated), state saved");
}

TEST_F(RunCommand, AClosedOutputEndsIt) {
  const Finished run = run_shell("{ " + supervised("a", long_run_) + " 2>&1; echo $? >" + out("code") +
                                 "; } | head -n 5; sleep 0.1; cat " + out("code"));
  EXPECT_TRUE(run.out.ends_with("\n75\n")) << run.out << run.err;
  EXPECT_THAT(exits_of(out("a")).back().at("text").get<std::string>(), HasSubstr("nobody reads the output any more"));
}

TEST_F(RunCommand, ATrainingWhoseSupervisorIsKilledSavesAndStops) {
  const Finished run =
      run_shell(supervised("a", long_run_) + " & run=$!; " + until_step("a", 3) + "pid=" + last_pid("a") +
                "; kill -KILL $run; wait $run; " + wait_until("! kill -0 $pid 2>/dev/null") +
                supervised("a", "--resume --set train.steps=8"));
  EXPECT_THAT(run.err, HasSubstr("stopped on request after step "));
  EXPECT_EQ(history_of(out("a")).back().at("exit_code"), run.code) << run.err;
}

TEST_F(RunCommand, RestartsUnderALauncher) {
#ifndef MEGALITH_WITH_MPI
  GTEST_SKIP() << "MPI is not built in";
#endif
  const std::string launched = supervised("a", long_run_) + " -- " + mpirun(2, "");
  const Finished run =
      run_shell(launched + " & run=$!; " + until_step("a", 3) + "kill -KILL $(pgrep -P " + last_pid("a") +
                " | tail -1)" + "; " + until_trainings("a", 2) + "sleep 0.2; kill -TERM $run; wait $run");
  EXPECT_EQ(run.code, 75) << run.err;
  const std::vector<nlohmann::json> exits = exits_of(out("a"));
  ASSERT_EQ(exits.size(), 2U) << run.err;
  EXPECT_EQ(exits[0].at("exit_code"), 137) << run.err;
  EXPECT_EQ(exits[1].at("exit_code"), 75) << run.err;
}

TEST_F(RunCommand, NamesWhatIsWrongWithItsOptions) {
  const auto error_of = [&](const std::string& more) {
    const Finished run = run_shell(supervised("a", more));
    EXPECT_EQ(run.code, 64) << more;
    return run.err;
  };
  EXPECT_THAT(error_of("--window soon"), HasSubstr("--window = soon: must be a time of at most 366d"));
  EXPECT_THAT(error_of("--window 1w"), HasSubstr("--window = 1w: must be a time"));
  EXPECT_THAT(error_of("--window -1s"), HasSubstr("--window = -1s: must be a time"));
  EXPECT_THAT(error_of("--max-restarts -1"), HasSubstr("--max-restarts"));
  EXPECT_THAT(error_of("--mends 72"), HasSubstr("recipe excludes --mends"));
  const Finished nothing = run_shell("megalith run --max-restarts 3");
  EXPECT_EQ(nothing.code, 64);
  EXPECT_THAT(nothing.err, HasSubstr("recipe is not set: name a recipe to train"));
  EXPECT_THAT(error_of("-- no-such-launcher -np 2"), HasSubstr("no-such-launcher: cannot be started: No such file"));
  const Finished inside = run_shell("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 " + supervised("a"));
  EXPECT_EQ(inside.code, 64);
  EXPECT_THAT(inside.err, HasSubstr("megalith run RECIPE -- mpirun -np 2"));
  EXPECT_FALSE(std::filesystem::exists(out("a")));
}

/// What stderr of a supervised run tells of each training, in order.
struct ToldTraining {
  std::int64_t resumed_at = 0, acknowledged = 0, last_step = 0;
};
std::vector<ToldTraining> trainings_in(const std::string& err) {
  std::vector<ToldTraining> all;
  std::istringstream lines(err);
  const auto number_after = [](const std::string& line, std::string_view key) {
    return std::stoll(line.substr(line.find(key) + key.size()));
  };
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("model ")) all.emplace_back();
    if (all.empty()) continue;
    if (line.starts_with("resumed ")) all.back().resumed_at = all.back().last_step = number_after(line, " at step ");
    if (line.starts_with("saved step ")) all.back().acknowledged = number_after(line, "saved step ");
    if (line.starts_with("step ") && line.find("/") < line.find("  "))
      all.back().last_step = number_after(line, "step ");
  }
  return all;
}

// Starts $RUN until it ends with 0. Kills each training once: three of four at most 0.3 s after it has begun, the
// others after their launch. `run` ends if one step was hit twice, and is started again. Prints kills and starts.
constexpr const char* kKiller = R"bash(RANDOM=7
kills=0 runs=0 last=
while true; do
  bash -c "exec $RUN" & run=$!
  runs=$((runs + 1))
  while kill -0 $run 2>/dev/null; do
    pid=$(grep -o '"pid":[0-9]*' $HISTORY 2>/dev/null | tail -1 | cut -d: -f2)
    if [ -n "$pid" ] && [ "$pid" != "$last" ] && [ $kills -lt $WANTED ]; then
      last=$pid
      for wait in $(seq $((kills % 4 == 3 ? 0 : 500))); do
        awk '/"event":"exit"/ {b = 0} /"event":"(start|resume)"/ {b = 1} END {exit !b}' $HISTORY && break
        kill -0 $pid 2>/dev/null || break
        sleep 0.01
      done
      sleep 0.$(printf %03d $((RANDOM % 300)))
      kill -KILL $pid && kills=$((kills + 1))
    fi
    sleep 0.01
  done
  wait $run && break
  [ $? = 137 ] || exit 1
done
echo $kills $runs
)bash";

// Kills at random instants. No acknowledged step is lost, the result is that of an undisturbed training, and the
// history has each start and each end, with their steps.
TEST(RunCommandKills, LoseNothingAndTheHistoryIsTrue) {
  const int wanted = 200 / sweep_stride(25);
  const CrashRun run("--set checkpoint.interval=5 --set train.eval_interval=500", 60 * wanted + 100);
  const std::string out = run.path("out"), script = run.path("kill.sh");
  write_all(script, kKiller);
  const Finished finished = run_shell(
      str("RUN=\"", run.supervised(out), "\" HISTORY=", out, "/history.jsonl WANTED=", wanted, " bash ", script));
  ASSERT_EQ(finished.code, 0) << finished.err.substr(finished.err.size() -
                                                     std::min<std::size_t>(finished.err.size(), 3000));
  int kills = 0, runs = 0;
  std::istringstream(finished.out) >> kills >> runs;
  EXPECT_GE(kills, wanted / 4) << "a fast machine completes all steps before";
  EXPECT_EQ(run.problem_of(finished, 0, out), "");

  const std::vector<ToldTraining> told = trainings_in(finished.err);
  std::vector<nlohmann::json> began, ends;
  std::size_t launches = 0;
  for (const nlohmann::json& line : history_of(out)) {
    launches += line.at("event") == "launch" ? 1 : 0;
    if (line.at("event") != "exit") continue;
    ends.push_back(line);
    if (line.contains("first_step")) began.push_back(line);
  }
  const auto killed = std::ranges::count_if(ends, [](const auto& line) { return line.at("exit_code") == 137; });
  EXPECT_EQ(killed, kills);
  EXPECT_EQ(ends.size(), launches);
  EXPECT_EQ(ends.size(), static_cast<std::size_t>(kills) + 1);
  std::int64_t acknowledged = 0;
  std::size_t at = 0;
  for (const ToldTraining& training : told) {
    EXPECT_GE(training.resumed_at, acknowledged) << "an acknowledged step is lost";
    acknowledged = std::max(acknowledged, training.acknowledged);
    // Its last step, or the one after: a kill may come before the line on the screen. A training that was killed
    // between its first words and its line of the history has no steps there.
    const bool is_there = at < began.size() && began[at].at("first_step") == training.resumed_at + 1 &&
                          began[at].at("last_step") >= training.last_step &&
                          began[at].at("last_step") <= training.last_step + 1;
    if (!is_there && training.last_step == training.resumed_at) continue;
    ASSERT_TRUE(is_there) << "training " << at << ": resumed at " << training.resumed_at << ", last step "
                          << training.last_step;
    ++at;
  }
  EXPECT_EQ(at, began.size());
  RecordProperty("kills", kills);
  RecordProperty("runs", runs);
  RecordProperty("began", static_cast<int>(began.size()));
}

}  // namespace
}  // namespace megalith::support
