#include "megalith/config/batch_ramp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/config/run_plan.h"

#include "tests/config/small_recipe.h"

namespace megalith::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(BatchRamp, GrowsInEqualPartsOfItsSamples) {
  const BatchRamp ramp{32, 256, 20000};
  // Seven parts of 20000 / 7 = 2857.14 samples.
  EXPECT_EQ(ramp.batch_after(0), 32);
  EXPECT_EQ(ramp.batch_after(2857), 32);
  EXPECT_EQ(ramp.batch_after(2858), 64);
  EXPECT_EQ(ramp.batch_after(10000), 128);
  EXPECT_EQ(ramp.batch_after(17143), 224);
  EXPECT_EQ(ramp.batch_after(19999), 224);
  EXPECT_EQ(ramp.batch_after(20000), 256);
  EXPECT_EQ(ramp.batch_after(1 << 30), 256);
  EXPECT_THAT((BatchRamp{2, 8, 24}.sizes()), ElementsAre(2, 4, 6, 8));
  // 4 x 2, 2 x 4, 2 x 6: the eighth step ends at 28.
  EXPECT_EQ((BatchRamp{2, 8, 24}.length().steps), 8);
  EXPECT_EQ((BatchRamp{2, 8, 24}.length().samples), 28);
}

TEST(BatchRamp, IsThreePositiveIntegersOfWhichOneDividesTheOther) {
  const std::optional<BatchRamp> ramp = BatchRamp::of("32:256:20000");
  ASSERT_TRUE(ramp);
  EXPECT_EQ(ramp->text(), "32:256:20000");
  for (const char* text : {"", "32", "32:256", "32:256:", "32:256:0", "0:256:100", "-2:4:10", "32:100:20000",
                           "32:32:10", "256:32:10", "32:256:20000:1", "32:256:20000 ", "a:b:c", "2:4:99999999999"})
    EXPECT_FALSE(BatchRamp::of(text)) << text;
}

std::string problems_of(std::vector<std::string> settings) { return problem_of(kSmall, std::move(settings)); }

TEST(BatchRamp, ItsEndIsTheGlobalBatch) {
  const RunPlan plan = resolve(parse_recipe(kSmall, "r.toml", std::vector<std::string>{"train.batch_ramp=2:8:24"}));
  EXPECT_EQ(plan.train.global_batch, 8);
  EXPECT_EQ(plan.train.batch_after(9), 4);
  EXPECT_NE(to_toml(plan.as_config()).find("batch_ramp = '2:8:24'"), std::string::npos);
  const RunPlan without = resolve(parse_recipe(kSmall, "r.toml"));
  EXPECT_EQ(without.train.batch_after(9), without.train.global_batch);
  EXPECT_EQ(to_toml(without.as_config()).find("batch_ramp"), std::string::npos);
}

TEST(BatchRamp, RefusesWhatItDoesNotGoWith) {
  EXPECT_THAT(
      problems_of({"train.batch_ramp=2:7:24"}),
      HasSubstr("train.batch_ramp = 2:7:24: must be three positive integers START:END:SAMPLES below 2^31, with END a "
                "multiple of START and above it"));
  EXPECT_THAT(problems_of({"train.batch_ramp=2:8:24", "train.global_batch=16"}),
              HasSubstr("train.batch_ramp = 2:8:24: must end at train.global_batch = 16; leave that out"));
  EXPECT_THAT(problems_of({"train.batch_ramp=2:8:24", "train.micro_batch=4"}),
              HasSubstr("must start at a multiple of train.micro_batch * dp = 4 * 1 = 4; the nearest START is 4"));
  EXPECT_THAT(problems_of({"train.batch_ramp=2:8:24", "train.micro_batch=8"}),
              HasSubstr("= 8 * 1 = 8; there is none with END = 8"));
  EXPECT_THAT(problems_of({"train.batch_ramp=2:8:24", "task.name=mnli"}),
              HasSubstr("train.batch_ramp = 2:8:24: does not go with task.name: an epoch has whole batches"));
  EXPECT_THAT(problems_of({"train.batch_ramp=2:8:24", "moe.num_experts=4", "moe.replay=trace.bin"}),
              HasSubstr("train.batch_ramp = 2:8:24: does not go with moe.replay"));
}

TEST(BatchRamp, AllThatIsWrongIsReportedAtOnce) {
  const std::string ramp = "train.batch_ramp=3:12:60", is = "\n  train.batch_ramp = 3:12:60: ";
  const std::string starts = is + "must start at a multiple of train.micro_batch * dp = ";
  const auto problems = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), {ramp, "train.global_batch=24"});
    return problems_of(settings) + "\n";
  };
  EXPECT_THAT(problems({}), AllOf(HasSubstr("1 problem"), HasSubstr("must end at train.global_batch = 24")));
  const auto ends = HasSubstr(is + "must end at train.global_batch = 24");
  EXPECT_THAT(problems({"train.micro_batch=2"}), AllOf(ends, HasSubstr(starts + "2 * 1 = 2\n")));
  EXPECT_THAT(problems({"train.micro_batch=5"}),
              AllOf(ends, HasSubstr(starts + "5 * 1 = 5\n"),
                    HasSubstr("train.global_batch = 24: must be a multiple of train.micro_batch * dp = 5 * 1 = 5")));
  EXPECT_THAT(problems({"train.micro_batch=48", "task.name=mnli"}),
              AllOf(ends, HasSubstr(starts + "48 * 1 = 48\n"), HasSubstr(is + "does not go with task.name"),
                    HasSubstr("train.micro_batch = 48: must be at most train.global_batch = 24")));
  EXPECT_THAT(problems({"parallel.pp=2", "parallel.chunks=2", "parallel.ranks=2"}),
              AllOf(ends, HasSubstr(is + "its steps of 3 samples have 3 microbatches")));
}

TEST(BatchRamp, GoesWithGraphsExpertsAndChunks) {
  const std::string ramp = "train.batch_ramp=2:8:24";
  EXPECT_EQ(problems_of({ramp, "parallel.pp=2", "parallel.ranks=4"}), "");
  EXPECT_EQ(problems_of({ramp, "graphs.mode=iteration"}), "");
  EXPECT_EQ(problems_of({ramp, "graphs.mode=layers", "parallel.pp=2"}), "");
  EXPECT_EQ(problems_of({ramp, "moe.num_experts=4"}), "");
  EXPECT_EQ(problems_of({ramp, "parallel.pp=2", "parallel.chunks=2"}), "");
}

// With chunks each size must have groups of microbatches that the schedule can run.
TEST(BatchRamp, NamesTheNearestStartThatChunksCanRun) {
  const auto problems = [](const char* ramp, const char* group, int ranks = 2) {
    return problems_of({str("train.batch_ramp=", ramp), "parallel.pp=2", "parallel.chunks=2",
                        str("parallel.group_size=", group), str("parallel.ranks=", ranks), "train.global_batch=24"});
  };
  EXPECT_EQ(problems("2:24:100", "0"), "");
  EXPECT_EQ(problems("3:24:100", "3"), "");
  EXPECT_THAT(problems("3:24:100", "0"),
              HasSubstr("train.batch_ramp = 3:24:100: its steps of 3 samples have 3 microbatches, which "
                        "parallel.chunks = 2 cannot run in groups of 2 over parallel.pp = 2; the nearest START is 2"));
  EXPECT_THAT(problems("6:24:100", "0", 4), HasSubstr("its steps of 6 samples have 3 microbatches"));
  EXPECT_THAT(problems("6:24:100", "0", 4), HasSubstr("the nearest START is 4"));
  // 8, 16 and 24 microbatches leave 2, 1 and 0 beyond groups of 3.
  EXPECT_THAT(problems("8:24:100", "3"), HasSubstr("its steps of 16 samples have 16 microbatches"));
  EXPECT_THAT(problems("8:24:100", "3"), HasSubstr("the nearest START is 6"));
  EXPECT_THAT(problems("4:24:100", "24"), HasSubstr("its steps of 4 samples have 4 microbatches"));
  EXPECT_THAT(problems("4:24:100", "24"),
              HasSubstr("; there is none with END = 24: give another one, or fewer chunks"));
  EXPECT_THAT(problems("2:24:100", "1"), Not(HasSubstr("train.batch_ramp"))) << "the group is reported";
}

}  // namespace
}  // namespace megalith::config
