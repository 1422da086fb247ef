#include "megalith/train/moe_report.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

/// The load of one layer with these choices and dropped pairs.
train::ExpertLoad load_of(std::vector<std::int64_t> choices, std::int64_t dropped = 0) {
  const auto experts = static_cast<Index>(choices.size());
  std::vector<std::int64_t> memory = choices;
  memory.push_back(dropped);
  memory.resize(memory.size() + nn::MoeTotals::kNumbers, 0);
  const auto totals = nn::MoeTotals::in(reinterpret_cast<std::byte*>(memory.data()), 1, experts);
  return train::moe_report(totals, {5}, 1, false).layers.at(0);
}

/// 1, 2, ..., n in another order.
std::vector<std::int64_t> numbers(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < n; ++i) all.push_back(i * 7 % n + 1);  // n is no multiple of 7
  return all;
}

// The 95th percentile of n experts is the least load that at least 95 % of them do not exceed.
TEST(MoeReport, The95thPercentileIsThatOfTheExperts) {
  EXPECT_DOUBLE_EQ(load_of(numbers(40)).p95_over_mean, 38 / 20.5) << "38 of 40";
  EXPECT_DOUBLE_EQ(load_of(numbers(20)).p95_over_mean, 19 / 10.5) << "19 of 20";
  EXPECT_DOUBLE_EQ(load_of(numbers(41)).p95_over_mean, 39 / 21.0) << "38.95 of 41";
  EXPECT_DOUBLE_EQ(load_of(numbers(8)).p95_over_mean, 8 / 4.5) << "of less than 20 it is the busiest";
  EXPECT_DOUBLE_EQ(load_of({6}).p95_over_mean, 1);
}

TEST(MoeReport, ALayersNumbers) {
  const train::ExpertLoad load = load_of({0, 3, 9, 0}, 2);
  EXPECT_EQ(load.layer, 5);
  EXPECT_EQ(load.choices, 12);
  EXPECT_EQ(load.dropped, 2);
  EXPECT_EQ(load.empty, 2);
  EXPECT_DOUBLE_EQ(load.max_over_mean, 3);
  const std::vector<std::pair<Index, double>> hottest = {{2, 0.75}, {1, 0.25}, {0, 0}};
  EXPECT_EQ(load.hottest, hottest);
}

}  // namespace
}  // namespace megalith
