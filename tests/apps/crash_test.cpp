// The program killed: at every I/O operation of a run that saves, deletes and evaluates, and at random instants. After
// a plain restart nothing acknowledged is lost, every loss and the final state are those of an undisturbed run, and
// nothing is left lying about.
#include <random>

#include <gtest/gtest.h>

#include "megalith/base/str.h"

#include "tests/apps/crash_run.h"
#include "tests/support/sanitizers.h"
#include "tests/support/sweep.h"

namespace megalith {
namespace {

using support::CrashRun;
using support::Finished;

const int kStride = support::sweep_stride(support::kSanitizer ? 13 : 5);  // a sanitizer build starts slowly

struct KilledGrid {
  const char *name, *settings;
};
constexpr KilledGrid kTp2{"tp2", "--set parallel.tp=2"}, kPp2{"pp2", "--set parallel.pp=2"},
    kDp2{"dp2", "--set parallel.ranks=2"},
    kEp2{"ep2",
         "--set parallel.ep=2 --set optimizer.distributed=true --set optimizer.shard=gradients "
         "--set moe.num_experts=4 --set moe.ffn_hidden_size=8 --set moe.score=sigmoid "
         "--set moe.expert_bias_rate=0.01"};

class KilledAtEveryOperation : public ::testing::TestWithParam<std::tuple<KilledGrid, int, const char*>> {};

TEST_P(KilledAtEveryOperation, TheRestartGoesOnAsIfNothingHadHappened) {
  const auto& [grid, rank, action] = GetParam();
  const CrashRun run(grid.settings, 6);
  int points = 0;
  for (int n = 1;; n += kStride) {
    ASSERT_LT(n, 2000);
    const std::string out = run.path("out" + std::to_string(n));
    const std::string fault = std::to_string(rank) + ":*:" + std::to_string(n) + ":" + action;
    const Finished killed = run.train("MEGALITH_FAULT='" + fault + "'", out);
    if (killed.code == 0) break;  // there is no n-th operation
    ++points;
    EXPECT_EQ(killed.code, 137) << fault << "\n" << killed.err;
    const std::int64_t acknowledged = support::said_by(killed).acknowledged;
    EXPECT_EQ(run.problem_of(run.train("", out), acknowledged, out), "") << fault;
    std::filesystem::remove_all(out);
  }
  EXPECT_GT(points, 40 / kStride);
  RecordProperty("points", points);
}

INSTANTIATE_TEST_SUITE_P(Ranks, KilledAtEveryOperation,
                         ::testing::Combine(::testing::Values(kTp2, kEp2), ::testing::Values(0, 1),
                                            ::testing::Values("kill", "torn")),
                         [](const auto& suite) {
                           return str(std::get<0>(suite.param).name, "_rank", std::get<1>(suite.param), "_",
                                      std::get<2>(suite.param));
                         });

class RandomKills : public ::testing::TestWithParam<KilledGrid> {};

TEST_P(RandomKills, LoseNothingThatWasAcknowledged) {
  const CrashRun run(std::string(GetParam().settings) + " --set checkpoint.interval=5 --set train.eval_interval=50",
                     400);
  std::mt19937 random(20);
  std::uniform_int_distribution<int> early(15, 90), after_save(0, 40);
  const std::string out = run.path("out");
  std::int64_t acknowledged = 0;
  int kills = 0, after_saves = 0;
  for (int round = 0; round < 20; ++round) {
    // How long a start takes is the machine's affair: most rounds wait for a save, the others see starts and resumes.
    const Finished killed = round % 4 == 3 ? run.train(str("timeout -s KILL 0.0", early(random)), out)
                                           : run.kill_after_save(after_save(random), out);
    if (killed.code == 0) break;
    ASSERT_EQ(killed.code, 137) << killed.err;
    const support::Said said = support::said_by(killed);
    ASSERT_TRUE(said.resumed_at == 0 || said.resumed_at >= acknowledged)
        << "round " << round << ": " << acknowledged << " was acknowledged\n"
        << killed.err;
    acknowledged = std::max(acknowledged, said.acknowledged);
    ++kills;
    if (said.acknowledged > 0) ++after_saves;
  }
  EXPECT_GT(kills, 3);
  EXPECT_GE(2 * after_saves, kills);
  EXPECT_EQ(run.problem_of(run.train("", out), acknowledged, out), "");
  RecordProperty("kills", kills);
  RecordProperty("after_saves", after_saves);
}

INSTANTIATE_TEST_SUITE_P(Grids, RandomKills, ::testing::Values(kTp2, kPp2, kDp2, kEp2),
                         [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace megalith
