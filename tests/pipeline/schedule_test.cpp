#include "megalith/pipeline/schedule.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/grid/layer_assignment.h"

#include "tests/pipeline/shapes.h"

namespace megalith::pipeline {
namespace {

using nlohmann::json;

std::vector<std::string> problems_of(const ScheduleShape& shape) {
  Problems problems;
  check_shape(shape, problems);
  return problems.lines();
}

TEST(Schedule, VectorsOfEveryStage) {
  for (const json& entry : schedule_entries()) {
    const ScheduleShape shape = shape_of(entry);
    SCOPED_TRACE(str(shape));
    EXPECT_EQ(problems_of(shape), std::vector<std::string>{});
    EXPECT_EQ(name(kind_of(shape)), entry.at("kind").get<std::string>());
    EXPECT_EQ(total_work(shape), entry.at("total_virtual_microbatches"));
    json table = json::array();
    for (const TableRow& row : schedule_table(shape)) table.push_back({row.microbatch, row.chunk});
    EXPECT_EQ(table, entry.at("schedule_table"));
    for (const json& rank : entry.at("ranks")) {
      const int stage = rank.at("rank");
      EXPECT_EQ(warmup_count(shape, stage), rank.at("warmup"));
      EXPECT_EQ(peak_in_flight(shape, stage), rank.at("peak_in_flight"));
      EXPECT_EQ(captured_microbatches(shape), rank.at("captured_microbatches"));
      EXPECT_EQ(signed_order(compute_schedule(shape, stage)), rank.at("order").get<std::vector<int>>());
      EXPECT_EQ(capture_order(shape, stage), rank.at("capture_order").get<std::vector<int>>());
      json sequence = json::array();
      for (const Action& action : compute_schedule(shape, stage)) {
        sequence.push_back(str(action.act == Act::forward ? "F" : "B", action.microbatch, ".", action.chunk));
      }
      EXPECT_EQ(sequence, rank.at("sequence"));
    }
  }
}

TEST(Schedule, WorkedExamples) {
  for (const json& example : schedule_vectors().at("worked_examples")) {
    const std::string which = example.at("name");
    SCOPED_TRACE(which);
    if (which == "no_pipeline_fwd_then_bwd") {
      EXPECT_EQ(signed_order(compute_schedule(shape_of(example), 0)), example.at("order").get<std::vector<int>>());
      EXPECT_EQ(capture_order(shape_of(example), 0), (std::vector<int>{1, -1}));
    } else if (which == "all_forward_then_all_backward") {
      // Not a schedule of ours: no shape of that many microbatches makes it.
      const ScheduleShape shape{.num_microbatches = example.at("microbatches")};
      EXPECT_NE(signed_order(compute_schedule(shape, 0)), example.at("order").get<std::vector<int>>());
    } else if (which == "layer_partition_32_layers_pp4_vpp2") {
      const auto layers = grid::LayerAssignment::even(32, 4, 2);
      for (int stage = 0; stage < 4; ++stage) {
        json ranges = json::array();
        for (int chunk = 0; chunk < 2; ++chunk) {
          const grid::LayerRange range = layers.at(stage, chunk);
          ranges.push_back({range.begin, range.end - 1});
        }
        EXPECT_EQ(ranges, example.at("chunks_of_rank").at(str(stage)));
      }
    } else if (which == "pp4_vpp2_m8_rank0") {
      const std::vector<int> order = signed_order(compute_schedule(shape_of(example), 0));
      std::vector<int> wanted = example.at("warmup_part");
      for (const json& pair : example.at("steady_part")) wanted.insert(wanted.end(), pair.begin(), pair.end());
      for (const json& entry : example.at("cooldown_part")) wanted.push_back(entry);
      EXPECT_EQ(order, wanted);
      EXPECT_EQ(order, example.at("order").get<std::vector<int>>());
    } else if (which == "warmup_formula") {
      const ScheduleShape shape{.num_stages = 4, .num_chunks = 2, .num_microbatches = 8};
      for (int stage = 0; stage < 4; ++stage) {
        EXPECT_EQ(warmup_count(shape, stage), example.at("values_pp4_vpp2").at(static_cast<std::size_t>(stage)));
        EXPECT_EQ(peak_in_flight(shape, stage), example.at("values_pp4_vpp2_peak").at(static_cast<std::size_t>(stage)));
      }
    } else {
      EXPECT_EQ(which, "pp4_vpp2_m8_rank0_first_printing");  // order_check_test.cpp
    }
  }
}

TEST(Schedule, EachChunkSeesEachMicrobatchOnceEachWayInOrder) {
  for (const ScheduleShape& shape : legal_shapes(counting_to(24))) {
    for (int stage = 0; stage < shape.num_stages; ++stage) {
      std::vector<int> forwards(8), backwards(8);  // by chunk
      int in_flight = 0, peak = 0;
      for (const Action& action : compute_schedule(shape, stage)) {
        const auto chunk = static_cast<std::size_t>(action.chunk);
        int& done = action.act == Act::forward ? forwards[chunk] : backwards[chunk];
        ASSERT_EQ(action.microbatch, done++) << shape << " stage " << stage;
        in_flight += action.act == Act::forward ? 1 : -1;
        peak = std::max(peak, in_flight);
        if (action.act == Act::forward) continue;
        ASSERT_LE(done, forwards[chunk]) << shape << " stage " << stage;
        if (action.chunk + 1 < shape.num_chunks) {
          ASSERT_LE(done, backwards[chunk + 1]) << shape << " stage " << stage;
        }
      }
      for (std::size_t chunk = 0; chunk < 8; ++chunk) {
        const int wanted = chunk < static_cast<std::size_t>(shape.num_chunks) ? shape.num_microbatches : 0;
        ASSERT_EQ(forwards[chunk], wanted) << shape << " stage " << stage;
        ASSERT_EQ(backwards[chunk], wanted) << shape << " stage " << stage;
      }
      ASSERT_EQ(peak, peak_in_flight(shape, stage)) << shape << " stage " << stage;
      ASSERT_EQ(schedule_of_order(shape, signed_order(compute_schedule(shape, stage))), compute_schedule(shape, stage));
    }
  }
}

TEST(Schedule, PeakFollowsThePublishedFormulas) {
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(peak_in_flight({4, 1, 32, 0}, stage), 4 - stage);
    EXPECT_EQ(peak_in_flight({4, 3, 32, 0}, stage), (4 - stage - 1) * 2 + (3 - 1) * 4 + 1);
  }
}

TEST(Schedule, ForwardOnlyRunsTheTableOnEveryStage) {
  const ScheduleShape shape{2, 2, 5, 2, ScheduleMode::forward_only};  // not legal in training: the last group holds one
  const Schedule wanted{{Act::forward, 0, 0}, {Act::forward, 0, 1}, {Act::forward, 1, 0}, {Act::forward, 1, 1},
                        {Act::forward, 0, 2}, {Act::forward, 0, 3}, {Act::forward, 1, 2}, {Act::forward, 1, 3},
                        {Act::forward, 0, 4}, {Act::forward, 1, 4}};
  EXPECT_EQ(compute_schedule(shape, 0), wanted);
  EXPECT_EQ(compute_schedule(shape, 1), wanted);
  EXPECT_EQ(name(kind_of(shape)), "forward_only");
  EXPECT_EQ(warmup_count(shape, 0), 10);
  EXPECT_EQ(peak_in_flight(shape, 0), 1);
  EXPECT_TRUE(capture_order(shape, 0).empty());
}

TEST(ScheduleShape, AcceptsExactlyTheLegalShapes) {
  for (int pp = 1; pp <= 6; ++pp) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      for (int count = 1; count <= 20; ++count) {
        for (int group = 1; group <= 22; ++group) {
          const ScheduleShape shape{pp, chunks, count, group};
          EXPECT_EQ(problems_of(shape).empty(), is_legal(pp, chunks, count, group)) << shape;
        }
      }
    }
  }
}

TEST(ScheduleShape, RejectsTheVectorsNamingTheRule) {
  const std::vector<std::string> wanted{
      "parallel.chunks = 2: a virtual pipeline needs a pipeline; set parallel.chunks = 1, or parallel.pp to 2 or more",
      "num_microbatches = 3: parallel.chunks = 2 needs at least parallel.pp = 4 microbatches in a step; raise "
      "train.global_batch until there are 4, or set parallel.chunks = 1",
      "parallel.group_size = 2: must be at least parallel.pp = 4 with parallel.chunks > 1; the nearest legal value is "
      "4",
      "num_microbatches = 6: in groups of parallel.group_size = 4 the last one holds 2, and must hold none or at least "
      "parallel.pp = 4; change train.global_batch to have 4 or 8, or set parallel.group_size = 6",
      "num_microbatches = 5: in groups of parallel.group_size = 2 the last one holds 1, and must hold none or at least "
      "parallel.pp = 2; change train.global_batch to have 4 or 6, or set parallel.group_size = 3"};
  std::size_t i = 0;
  for (const json& entry : schedule_vectors().at("rejected")) {
    EXPECT_EQ(problems_of(shape_of(entry)), std::vector<std::string>{wanted.at(i++)}) << entry;
    EXPECT_THROW(compute_schedule(shape_of(entry), 0), InternalError);
  }
  EXPECT_EQ(i, wanted.size());
}

TEST(ScheduleShape, ReportsEveryBrokenRuleWithTheNearestValue) {
  EXPECT_EQ(problems_of({0, -1, 0, -3}).size(), 4u);
  EXPECT_EQ(problems_of({2, 2, 5, 9}),
            std::vector<std::string>{
                "parallel.group_size = 9: must not exceed the 5 microbatches of a step; the nearest legal value is 5"});
  EXPECT_EQ(problems_of({4, 2, 3, 2}).size(), 2u);
  EXPECT_EQ(problems_of({1 << 20, 1, 1 << 20, 0}).size(), 1u);  // would overflow the counts
  EXPECT_TRUE(problems_of({4, 1, 2, 3}).empty());               // the group has no effect with one chunk
}

TEST(ScheduleShape, CallersMistakesAreInternalErrors) {
  EXPECT_THROW(compute_schedule({2, 1, 2, 0}, 2), InternalError);
  EXPECT_THROW(schedule_of_order({2, 2, 2, 0}, {1, 3}), InternalError);
  EXPECT_THROW(schedule_of_order({2, 2, 2, 0}, {0}), InternalError);
}

}  // namespace
}  // namespace megalith::pipeline
