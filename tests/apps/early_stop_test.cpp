#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"

// The rate is so small, and a better loss must be so much lower, that the first evaluation stays the best one.
namespace megalith::support {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EarlyStop : public Program {
 protected:
  Finished run(const std::string& more) const {
    return run_shell(train("a",
                           "--set train.eval_interval=2 --set train.early_stop_delta=1 --set optimizer.lr=1e-6 "
                           "--set optimizer.decay_steps=40 " +
                               more));
  }
  std::vector<int> evaluated_steps() const {
    std::vector<int> steps;
    for (const std::string& line : metrics("a")) {
      const nlohmann::json entry = nlohmann::json::parse(line);
      if (entry.contains("eval")) steps.push_back(entry.at("step").get<int>());
    }
    return steps;
  }
};

TEST_F(EarlyStop, EndsARunWithACheckpointAndNamesTheBestStep) {
  const Finished run = this->run("--set train.steps=40 --set train.early_stop=2");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out + run.err, HasSubstr("stopped early after step 6: the held-out loss has not fallen in 2 "
                                           "evaluations; the best was "));
  EXPECT_THAT(run.out + run.err, HasSubstr(" at step 2"));
  EXPECT_THAT(run.out + run.err, HasSubstr("saved step 6"));
  EXPECT_THAT(evaluated_steps(), ElementsAre(2, 4, 6));
  // Resumed, it has ended already; with a larger number it goes on.
  EXPECT_THAT(this->run("--resume --set train.steps=40 --set train.early_stop=2").code, 0);
  EXPECT_THAT(evaluated_steps(), ElementsAre(2, 4, 6));
  EXPECT_EQ(this->run("--resume --set train.steps=40 --set train.early_stop=3").code, 0);
  EXPECT_THAT(evaluated_steps(), ElementsAre(2, 4, 6, 8));
}

TEST_F(EarlyStop, AResumedRunCountsAsAnUninterruptedOne) {
  // The save of the last step, 4, comes before its evaluation, that of step 5 after the one of step 4.
  for (const char* first_steps : {"4", "5"}) {
    const std::string steps = first_steps;
    ASSERT_EQ(run("--resume=auto --set train.early_stop=2 --set train.steps=" + steps).code, 0);
    EXPECT_EQ(run("--resume --set train.early_stop=2 --set train.steps=40").code, 0);
    const std::vector<int> evaluated = evaluated_steps();
    EXPECT_EQ(evaluated.back(), 6) << steps;
    EXPECT_EQ(std::count(evaluated.begin(), evaluated.end(), 4), 1) << "step 4 is evaluated again, not reported again";
    std::filesystem::remove_all(out("a"));
  }
}

TEST_F(EarlyStop, NeedsEvaluations) {
  const Finished none = run("--set train.early_stop=2 --set train.eval_interval=0 --set train.steps=4");
  EXPECT_EQ(none.code, 64);
  EXPECT_THAT(none.err, HasSubstr("train.early_stop = 2: needs evaluations during the run: set train.eval_interval"));
}

}  // namespace
}  // namespace megalith::support
