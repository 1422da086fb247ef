// A rank that stands still: mpirun, which ends a job when one of its processes dies, does not notice, so that our own
// timeout must end it.
#include "tests/apps/hang_runs.h"

namespace megalith {
namespace {

struct Case {
  const char *name, *settings;
  int stopped;
};

class StoppedRank : public support::HangRuns, public ::testing::WithParamInterface<Case> {};

TEST_P(StoppedRank, IsNamedByTheOtherWhichEnds) {
#ifdef MEGALITH_WITH_MPI
  const int stopped = GetParam().stopped;
  const support::Finished ended = run_stopped("run", 2, GetParam().settings, {.ranks = {stopped}});
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

INSTANTIATE_TEST_SUITE_P(
    All, StoppedRank,
    ::testing::Values(Case{"tp2", "--set parallel.tp=2", 1}, Case{"pp2First", "--set parallel.pp=2", 0},
                      Case{"pp2Last", "--set parallel.pp=2", 1},
                      Case{"ep2", "--set moe.num_experts=4 --set moe.dispatcher=peer --set parallel.ep=2", 1},
                      Case{"dp2", "--set parallel.ranks=2", 1},
                      Case{"pp2FromGraphs", "--set parallel.pp=2 --set graphs.mode=iteration", 1}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace megalith
