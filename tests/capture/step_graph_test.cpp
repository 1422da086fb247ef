#include "megalith/capture/step_graph.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::capture {
namespace {

TEST(StepGraph, RunsEagerlyThenCapturesOnceThenLaunches) {
  const Buffer memory(256);
  const std::vector<std::span<const std::byte>> planned{{memory.data(), static_cast<std::size_t>(memory.bytes())}};
  const Tensor count = memory.view({1}, DType::f64);
  Exec ex;
  int host_runs = 0;
  const auto ops = [&] {
    ++host_runs;
    ex.run({.name = "count", .reads = {count}, .writes = {count}},
           [count](Exec&, Stream) { count.data<double>()[0] += 1; });
  };
  StepGraph graph("training", 2);
  for (int run = 0; run < 2; ++run) graph.run(ex, planned, ops);
  EXPECT_TRUE(graph.captures_next());
  EXPECT_EQ(graph.launches().count(), 0);
  graph.capture(ex, planned, ops);
  EXPECT_EQ(count.data<double>()[0], 2) << "a capture runs nothing";
  for (int run = 0; run < 3; ++run) graph.run(ex, planned, ops);
  EXPECT_EQ(count.data<double>()[0], 5);
  EXPECT_EQ(host_runs, 3);
  EXPECT_EQ(graph.launches().count(), 3);
  EXPECT_GT(graph.launches().host_s(), 0);
  try {
    graph.capture(ex, planned, ops);
    FAIL() << "a second capture";
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "[graph] training: is captured already: reset() it first");
  }
  graph.reset();
  EXPECT_EQ(graph.launches().count(), 0);
  graph.run(ex, planned, ops);
  EXPECT_FALSE(graph.captured());
}

}  // namespace
}  // namespace megalith::capture
