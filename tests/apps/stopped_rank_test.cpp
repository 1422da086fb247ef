// A rank that stands still: mpirun, which ends a job when one of its processes dies, does not notice, so that our own
// timeout must end it.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

namespace megalith {
namespace {

using support::Finished;
using support::mpirun;
using support::program;
using support::run_shell;

struct Case {
  const char *name, *settings;
  int stopped;
};

class StoppedRank : public support::Program, public ::testing::WithParamInterface<Case> {
 protected:
  /// Trains as two processes, stops one of them after some steps, waits for the job and prints how many seconds that
  /// took.
  Finished train_and_stop(const Case& each) const {
    const std::string pids = out("pid."), metrics = out("run") + "/metrics.jsonl",
                      rank = "bash -c 'echo $$ >" + pids + "$OMPI_COMM_WORLD_RANK; exec \"$@\"' bash " + program() +
                             " train " + recipe() + " --out " + out("run") + " --set train.steps=1000000 " +
                             "--set train.eval_interval=0 --set parallel.timeout_s=3 " + each.settings,
                      stopped = pids + std::to_string(each.stopped);
    return run_shell("timeout 60 " + mpirun(2, rank) + " >/dev/null & job=$!; " + "until grep -qs '\"step\":9,' " +
                     metrics + " || ! kill -0 $job; do sleep 0.05; done; " + "kill -STOP $(cat " + stopped +
                     "); start=$SECONDS; wait $job; code=$?; " + "echo $((SECONDS - start)); kill -9 $(cat " + pids +
                     "*) 2>/dev/null; exit $code");
  }
};

TEST_P(StoppedRank, IsNamedByTheOtherWhichEnds) {
#ifdef MEGALITH_WITH_MPI
  const int stopped = GetParam().stopped;
  const Finished ended = train_and_stop(GetParam());
  EXPECT_EQ(ended.code, 72) << ended.err;
  EXPECT_LE(std::stoi(ended.out), 3 + 10);
  const std::string other = std::to_string(1 - stopped);
  EXPECT_THAT(ended.err, ::testing::ContainsRegex(
                             "error: E72 rank " + other + ": .*\\[[a-z_]+\\] group [a-z-]+ of 2 ranks: rank " + other +
                             " waited [3-9]\\.[0-9] s in .* for rank " + std::to_string(stopped) + "\n"));
#else
  GTEST_SKIP() << "MPI is not built in";
#endif
}

INSTANTIATE_TEST_SUITE_P(All, StoppedRank,
                         ::testing::Values(Case{"tp2", "--set parallel.tp=2", 1},
                                           Case{"pp2First", "--set parallel.pp=2", 0},
                                           Case{"pp2Last", "--set parallel.pp=2", 1},
                                           Case{"dp2", "--set parallel.ranks=2", 1},
                                           Case{"pp2FromGraphs", "--set parallel.pp=2 --set graphs.mode=iteration", 1}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace megalith
