#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/apps/program.h"

// What `train --trace` writes.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::run_shell;

nlohmann::json events_in(const std::string& file) {
  std::ifstream text(file);
  return nlohmann::json::parse(text).at("traceEvents");
}

/// Bars of products that took some time.
std::ptrdiff_t products(const nlohmann::json& events, int rank) {
  return std::ranges::count_if(events, [&](const nlohmann::json& event) {
    return event.at("ph") == "X" && event.at("pid") == rank && event.at("name") == "matmul" &&
           event.at("dur").get<double>() > 0 && event.at("ts").get<double>() >= 0;
  });
}

/// The bars of a row follow each other; one may begin `slack_us` before the last one's end.
void expect_apart(const nlohmann::json& events, double slack_us) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> rows;
  for (const nlohmann::json& event : events) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts").get<double>();
    rows[{event.at("pid").get<int>(), event.at("tid").get<int>()}].emplace_back(begin,
                                                                                begin + event.at("dur").get<double>());
  }
  EXPECT_FALSE(rows.empty());
  for (auto& [row, bars] : rows) {
    std::ranges::sort(bars);
    for (std::size_t i = 1; i < bars.size(); ++i)
      EXPECT_LE(bars[i - 1].second, bars[i].first + slack_us) << "rank " << row.first << ", row " << row.second;
  }
}

TEST_F(Program, ATraceHasTheOpsOfEveryRank) {
  const auto traced = [&](const std::string& name, const std::string& more) {
    const std::string file = out(name + ".json");
    const Finished got =
        run_shell(train(name, "--set parallel.pp=2 --set train.eval_interval=8 --trace " + file + more));
    EXPECT_EQ(got.code, 0) << got.err;
    return std::pair{got.err, events_in(file)};
  };
  const auto [told, three] = traced("a", "");
  EXPECT_NE(told.find("wrote steps 3 to 5 of all ranks"), std::string::npos) << told;
  const auto [told_short, one] = traced("b", " --set train.steps=1");
  EXPECT_NE(told_short.find("wrote steps 1 to 1 of all ranks"), std::string::npos) << told_short;
  const auto [told_full, full] = traced("c", " --set train.steps=1 --set recompute.mode=full");
  for (const int rank : {0, 1}) {
    EXPECT_GT(products(one, rank), 0);
    EXPECT_EQ(products(three, rank), 3 * products(one, rank));
    // QKV and projection of 2 layers, 8 microbatches: the recomputed pass stops before the layer's last GEMM.
    EXPECT_EQ(products(full, rank), products(one, rank) + 2 * 2 * 8);
  }
}

TEST_F(Program, ATraceHasTheOpsOfStepsOnAGpu) {
  if (!support::has_gpu()) GTEST_SKIP() << "needs a GPU";
  constexpr double kSlack_us = 1;  // CUDA gives times between events to half a microsecond
  const std::set<std::string> all_phases = {"backward", "forward", "optimizer", "other"};  // one rank: no communication
  const auto traced = [&](const std::string& name, const std::string& command) {
    const std::string file = out(name + ".json");
    const Finished got = run_shell(command + " --set train.gemm=heuristic --trace " + file);
    EXPECT_EQ(got.code, 0) << got.err;
    const nlohmann::json events = events_in(file);
    std::set<std::string> phases;
    for (const nlohmann::json& event : events) {
      EXPECT_EQ(event.at("pid"), 0);
      if (event.at("ph") == "X") phases.insert(event.at("cat").get<std::string>());
    }
    EXPECT_EQ(phases, all_phases);
    expect_apart(events, kSlack_us);
    return std::pair{got.err, events};
  };
  const std::string on_gpu = "--set device.type=cuda --set train.eval_interval=8";
  const auto [told, three] = traced("a", train("a", on_gpu));
  EXPECT_NE(told.find("wrote steps 3 to 5 of all ranks"), std::string::npos) << told;
  const auto [told_short, one] = traced("b", train("b", on_gpu + " --set train.steps=1"));
  EXPECT_NE(told_short.find("wrote steps 1 to 1 of all ranks"), std::string::npos) << told_short;
  EXPECT_GT(products(one, 0), 0);
  EXPECT_EQ(products(three, 0), 3 * products(one, 0));

  const std::string bench =
      "megalith bench step --device cuda --layers 1 --hidden 64 --heads 2 --seq 64 --batch 2 --micro-batch 1 --steps 1";
  EXPECT_GT(products(traced("c", bench).second, 0), 0);
}

TEST_F(Program, ATraceThatCannotBeWrittenIsRefusedBeforeTheRun) {
  const Finished refused = run_shell(train("a", "--trace " + out("nowhere") + "/t.json"));
  EXPECT_EQ(refused.code, 64) << refused.err;
  EXPECT_NE(refused.err.find("--trace = " + out("nowhere") + "/t.json: there is no folder " + out("nowhere") +
                             "; make it first"),
            std::string::npos)
      << refused.err;
  EXPECT_FALSE(std::filesystem::exists(out("a")));
  const Finished folder = run_shell(train("a", "--trace " + out("")));
  EXPECT_EQ(folder.code, 64) << folder.err;
  EXPECT_NE(folder.err.find("is a folder; name a file in it"), std::string::npos) << folder.err;
  const Finished device = run_shell(train("a", "--trace /dev/full"));
  EXPECT_EQ(device.code, 64) << device.err;
  EXPECT_NE(device.err.find("--trace = /dev/full: is a device or a pipe"), std::string::npos) << device.err;
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  const std::string long_name(300, 'x');
  EXPECT_EQ(run_shell(train("a", "--trace " + out(long_name) + "/t.json")).code, 64);
  const Finished bench = run_shell("megalith bench step --steps 1 --trace " + out("nowhere") + "/t.json");
  EXPECT_EQ(bench.code, 64) << bench.err;
  EXPECT_NE(bench.err.find("there is no folder"), std::string::npos) << bench.err;
}

TEST_F(Program, ATraceThatIsNotWrittenDoesNotEndTheRun) {
  const Finished trained = run_shell(train("a", "--trace /proc/t.json"));  // no file can be made there
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.err.find("--trace = /proc/t.json: not written, training goes on: "), std::string::npos)
      << trained.err;
  EXPECT_NE(trained.err.find("saved step 8"), std::string::npos) << trained.err;
  for (const std::string steps : {"8", "5"}) {
    const Finished over = run_shell(train("a", "--resume --trace " + out("t.json") + " --set train.steps=" + steps));
    EXPECT_EQ(over.code, 0) << over.err;
    EXPECT_NE(over.err.find("t.json: not written, as no step is left to train"), std::string::npos) << over.err;
  }
  const Finished bench = run_shell(
      "megalith bench step --layers 1 --hidden 16 --heads 2 --seq 8 --batch 2 --micro-batch 1 --steps 1 --trace "
      "/proc/t.json");
  EXPECT_EQ(bench.code, 74) << "what was asked for is not there; the figures are";
  EXPECT_NE(bench.err.find("--trace = /proc/t.json: not written: "), std::string::npos) << bench.err;
  EXPECT_NE(bench.out.find("tokens_per_second"), std::string::npos) << bench.out;
}

TEST_F(Program, TraceNamesTheRankThatHoldsTheStepUp) {
  const Finished trained = run_shell("MEGALITH_FAULT='3:call:150+:sleep=5ms' " +
                                     train("a",
                                           "--set parallel.ranks=4 --set parallel.tp=2 --set train.steps=5 "
                                           "--set train.eval_interval=0 --trace " +
                                               out("t.json")));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Finished told = run_shell("megalith trace " + out("t.json"));
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_NE(told.out.find("verdict: rank 3 (tp 1, dp-cp 1) holds the step up: "), std::string::npos) << told.out;
  EXPECT_NE(run_shell("megalith trace " + out("")).out.find("verdict: rank 3"), std::string::npos) << "by its folder";
}

TEST_F(Program, TraceNamesWhatItCannotRead) {
  const Finished none = run_shell("megalith trace " + out("none"));
  EXPECT_EQ(none.code, 65);
  EXPECT_NE(none.err.find("there is no such file or folder"), std::string::npos) << none.err;
  const Finished empty = run_shell("megalith trace " + out(""));
  EXPECT_EQ(empty.code, 65);
  EXPECT_NE(empty.err.find("holds no trace; megalith train ... --trace "), std::string::npos) << empty.err;
  EXPECT_EQ(run_shell("megalith trace " + recipe()).code, 65);
}

TEST_F(Program, ATraceShowsPhasesAndCommunicationBesideTheOps) {
  const std::string file = out("t.json");
  const Finished got = run_shell(
      "megalith bench step --layers 2 --hidden 16 --heads 2 --seq 8 --batch 8 --micro-batch 1 --steps 1 --pp 2 --dp 2 "
      "--trace " +
      file);
  ASSERT_EQ(got.code, 0) << got.err;
  const nlohmann::json events = events_in(file);
  std::map<int, std::set<std::string>> phases, calls, groups;
  for (const nlohmann::json& event : events) {
    if (event.at("ph") != "X") continue;
    const int rank = event.at("pid").get<int>();
    if (event.at("tid") == 0) {
      phases[rank].insert(event.at("cat").get<std::string>());
    } else {
      calls[rank].insert(event.at("name").get<std::string>());
      groups[rank].insert(event.at("args").at("group").get<std::string>());
      EXPECT_GT(event.at("args").at("bytes").get<double>(), 0) << event;
    }
  }
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_EQ(phases[rank], (std::set<std::string>{"backward", "communication", "forward", "optimizer", "other"}));
    for (const char* call : {"send", "recv", "reduce_scatter", "all_gather", "all_reduce"})
      EXPECT_TRUE(calls[rank].contains(call)) << "rank " << rank << ' ' << call;
    EXPECT_TRUE(groups[rank].contains("pp") && groups[rank].contains("dp-cp")) << "rank " << rank;
  }
  expect_apart(events, 0.002);
}

}  // namespace
}  // namespace megalith
