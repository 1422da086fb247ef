#include "megalith/report/groups_report.h"

#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/grid/grid_testing.h"
#include "tests/grid/groups_vectors.h"

namespace megalith::apps {
namespace {

using grid::config_error;
using grid::group_vectors;
using grid::sizes_from;
using nlohmann::ordered_json;

/// "--world-size 16 --tp 4" -> {"world_size": 16, "tp": 4}
ordered_json arguments_from(const std::string& line) {
  ordered_json args;
  std::istringstream words(line);
  for (std::string option; words >> option;) {
    option.erase(0, 2);
    std::replace(option.begin(), option.end(), '-', '_');
    int value = 0;
    if (!(words >> value)) throw std::runtime_error("groups.json: no number after --" + option);
    args[option] = value;
  }
  return args;
}

TEST(GroupsReport, TextIsExact) {
  for (const ordered_json& row : group_vectors().at("cli")) {
    const GroupsRequest request{.sizes = sizes_from(arguments_from(row.at("argv")))};
    if (row.at("exit") != 0) {
      EXPECT_EQ("error: " + config_error([&] { groups_report(request); }), row.at("stderr").get<std::string>());
      continue;
    }
    std::string want;
    for (const std::string line : row.at("stdout")) want += line + "\n";
    const GroupsReport report = groups_report(request);
    EXPECT_EQ(report.output, want) << row.at("argv");
    EXPECT_TRUE(report.warnings.empty());
  }
}

TEST(GroupsReport, JsonHasTheShapeAndKeyOrderOfTheVectors) {
  int compared = 0;
  for (const ordered_json& example : group_vectors().at("examples")) {
    if (!example.contains("expert")) continue;  // one large example lists only some kinds
    const ordered_json& placement = example.at("placement");
    GroupsRequest request{.sizes = sizes_from(example.at("args")), .format = GroupsFormat::json};
    ordered_json want{
        {"resolved", example.at("resolved")}, {"dense", example.at("dense")}, {"expert", example.at("expert")}};
    EXPECT_EQ(ordered_json::parse(groups_report(request).output).dump(), want.dump()) << example.at("id");
    request.ranks_per_node = placement.at("ranks_per_node").get<int>();
    want["placement"] = placement;
    EXPECT_EQ(ordered_json::parse(groups_report(request).output).dump(), want.dump()) << example.at("id");
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

TEST(GroupsReport, OneRankHasTheShapeAndKeyOrderOfTheVectors) {
  for (const ordered_json& example : group_vectors().at("examples")) {
    for (const ordered_json& want : example.value("per_rank", ordered_json::array())) {
      const GroupsRequest request{
          .sizes = sizes_from(example.at("args")), .format = GroupsFormat::json, .rank = want.at("rank").get<int>()};
      EXPECT_EQ(ordered_json::parse(groups_report(request).output).dump(), want.dump()) << example.at("id");
    }
  }
}

TEST(GroupsReport, OneRankAsText) {
  const GroupsRequest request{.sizes = {.world_size = 8, .tp = 2, .pp = 4}, .rank = 3};
  const std::string text = groups_report(request).output;
  EXPECT_TRUE(text.starts_with("rank 3\ntp_rank 1\n")) << text;
  EXPECT_NE(text.find("\npp_group [1, 3, 5, 7]\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nis_first_stage false\n"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\nembd_group none\npos_embd_group none\n")) << text;
}

TEST(GroupsReport, StagesOfARankDoNotDependOnChunks) {
  const GroupsRequest request{.sizes = {.world_size = 4, .pp = 4, .vpp = 2}, .format = GroupsFormat::json, .rank = 3};
  EXPECT_EQ(ordered_json::parse(groups_report(request).output).at("is_last_stage").dump(), "true");
}

TEST(GroupsReport, CrossingLinesFollowTheGroups) {
  const GroupsRequest request{.sizes = {.world_size = 16, .tp = 2, .pp = 4}, .ranks_per_node = 8};
  const GroupsReport report = groups_report(request);
  const std::string want =
      "crossing dp 0 of 8\ncrossing dp-cp 0 of 8\ncrossing cp 0 of 16\ncrossing mp 2 of 2\ncrossing tp 0 of 8\n"
      "crossing pp 4 of 4\ncrossing embd 4 of 4\ncrossing pos-embd 0 of 4\ncrossing tp-dp-cp 0 of 4\n"
      "crossing tp-dp 0 of 4\ncrossing tp-cp 0 of 8\ncrossing ep 0 of 16\ncrossing etp 0 of 8\ncrossing etp-ep 0 of 8\n"
      "crossing etp-ep-pp 2 of 2\ncrossing edp 0 of 8\n";
  EXPECT_TRUE(report.output.ends_with("\n" + want)) << report.output;
  EXPECT_TRUE(report.warnings.empty());
}

TEST(GroupsReport, WarnsAboutTensorGroupsAcrossNodes) {
  const GroupsReport report = groups_report({.sizes = {.world_size = 8, .tp = 8}, .ranks_per_node = 4});
  ASSERT_EQ(report.warnings.size(), 1u);
  EXPECT_TRUE(report.warnings[0].starts_with("1 of 1 ")) << report.warnings[0];
}

TEST(GroupsReport, Errors) {
  EXPECT_EQ(config_error([] { groups_report({.sizes = {.world_size = 8}, .rank = 8}); }),
            "[grid] rank = 8: must be in 0..7");
  EXPECT_EQ(config_error([] { groups_report({.sizes = {.world_size = 8}, .ranks_per_node = 0}); }),
            "E_SIZE_NOT_POSITIVE: ranks_per_node=0: every size must be at least 1");
}

TEST(GroupsReport, ErrorsNameWhatWouldBeLegal) {
  const auto error = [](const grid::ParallelSizes& sizes) -> std::string {
    try {
      groups_report({.sizes = sizes});
    } catch (const ConfigError& refused) {
      return refused.what();
    }
    return "";
  };
  EXPECT_THAT(error({.world_size = 12, .tp = 4, .ep = 8, .etp = 1}),
              testing::EndsWith("is not divisible by 8 (etp 1 * ep 8 * pp 1); the least number of ranks is 8"));
  EXPECT_THAT(error({.world_size = 6, .tp = 4}), testing::EndsWith("; the least number of ranks is 4"));
  EXPECT_THAT(error({.world_size = 6, .tp = 65536, .pp = 65536}), testing::EndsWith("(tp 65536 * cp 1 * pp 65536)"));
  grid::ParallelSizes crossed{.world_size = 8, .tp = 4, .pp = 2, .ep = 4, .etp = 1, .order = "tp-pp-cp-ep-dp"};
  EXPECT_THAT(error(crossed), testing::EndsWith("; the nearest legal order has pp last: tp-cp-ep-dp-pp"));
  crossed.order = "tp-cp-ep-dp-pp";
  EXPECT_EQ(error(crossed), "");
}

TEST(GroupsReport, AHundredThousandRanks) {
  const GroupsRequest request{.sizes = {.world_size = 100000, .tp = 8, .pp = 10}};
  const std::string text = groups_report(request).output;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20);
  EXPECT_EQ(std::count(text.begin(), text.end(), '['),
            12500 * 4 /* tp, tp-cp, etp, etp-ep */ + 80 * 3 /* dp, dp-cp, edp */ + 100000 * 2 /* cp, ep */ +
                1250 * 2 /* mp, etp-ep-pp */ + 10000 * 3 /* pp, embd, pos-embd */ + 10 * 2 /* tp-dp, tp-dp-cp */);
  EXPECT_TRUE(text.ends_with(", 99999]\n"));
}

}  // namespace
}  // namespace megalith::apps
