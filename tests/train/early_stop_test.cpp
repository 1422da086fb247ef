#include "megalith/train/early_stop.h"

#include <limits>

#include <gtest/gtest.h>

namespace megalith::train {
namespace {

/// The record after evaluations at steps 10, 20, 30 ...
std::optional<HeldOutRecord> record_of(std::initializer_list<double> losses, double delta = 0) {
  std::optional<HeldOutRecord> record;
  Index step = 0;
  for (const double loss : losses) add_evaluation(record, step += 10, loss, delta);
  return record;
}

TEST(EarlyStop, CountsEvaluationsSinceTheBest) {
  const std::optional<HeldOutRecord> record = record_of({3, 2, 2.5, 2, 1.5, 1.75});
  ASSERT_TRUE(record);
  EXPECT_EQ(record->best_step, 50);
  EXPECT_EQ(record->best_loss, 1.5);
  EXPECT_EQ(record->without, 1);
  EXPECT_EQ(record->last_step, 60);
  EXPECT_EQ(record_of({3, 2, 2.5, 2})->without, 2) << "an equal loss is not better";
}

TEST(EarlyStop, ALossMustBeLowerByMoreThanDelta) {
  EXPECT_EQ(record_of({2, 1.5, 1}, 0.5)->best_step, 30) << "1.5 is not: it is lower than 2 by just 0.5";
  EXPECT_EQ(record_of({2, 1.75, 1.5}, 0.5)->without, 2) << "the best one stays that of step 10";
}

TEST(EarlyStop, ALossThatIsNotFiniteIsNeverTheBest) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(record_of({kNan, kInf, -kInf}));
  EXPECT_EQ(record_of({kNan, 2, kNan, -kInf})->best_step, 20);
  EXPECT_EQ(record_of({kNan, 2, kNan, -kInf})->without, 2);
}

TEST(EarlyStop, EndsAfterSoManyEvaluations) {
  config::TrainConfig config;
  EXPECT_FALSE(stops_early(config, record_of({1, 2, 3, 4}))) << "0 is off";
  config.early_stop = 2;
  EXPECT_FALSE(stops_early(config, std::nullopt));
  EXPECT_FALSE(stops_early(config, record_of({1, 2})));
  EXPECT_TRUE(stops_early(config, record_of({1, 2, 3})));
  EXPECT_TRUE(stops_early(config, record_of({1, 2, 3, 4}))) << "resumed with a smaller number";
  EXPECT_EQ(early_stop_text(*record_of({1.25, 2, 3})),
            "the held-out loss has not fallen in 2 evaluations; the best was 1.25 at step 10");
}

}  // namespace
}  // namespace megalith::train
