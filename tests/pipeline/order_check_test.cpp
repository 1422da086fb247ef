#include "megalith/pipeline/order_check.h"

#include <algorithm>
#include <cstdlib>
#include <random>

#include <gtest/gtest.h>

#include "tests/pipeline/shapes.h"

namespace megalith::pipeline {
namespace {

using Orders = std::vector<std::vector<int>>;

std::vector<std::string> problems_of(const ScheduleShape& shape, const Orders& orders) {
  Problems problems;
  check_orders(shape, orders, problems);
  return problems.lines();
}

Orders orders_of(const ScheduleShape& shape) {
  Orders orders;
  for (const Schedule& schedule : compute_schedules(shape)) orders.push_back(signed_order(schedule));
  return orders;
}

TEST(OrderCheck, OurOwnOrdersPass) {
  for (const ScheduleShape& shape : legal_shapes({1, 4, 9})) {
    ASSERT_EQ(problems_of(shape, orders_of(shape)), std::vector<std::string>{}) << shape;
  }
}

TEST(OrderCheck, ThePrintedListWithExchangedChunksIsRefused) {
  const ScheduleShape shape{4, 2, 8, 4};
  int refused = 0;
  for (const nlohmann::json& example : schedule_vectors().at("worked_examples")) {
    if (!example.value("must_be_rejected", false)) continue;
    Orders orders = orders_of(shape);
    orders[0] = example.at("order").get<std::vector<int>>();
    EXPECT_EQ(
        problems_of(shape, orders),
        std::vector<std::string>{"order of stage 0, entry 11 = backward of chunk 0, microbatch 0: comes before the "
                                 "backward of chunk 1"});
    ++refused;
  }
  EXPECT_EQ(refused, 1);
}

TEST(OrderCheck, OtherSoundOrdersPass) {
  // All forwards first runs too; it only takes more memory.
  EXPECT_EQ(problems_of({2, 1, 2, 0}, {{1, 1, -1, -1}, {1, 1, -1, -1}}), std::vector<std::string>{});
  // Each stage by itself is sound; together they wait for each other.
  const std::vector<std::string> lines = problems_of({2, 1, 2, 0}, {{1, -1, 1, -1}, {1, 1, -1, -1}});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("deadlock: 2 of 2 stages"), std::string::npos) << lines[0];
}

/// A random list that passes check_compute_list(): at each entry one of those that may come next.
std::vector<int> random_order(const ScheduleShape& shape, std::mt19937& random) {
  const auto chunks = static_cast<std::size_t>(shape.num_chunks);
  std::vector<int> forwards(chunks), backwards(chunks), order;
  while (order.size() < 2 * static_cast<std::size_t>(total_work(shape))) {
    std::vector<int> candidates;
    for (std::size_t c = 0; c < chunks; ++c) {
      const int limit = c == 0 ? shape.num_microbatches : forwards[c - 1];
      if (forwards[c] < limit) candidates.push_back(static_cast<int>(c) + 1);
      const int ready = c + 1 == chunks ? forwards[c] : std::min(forwards[c], backwards[c + 1]);
      if (backwards[c] < ready) candidates.push_back(-static_cast<int>(c) - 1);
    }
    const int entry = candidates[random() % candidates.size()];
    ++(entry > 0 ? forwards : backwards)[static_cast<std::size_t>(std::abs(entry) - 1)];
    order.push_back(entry);
  }
  return order;
}

TEST(OrderCheck, RandomOrdersFinishOrAreRefused) {
  std::mt19937 random(3);
  int finished = 0, deadlocked = 0, mismatched = 0;
  for (int round = 0; round < 2000; ++round) {
    const int chunks = 1 + round % 2;
    const ScheduleShape shape{
        .num_stages = 2 + round % 3, .num_chunks = chunks, .num_microbatches = 4, .group_size = 4};
    Orders orders;
    for (int stage = 0; stage < shape.num_stages; ++stage) orders.push_back(random_order(shape, random));
    const std::vector<std::string> lines = problems_of(shape, orders);
    if (lines.empty()) {
      ++finished;
    } else if (lines[0].find("deadlock") != std::string::npos) {
      ++deadlocked;
    } else {
      ASSERT_NE(lines[0].find("meets the wrong message"), std::string::npos) << lines[0];
      ++mismatched;
    }
  }
  EXPECT_GT(finished, 0);
  EXPECT_GT(deadlocked, 0);
  EXPECT_GT(mismatched, 0);
}

TEST(OrderCheck, NamesStageEntryAndRule) {
  const ScheduleShape shape{2, 2, 2, 0};
  const auto with_first = [&](const std::vector<int>& order) {
    Orders orders = orders_of(shape);
    orders[0] = order;
    const std::vector<std::string> lines = problems_of(shape, orders);
    return lines.empty() ? std::string("no problem") : lines.front();
  };
  EXPECT_EQ(with_first({1, 3}), "order of stage 0 = 3: an entry is +-1 to +-2");
  EXPECT_EQ(with_first({2}),
            "order of stage 0, entry 0 = forward of chunk 1, microbatch 0: comes before the forward of "
            "chunk 0");
  EXPECT_EQ(with_first({1, -1}),
            "order of stage 0, entry 1 = backward of chunk 0, microbatch 0: comes before the "
            "backward of chunk 1");
  EXPECT_EQ(with_first({1, -2}),
            "order of stage 0, entry 1 = backward of chunk 1, microbatch 0: comes before its forward");
  EXPECT_EQ(with_first({1, 1, 1}),
            "order of stage 0, entry 2 = forward of chunk 0, microbatch 2: a chunk takes each of "
            "the 2 microbatches once, in ascending order");
  EXPECT_EQ(with_first({1, 1}), "order of stage 0 = 2 entries: there must be 8");
  EXPECT_EQ(problems_of(shape, {{1}}),
            std::vector<std::string>{"orders = 1 lists: there must be one for each of 2 stages"});
}

TEST(OrderCheck, ForwardOnlyListsHoldNoBackwards) {
  const ScheduleShape shape{2, 1, 2, 0, ScheduleMode::forward_only};
  EXPECT_EQ(problems_of(shape, {{1, 1}, {1, 1}}), std::vector<std::string>{});
  EXPECT_EQ(problems_of(shape, {{1, 1}, {1, -1}}),
            std::vector<std::string>{
                "order of stage 1, entry 1 = backward of chunk 0, microbatch 0: a forward-only list has no backwards"});
}

}  // namespace
}  // namespace megalith::pipeline
