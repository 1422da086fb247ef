#include "megalith/report/schedule_report.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"

#include "tests/test_data.h"

namespace megalith::apps {
namespace {

using nlohmann::json;
using pipeline::ScheduleMode;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(ScheduleReport, JsonIsAnEntryOfTheVectors) {
  std::ifstream file(MEGALITH_TEST_DATA "/schedules/schedules.json");
  const json vectors = json::parse(file);
  int compared = 0;
  for (const char* list : {"schedules", "extra_schedules"}) {
    for (json entry : vectors.at(list)) {
      entry.erase("note");
      const ScheduleRequest request{.shape = {.num_stages = entry.at("pp"),
                                              .num_chunks = entry.at("vpp"),
                                              .num_microbatches = entry.at("microbatches"),
                                              .group_size = entry.at("group_size")},
                                    .format = ScheduleFormat::json};
      EXPECT_EQ(json::parse(schedule_report(request)), entry);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 13);
}

TEST(ScheduleReport, JsonOfAForwardOnlyPassHasNoBackwardsAndNoGraphs) {
  const json report =
      json::parse(schedule_report({.shape = {2, 2, 3, 0, ScheduleMode::forward_only}, .format = ScheduleFormat::json}));
  EXPECT_EQ(report.at("kind"), "forward_only");
  EXPECT_EQ(report.at("backward_order"), json::array());
  EXPECT_EQ(report.at("makespan").at("ideal"), 3);
  EXPECT_EQ(report.at("ranks").at(1).at("sequence"), json::parse(R"(["F0.0","F1.0","F0.1","F1.1","F2.0","F2.1"])"));
  EXPECT_EQ(report.at("ranks").at(1).at("cooldown"), 0);
  EXPECT_EQ(report.at("ranks").at(1).at("graphs_per_captured_layer"), 0);
}

TEST(ScheduleReport, TextOfASmallPipeline) {
  EXPECT_EQ(schedule_report({.shape = {2, 1, 3, 0}}),
            R"(1F1B: 2 stages, 3 microbatches
Total time 12, ideal 9: every stage is idle for 25 % of the step (the bubble)
A microbatch takes 1 forward and 2 backward on a stage; communication is free.

stage  part of the model  warm-up  pairs  cool-down  in flight  idle  slots  receive buffers  send buffers  send queue
    0                  0        1      2          1          2     3      2              0+2           2+0         0+0
    1                  1        0      3          0          1     3      1              2+0           0+2         0+0
In flight: most microbatches whose activations are kept. Buffers, queue: activations + gradients.

F<microbatch> forward, B backward, - goes on, . idle; a column is 1 of time

time 0 to 12
0 | F0 F1 .  .  B0 -- F2 B1 -- .  B2 --
1 | .  F0 B0 -- F1 B1 -- F2 B2 -- .  .
)");
}

TEST(ScheduleReport, TextShowsChunksAndWraps) {
  const ScheduleRequest request{.shape = {4, 2, 8, 0}, .width = 80};
  const std::vector<std::string> lines = lines_of(schedule_report(request));
  EXPECT_EQ(lines.at(0), "Interleaved 1F1B: 4 stages of 2 chunks, 8 microbatches in groups of 4");
  EXPECT_EQ(lines.at(1), "Total time 28.5, ideal 24: every stage is idle for 15.8 % of the step (the bubble)");
  const auto first = std::find(lines.begin(), lines.end(), "time 0 to 7.5");
  ASSERT_NE(first, lines.end());
  EXPECT_EQ(*(first + 1), "0 | F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 .    .    .    B0.1");
  EXPECT_EQ(*(first + 7), "0 | ---- F7.0 B1.1 ---- .    F4.1 B2.1 ---- F5.1 B3.1 ---- F6.1 B0.0 ---- F7.1");
  for (auto line = first; line != lines.end(); ++line) EXPECT_LE(line->size(), 80u) << *line;
}

TEST(ScheduleReport, LongTimelinesAreCutInTheMiddleUnlessAskedFor) {
  ScheduleRequest request{.shape = {4, 1, 500, 0}};
  const std::string cut = schedule_report(request);
  EXPECT_NE(cut.find("left out; --full draws it)"), std::string::npos);
  EXPECT_LT(lines_of(cut).size(), 60u);
  EXPECT_NE(cut.find("B499"), std::string::npos);
  EXPECT_EQ(cut.find("B250"), std::string::npos);
  request.extent = TimelineExtent::full;
  const std::string full = schedule_report(request);
  EXPECT_NE(full.find("B250"), std::string::npos);
  EXPECT_EQ(full.find("left out"), std::string::npos);
}

TEST(ScheduleReport, ThirdsOfAChunkStayOnTheGrid) {
  const std::string text = schedule_report({.shape = {2, 3, 2, 0, ScheduleMode::forward_only}});
  EXPECT_NE(text.find("Total time 2.33333, ideal 2:"), std::string::npos) << text;
  EXPECT_NE(text.find("0 | F0.0 F1.0 F0.1 F1.1 F0.2 F1.2 .\n1 | .    F0.0 F1.0 F0.1 F1.1 F0.2 F1.2\n"),
            std::string::npos)
      << text;
}

TEST(ScheduleReport, IllegalShapesNameTheRule) {
  try {
    schedule_report({.shape = {4, 2, 6, 0}});
    FAIL() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("num_microbatches = 6: in groups of parallel.group_size = 4 the last one"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(schedule_report({.shape = {64, 4, 2048, 0}}), ConfigError);  // too much to print
}

}  // namespace
}  // namespace megalith::apps
