#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"

namespace megalith::support {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// "resume 8", "fault 12": the events of OUT/history.jsonl.
std::vector<std::string> events_of(const std::string& out) {
  std::ifstream file(out + "/history.jsonl");
  std::vector<std::string> events;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json event = nlohmann::json::parse(line);
    EXPECT_EQ(event.at("time").get<std::string>().size(), 20U) << line;
    events.push_back(event.at("event").get<std::string>() + ' ' + std::to_string(event.at("step").get<int>()));
  }
  return events;
}

TEST_F(Program, KeepsAHistoryOfItsStartsAndFaults) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const std::string more = "--resume --set optimizer.decay_steps=8 ";
  // The last save fails: the error stays in the history when the run goes on.
  EXPECT_EQ(run_shell("MEGALITH_FAULT='0:sync_dir:3+:ENOSPC' " + train("a", more + "--set train.steps=12")).code, 74);
  ASSERT_EQ(run_shell(train("a", more + "--set train.steps=10 --set parallel.tp=2")).code, 0);
  EXPECT_THAT(events_of(out("a")), ElementsAre("start 0", "end 8", "resume 8", "fault 12", "resume 8", "end 10"));
}

TEST_F(Program, AHistoryThatADiskRefusesIsWrittenLater) {
  const Finished run = run_shell("MEGALITH_FAULT=0:write:2:EIO " + train("a"));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("history.jsonl is not complete, and is tried again: cannot write "));
  EXPECT_THAT(events_of(out("a")), ElementsAre("start 0", "end 8"));
}

}  // namespace
}  // namespace megalith::support
