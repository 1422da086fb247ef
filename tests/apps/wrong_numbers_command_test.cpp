// train, eval and score with numbers that are not finite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

namespace megalith::support {
namespace {

using ::testing::ContainsRegex;

/// An update after which all parameters are infinite.
const std::string kBreaks = "--set optimizer.lr=1e39 --set optimizer.warmup_steps=0 --set train.eval_interval=0 ";

TEST_F(Program, AStopNamesTheBrokenParameter) {
  const Finished run = run_shell(train("a", kBreaks + "--set train.steps=5 --set checkpoint.interval=0"));
  EXPECT_EQ(run.code, 73) << run.err;
  EXPECT_THAT(run.err, ContainsRegex("E73 .*step 2. loss = .*: must be finite; seen on rank 0; on rank 0 "
                                     "embedding.[a-z]+.weight = -?inf; parameters stay those of step 1"));
}

TEST_F(Program, AModelWithAValueThatIsNotFiniteIsRefused) {
  ASSERT_EQ(run_shell(train("a", kBreaks + "--set train.steps=1 --set data.split= ")).code, 0);
  const Finished eval = run_shell("megalith eval " + out("a") + " --task loss --data " + out("text.txt"));
  const Finished score = run_shell("echo '[[1,2,3]]' > " + out("ids.json") + "; megalith score --checkpoint " +
                                   out("a") + " --tokens " + out("ids.json") + " --ranks 2 --set parallel.pp=2");
  for (const Finished& refused : {eval, score}) {
    EXPECT_EQ(refused.code, 73) << refused.out << refused.err;
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err,
                ContainsRegex("E73 rank [01]: \\[.*step_00000001\\] embedding.[a-z]+.weight = -?inf: values of "
                              "parameters must be finite; "));
  }
}

}  // namespace
}  // namespace megalith::support
