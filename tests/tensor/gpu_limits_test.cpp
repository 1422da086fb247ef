// What is counted and remembered of GPUs, without one.
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/tensor/cuda/shared_limit.h"
#include "megalith/tensor/stream_budget.h"

namespace megalith {
namespace {

TEST(StreamBudget, RefusesMoreThanTheHardwareQueues) {
  StreamBudget budget;
  for (int i = 0; i < kHardwareQueues; ++i) budget.take();
  try {
    budget.take();
    FAIL() << "took a stream without a queue";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("a rank needs more than 32 streams of its GPU"), std::string::npos);
  }
  EXPECT_EQ(budget.taken(), kHardwareQueues) << "one that was refused counts";
  budget.give_back();
  EXPECT_NO_THROW(budget.take());
}

TEST(SharedLimits, OnlyRise) {
  cuda::SharedLimits limits;
  const int kernel = 0, other = 0;
  std::vector<int> set;
  const auto raise = [&](int gpu, const void* of, int bytes) {
    limits.raise(gpu, of, bytes, [&](int most) { set.push_back(most); });
  };
  raise(0, &kernel, 100);
  raise(0, &kernel, 100);  // once
  raise(0, &kernel, 0);    // an evaluation
  raise(0, &kernel, 60);
  EXPECT_EQ(set, std::vector<int>({100}));
  raise(0, &kernel, 200);
  raise(1, &kernel, 60);
  raise(0, &other, 50);
  EXPECT_EQ(set, std::vector<int>({100, 200, 60, 50}));
  const auto fail = [](int) { throw BackendError("no"); };
  EXPECT_THROW(limits.raise(0, &kernel, 300, fail), BackendError);
  raise(0, &kernel, 250);
  EXPECT_EQ(set.back(), 250) << "a limit that could not be set was kept";
}

}  // namespace
}  // namespace megalith
