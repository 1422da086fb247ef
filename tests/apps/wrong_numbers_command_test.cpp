// train, eval and score with numbers that are not finite, and with spikes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/crash_run.h"
#include "tests/apps/program.h"

namespace megalith::support {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

const std::string kLongSteps = "--set optimizer.warmup_steps=0 --set train.eval_interval=0 ";
/// An update after which all parameters are infinite; or finite, but too large for the products of a forward pass.
const std::string kBreaks = kLongSteps + "--set optimizer.lr=1e39 ",
                  kOverflows = kLongSteps + "--set optimizer.lr=1e30 ";

TEST_F(Program, AStopNamesTheBrokenParameter) {
  const Finished run = run_shell(train("a", kBreaks + "--set train.steps=5 --set checkpoint.interval=0"));
  EXPECT_EQ(run.code, 73) << run.err;
  EXPECT_THAT(run.err, ContainsRegex("E73 .*step 2. loss = .*: must be finite; seen on rank 0; on rank 0 "
                                     "embedding.[a-z]+.weight = -?inf; first in [^ ]+ .forward, chunk 0, microbatch "
                                     "0.* on rank 0; parameters stay those of step 1"));
}

TEST_F(Program, SkippedStepsInARowEndTheRunAlsoAcrossAResume) {
  const std::string skips = kOverflows +
                            "--set train.on_nonfinite=skip --set train.skip_limit=3 --set checkpoint.interval=1 "
                            "--set data.split= ";
  const Finished run = run_shell(train("a", skips + "--set train.steps=50"));
  EXPECT_EQ(run.code, 73) << run.err;
  EXPECT_THAT(run.err,
              ContainsRegex("\\[warning\\] step 2 is skipped: loss = .*, gradient norm = .*, seen on rank 0; on "
                            "rank 0 the gradient of "));
  EXPECT_THAT(run.err, HasSubstr("[step 4] the last 3 steps were skipped, as many as train.skip_limit allows: "
                                 "parameters stay those of step 1"));
  EXPECT_THAT(run_shell(train("b", skips + "--set train.steps=3")).code, 0);
  const Finished resumed = run_shell(train("b", skips + "--resume --set train.steps=50"));
  EXPECT_EQ(resumed.code, 73);
  EXPECT_THAT(resumed.err, HasSubstr("[step 4] the last 3 steps were skipped")) << "the checkpoint has counted two";
}

TEST_F(Program, SpikesAreReportedAndTheirMeansResume) {
  const std::string spikes =
      "--set train.spike_norm=1.02 --set train.spike_window=1 --set train.on_spike=skip --set optimizer.decay_steps=8 "
      "--set checkpoint.interval=3 --set data.split= ";
  const Finished whole = run_shell(train("a", spikes));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.err,
              ContainsRegex("\\[warning\\] step [0-9] is skipped: the gradient norm [0-9.]+ is [0-9.]+ times its "
                            "mean over the last 1 steps"));
  EXPECT_THAT(metrics("a"), Contains(HasSubstr("\"skipped\":1,\"grad_norm_spike\":1.")));
  ASSERT_EQ(run_shell(train("b", spikes + "--set train.steps=3")).code, 0);
  const Finished resumed = run_shell(train("b", spikes + "--resume"));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(metrics("a"), metrics("b"));
  EXPECT_EQ(said_by(whole).digest, said_by(resumed).digest);
  const Finished off =
      run_shell(train("b", "--resume --set data.split= --set optimizer.decay_steps=8 --set train.steps=9"));
  EXPECT_EQ(off.code, 0) << "without spikes, from a state with their means: " << off.err;
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
