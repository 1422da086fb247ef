// A rank that stands still is named, whatever the grid and whoever waits for it: `E72 verdict` is the last line. The
// whole sweep is 120 trials (MEGALITH_TESTS=all, scripts/test-all); the figures are in docs/reliability.md.
#include <algorithm>
#include <future>
#include <random>
#include <sstream>

#include "tests/apps/hang_runs.h"
#include "tests/support/sweep.h"

namespace megalith {
namespace {

using support::Finished;
using support::HangRuns;
using support::mpirun;
using support::program;
using support::run_shell;
using ::testing::ContainsRegex;

struct TrialGrid {
  const char *name, *settings;
};
constexpr TrialGrid kTrialGrids[] = {
    {"tp4", "--set parallel.tp=4"},
    {"pp4", "--set parallel.pp=4"},
    {"dp4", "--set parallel.ranks=4"},
    {"dp4Sharded", "--set parallel.ranks=4 --set optimizer.distributed=true"},
    {"ep4", "--set parallel.ranks=4 --set parallel.ep=4 --set moe.num_experts=4"},
    {"tp2pp2", "--set parallel.tp=2 --set parallel.pp=2"},
    {"tp2dp2", "--set parallel.tp=2 --set parallel.ranks=4"},
    {"pp2dp2", "--set parallel.pp=2 --set parallel.ranks=4"},
    {"pp2ep2", "--set parallel.pp=2 --set parallel.ranks=4 --set parallel.ep=2 --set moe.num_experts=4"},
    {"tp2ep2",
     "--set parallel.tp=2 --set parallel.ranks=4 --set parallel.ep=2 --set parallel.etp=1 "
     "--set moe.num_experts=4"},
};

/// How a rank stands still.
enum class Kind { stopped, computes, sleeps };
/// What the verdict states of it.
const char* state_of(Kind kind) {
  return kind == Kind::stopped ? "is stopped" : kind == Kind::computes ? "computes" : "sleeps in a system call";
}

struct Trial {
  Kind kind;
  int rank;
  int moment;  ///< ms after a step, or the number of a call
};

class HangTrials : public HangRuns, public ::testing::WithParamInterface<TrialGrid> {
 protected:
  /// Under mpirun, as four processes.
  Finished run_processes(const Trial& trial, const std::string& name) const {
    if (trial.kind == Kind::stopped) return run_stopped(name, 4, GetParam().settings, {{trial.rank}, trial.moment});
    return run_shell("timeout 90 " + mpirun(4, "env " + fault(trial) + train_forever(name, GetParam().settings)) +
                     " >&2");
  }

  /// As threads of one process.
  Finished run_threads(const Trial& trial, const std::string& name) const {
    return run_shell("timeout 90 env " + fault(trial) + train_forever(name, GetParam().settings) + " >&2");
  }

  static void expect_verdict(const Finished& run, const Trial& trial, const std::string& name) {
    EXPECT_EQ(run.code, 72) << name << '\n' << run.err;
    std::vector<std::string> verdicts;
    std::string last;
    std::istringstream lines(run.err);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("E72 verdict") != std::string::npos) verdicts.push_back(line);
      if (line.find("megalith") != std::string::npos || line.find("step") != std::string::npos) last = line;
    }
    ASSERT_EQ(verdicts.size(), 1U) << name << '\n' << run.err;
    EXPECT_THAT(verdicts[0], ContainsRegex("^megalith: E72 verdict: rank " + std::to_string(trial.rank) +
                                           " stands still since [2-9]\\.[0-9] s \\(.* " + state_of(trial.kind)))
        << name << '\n'
        << run.err;
    EXPECT_EQ(last, verdicts[0]) << name << '\n' << run.err;
  }

 private:
  static std::string fault(const Trial& trial) {
    return "MEGALITH_FAULT=" + std::to_string(trial.rank) + ":call:" + std::to_string(trial.moment) +
           (trial.kind == Kind::computes ? ":spin=600s " : ":sleep=600s ");
  }
};

/// `count` of them, from a fixed seed per grid.
std::vector<Trial> draw_trials(int count, std::string_view grid) {
  std::seed_seq seed(grid.begin(), grid.end());
  std::mt19937 random(seed);
  std::vector<Trial> trials;
  for (int i = 0; i < count; ++i) {
    const Kind kind = static_cast<Kind>(i % 3);
    const int moment = static_cast<int>(kind == Kind::stopped ? random() % 1000 : 100 + random() % 400);
    trials.push_back({kind, static_cast<int>(random() % 4), moment});
  }
  return trials;
}

TEST_P(HangTrials, NameTheProcessThatStandsStill) {
#ifdef MEGALITH_WITH_MPI
  constexpr int kWhole = 9, kSampled = 2;
  const std::vector<Trial> trials = draw_trials(kWhole, GetParam().name);
  const int count = support::sweep_stride(kWhole) == 1 ? kWhole : kSampled;
  for (int i = 0; i < count; i += 3) {  // three at a time, as they mostly wait
    std::vector<std::pair<int, std::future<Finished>>> runs;
    for (int trial = i; trial < std::min(i + 3, count); ++trial) {
      runs.emplace_back(trial, std::async(std::launch::async, [&, trial] {
                          return run_processes(trials[static_cast<std::size_t>(trial)], "t" + std::to_string(trial));
                        }));
    }
    for (auto& [trial, run] : runs)
      expect_verdict(run.get(), trials[static_cast<std::size_t>(trial)], "trial " + std::to_string(trial));
  }
#else
  GTEST_SKIP() << "MPI is not built in";
#endif
}

TEST_P(HangTrials, NameTheThreadThatStandsStill) {
  constexpr int kWhole = 3;
  const std::vector<Trial> trials = draw_trials(3 * kWhole, std::string(GetParam().name) + "threads");
  for (int i = 0; i < kWhole; ++i) {
    Trial trial = trials[static_cast<std::size_t>(i)];
    if (trial.kind == Kind::stopped) trial = {Kind::sleeps, trial.rank, 200 + trial.moment % 100};
    expect_verdict(run_threads(trial, "t" + std::to_string(i)), trial, "trial " + std::to_string(i));
  }
}

// Two hosts of two ranks each, as far as host names tell: the verdict comes through files in OUT.
TEST_F(HangRuns, ARankOfAnotherHostIsNamed) {
#ifdef MEGALITH_WITH_MPI
  if (run_shell("unshare --uts hostname other").code != 0) GTEST_SKIP() << "only root may give processes a host name";
  const std::string settings = "--set parallel.tp=2 --set parallel.pp=2";
  for (const std::vector<int>& stopped : {std::vector{3}, {1}, {2, 3}}) {
    const std::string name = "t" + std::to_string(stopped.size()) + std::to_string(stopped.front());
    const Finished run = run_stopped(name, 4, settings, {stopped, 300, "RANKS_PER_HOST=2"});
    EXPECT_EQ(run.code, 72) << run.err;
    EXPECT_THAT(run.err, ContainsRegex("\nmegalith: E72 verdict: rank [" + std::to_string(stopped.front()) +
                                       std::to_string(stopped.back()) + "] stands still since [2-9]\\.[0-9] s \\("))
        << run.err;
  }
#else
  GTEST_SKIP() << "MPI is not built in";
#endif
}

// Rank 0 stands still in a write, and the files that explain the error would stand still, too.
TEST_F(HangRuns, ADiskThatDoesNotAnswerIsNoReasonToKeepSilent) {
#ifdef MEGALITH_WITH_MPI
  const std::string image = out("image"), mount = out("mount");
  const Finished mounted = run_shell("mkdir " + mount + " && truncate -s 64M " + image + " && mkfs.ext4 -q " + image +
                                     " && mount -o loop " + image + " " + mount);
  if (mounted.code != 0) GTEST_SKIP() << "needs root, loop devices and mkfs.ext4: " << mounted.err;
  const Finished run =
      run_shell("timeout 60 " + mpirun(4, train_forever("mount/a", "--set parallel.tp=2 --set parallel.pp=2")) +
                " >&2 & job=$!; until grep -qs '\"step\":9,' " + mount +
                "/a/metrics.jsonl || ! kill -0 $job; do sleep 0.05; done; fsfreeze -f " + mount +
                "; wait $job; code=$?; fsfreeze -u " + mount + "; exit $code");
  run_shell("for i in $(seq 100); do umount " + mount + " 2>/dev/null && break; sleep 0.1; done");
  EXPECT_EQ(run.code, 72) << run.err;
  EXPECT_THAT(run.err, ContainsRegex("\nmegalith: E72 verdict: rank 0 stands still since [2-9]\\.[0-9] s "
                                     "\\(step [0-9]+, after .* is in a system call that cannot be interrupted; "))
      << run.err;
#else
  GTEST_SKIP() << "MPI is not built in";
#endif
}

// Nothing but another rank's silence of parallel.timeout_s is an alarm, however long ranks wait for a core.
TEST_F(HangRuns, ABusyMachineRaisesNoAlarm) {
#ifdef MEGALITH_WITH_MPI
  const std::string steps = std::to_string(1000 / support::sweep_stride(20));
  const Finished run =
      run_shell("for i in 1 2 3 4; do while kill -0 $PPID; do :; done & busy=\"$busy $!\"; done; " +
                mpirun(4, program() + " train " + recipe() + " --out " + out("a") + " --set train.steps=" + steps +
                              " --set parallel.timeout_s=3 --set checkpoint.interval=0 --set parallel.pp=2 "
                              "--set parallel.ranks=4") +
                " >&2; code=$?; kill $busy; exit $code");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.err.find("E72"), std::string::npos) << run.err;
#else
  GTEST_SKIP() << "MPI is not built in";
#endif
}

INSTANTIATE_TEST_SUITE_P(All, HangTrials, ::testing::ValuesIn(kTrialGrids),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace megalith
