#include "megalith/train/restart_policy.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/train/metrics.h"
#include "megalith/train/run_history.h"

#include "tests/io/temp_dir.h"

namespace megalith::train {
namespace {

using ::testing::HasSubstr;
using Next = RestartPolicy::Next;

constexpr int kKilled = 137;

RestartPolicy policy_with(const RestartPolicy::Limits& limits = {.max_restarts = 100}) { return RestartPolicy(limits); }

TEST(RestartPolicy, RestartsAfterExitCodesThatARestartMends) {
  for (const int code : {71, 72, 74, 75, kKilled})
    EXPECT_EQ(policy_with().after({code, 10}, 0).next, Next::restart) << code;
  for (const int code : {1, 64, 65, 66, 67, 70, 73, 127, 130, 134, 139, 143}) {
    const RestartPolicy::Decision decision = policy_with().after({code, 10}, 0);
    EXPECT_EQ(decision.next, Next::give_up) << code;
    EXPECT_THAT(decision.reason, HasSubstr(": a restart would end alike")) << code;
  }
  EXPECT_EQ(policy_with().after({0, 10}, 0).next, Next::done);
  EXPECT_THAT(policy_with().after({73, 10}, 0).reason, HasSubstr("exit code 73 (numbers that are not finite)"));
  EXPECT_THAT(policy_with().after({139, 10}, 0).reason, HasSubstr("killed by SIGSEGV"));
}

TEST(RestartPolicy, AStepThatFailsTwiceEndsIt) {
  RestartPolicy policy = policy_with();
  EXPECT_EQ(policy.after({72, 10}, 0).next, Next::restart);
  EXPECT_EQ(policy.after({kKilled, 5}, 0).next, Next::restart) << "another step";
  const RestartPolicy::Decision decision = policy.after({71, 10}, 0);
  EXPECT_EQ(decision.next, Next::give_up) << "step 11 again, not completed in between";
  EXPECT_EQ(decision.reason, "step 11 has failed twice");
}

TEST(RestartPolicy, AStepThatWasCompletedMayFailAgain) {
  RestartPolicy policy = policy_with();
  EXPECT_EQ(policy.after({72, 10}, 0).next, Next::restart);
  EXPECT_EQ(policy.after({72, 11}, 0).next, Next::restart) << "step 11 is complete, but not saved";
  EXPECT_EQ(policy.after({72, 10}, 0).next, Next::restart);
  EXPECT_EQ(policy.after({72, 11}, 0).next, Next::give_up) << "step 12 was never completed";
}

TEST(RestartPolicy, TwoStartsInARowThatFailEndIt) {
  RestartPolicy policy = policy_with();
  EXPECT_EQ(policy.after({74, {}}, 0).next, Next::restart);
  EXPECT_EQ(policy.after({74, 0}, 0).next, Next::restart) << "it began: step 1 failed";
  EXPECT_EQ(policy.after({74, {}}, 0).next, Next::restart);
  EXPECT_EQ(policy.after({74, {}}, 0).reason, "two starts in a row ended before the first step");
}

TEST(RestartPolicy, CountsTheRestartsOfAWindow) {
  RestartPolicy all = policy_with({.max_restarts = 2});
  EXPECT_EQ(all.after({72, 1}, 0).next, Next::restart);
  EXPECT_EQ(all.after({72, 2}, 1e6).next, Next::restart);
  EXPECT_EQ(all.after({72, 3}, 2e6).reason, "2 restarts: no more are allowed");
  RestartPolicy window = policy_with({.max_restarts = 2, .window_s = 60});
  EXPECT_EQ(window.after({72, 1}, 0).next, Next::restart);
  EXPECT_EQ(window.after({72, 2}, 50).next, Next::restart);
  EXPECT_EQ(window.after({72, 3}, 61).next, Next::restart) << "the first one is 61 s ago";
  EXPECT_EQ(window.after({72, 4}, 100).next, Next::give_up);
  EXPECT_EQ(window.restarts(), 3);
  EXPECT_EQ(policy_with({.max_restarts = 0}).after({72, 1}, 0).next, Next::give_up);
}

TEST(RestartPolicy, BacksOffWithoutProgress) {
  RestartPolicy policy = policy_with({.max_restarts = 100, .backoff_s = 3});
  EXPECT_EQ(policy.after({72, 20}, 0).wait_s, 3);
  EXPECT_EQ(policy.after({72, 12}, 0).wait_s, 6);
  EXPECT_EQ(policy.after({72, 15}, 0).wait_s, 12);
  EXPECT_EQ(policy.after({72, 21}, 0).wait_s, 3) << "further than ever";
  for (Index step = 0; step < 10; ++step) policy.after({72, step}, 0);
  EXPECT_EQ(policy.after({72, 10}, 0).wait_s, RestartPolicy::kMaxWait_s);
}

class AttemptFiles : public ::testing::Test {
 protected:
  void write(const char* name, const std::string& text) { std::ofstream(dir_.path() / name, std::ios::app) << text; }
  Attempt read(std::uint64_t begin = 0) { return read_attempt(*fs_, dir_.path(), begin); }

  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  TempDir dir_;
};

TEST_F(AttemptFiles, HaveStepsAndReasonOfAProcess) {
  EXPECT_EQ(read().last_step, std::nullopt) << "no files";
  write(kHistoryName, history_line("start", 0, "one rank"));
  EXPECT_EQ(read().first_step, 1);
  EXPECT_EQ(read().last_step, 0) << "no metrics yet";
  write(kMetricsName, "{\"step\":1,\"loss\":3}\n{\"eval\":\"valid\",\"step\":7,\"loss\":3}\n");
  EXPECT_EQ(read().last_step, 1) << "an evaluation is no step";
  write(kMetricsName, "{\"step\":2,\"loss\":3}\n{\"step\":3,\"lo");
  EXPECT_EQ(read().last_step, 2) << "the last line was cut";
  EXPECT_EQ(read().reason, "");
  write(kHistoryName, history_line("fault", 3, "E72 rank 1: \"waited\""));
  EXPECT_EQ(read().reason, "E72 rank 1: \"waited\"");

  const std::uint64_t next = history_bytes(*fs_, dir_.path());
  EXPECT_FALSE(read(next).first_step) << "lines of the process before";
  write(kHistoryName, "{\"event\":\"resume\",\"st");
  EXPECT_FALSE(read(next).first_step) << "a line that was cut";
  add_history_line(*fs_, dir_.path(), history_line("resume", 2, "four ranks"));
  EXPECT_EQ(read(next).first_step, 3) << "behind a line that was cut";
  EXPECT_EQ(read(next).last_step, 2);
  EXPECT_EQ(read(next).reason, "");
}

}  // namespace
}  // namespace megalith::train
