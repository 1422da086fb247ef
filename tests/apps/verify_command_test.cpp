#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

// What `megalith verify` takes and prints. docs/verify.md lists the planted bugs that it must name.
namespace megalith {
namespace {

using nlohmann::json;
using support::Finished;
using support::Program;
using support::run_shell;
using testing::HasSubstr;

class Verify : public Program {
 protected:
  Finished verify(const std::string& arguments) const {
    return run_shell("megalith verify " + recipe() + " --steps 2 " + arguments);
  }
};

constexpr const char* kExact = " --set train.precision='\"fp64\"'";

TEST_F(Verify, GridsAgreeOpByOp) {
  const Finished done = verify(
      "--grid one --grid 'tp=2 pp=2' --grid 'tp=2 dp=2 sequence_parallel=true' "
      "--grid 'dp=2 distributed=true' --grid 'pp=2 chunks=2' --ops 2 --format json" +
      std::string(kExact) + " --set train.micro_batch=2");
  ASSERT_EQ(done.code, 0) << done.err << done.out;
  const json reports = json::parse(done.out);
  ASSERT_EQ(reports.size(), 4U);
  for (const json& report : reports) {
    EXPECT_EQ(report["agree"], true) << report["b"];
    EXPECT_FALSE(report.contains("op")) << report["op"];
    EXPECT_GT(report["ops_compared"].get<int>(), 200) << report["b"];
    EXPECT_LT(report["largest"]["state"].get<double>(), 1e-10) << report["b"];
    EXPECT_EQ(report["steps"], 2);
  }
}

TEST_F(Verify, OneGridIsComparedWithOneRank) {
  const Finished done = verify("--grid tp=2");
  EXPECT_EQ(done.code, 0) << done.err << done.out;
  EXPECT_THAT(done.out, HasSubstr("A: tp 1 pp 1 dp 1; B: tp 2 pp 1 dp 1; fp32, steps of 8 samples\n"));
  EXPECT_THAT(done.out, HasSubstr("the grids agree in 2 steps\n"));
}

// A rate at which a run has no stable course: rounding grows until the losses are apart.
TEST_F(Verify, ADifferenceHasItsStepAndExitCode) {
  const Finished done = run_shell("megalith verify " + recipe() +
                                  " --steps 8 --grid 'tp=2 pp=2' --set optimizer.lr=1.0 --set optimizer.warmup_steps=0"
                                  " --set optimizer.clip=1000.0 --format json");
  ASSERT_EQ(done.code, 1) << done.err << done.out;
  EXPECT_EQ(done.err, "") << "a difference is a result, no error";
  const json report = json::parse(done.out)[0];
  EXPECT_EQ(report["agree"], false);
  EXPECT_GT(report["steps"].get<int>(), 1) << "step 1 begins with equal values";
  EXPECT_GT(report["different"][0]["largest"].get<double>(), report["different"][0]["band"].get<double>());
}

TEST_F(Verify, NoTaskIsOpened) {
  const Finished done = verify("--grid tp=2 --ops 0 --set eval.tasks='[\"hellaswag:" + out("none.jsonl") + "\"]'");
  EXPECT_EQ(done.code, 0) << done.err << done.out;
  EXPECT_THAT(done.out, testing::Not(HasSubstr("results compared"))) << "--ops 0";
}

TEST_F(Verify, GridsThatDoNotFitAreRefusedAllAtOnce) {
  const Finished done = verify("--grid tp=3 --grid 'pp=7' --grid 'dp=16'");
  EXPECT_EQ(done.code, 64);
  EXPECT_EQ(done.out, "");
  EXPECT_THAT(done.err, HasSubstr("parallel.tp = 3: must divide model.num_heads = 4"));
  EXPECT_THAT(done.err, HasSubstr("must be divisible by parallel.pp * chunks = 7"));
  EXPECT_THAT(done.err, HasSubstr("train.global_batch = 8"));
  const Finished words = verify("--grid 'tq=2 2'");
  EXPECT_EQ(words.code, 64);
  EXPECT_THAT(words.err, HasSubstr("tq=2: is no KEY=VALUE of a grid; did you mean tp=N?"));
  const Finished steps = run_shell("megalith verify " + recipe() + " --grid tp=2 --steps 9 --ops 10");
  EXPECT_EQ(steps.code, 64);
  EXPECT_THAT(steps.err, HasSubstr("--steps = 9: must be at most train.steps = 8"));
  EXPECT_THAT(steps.err, HasSubstr("--ops = 10: must be at most --steps = 9"));
  const Finished later = verify("--grid tp=2 --ops 2 --set train.precision='\"bf16\"'");
  EXPECT_EQ(later.code, 64);
  EXPECT_THAT(later.err, HasSubstr("--ops = 2: must be 0 or 1 in bf16"));
  EXPECT_EQ(run_shell("megalith verify " + recipe()).code, 64) << "without a grid";
}

}  // namespace
}  // namespace megalith
