#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"

// What is printed of a plan and of graphs, before a run and by it.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::run_shell;

TEST_F(Program, PlanPrintsWhatTheRunTakes) {
  ASSERT_EQ(run_shell(train("a", "--set parallel.tp=2 --set parallel.pp=2")).code, 0);
  const Finished plan =
      run_shell("megalith plan " + recipe() + " --set parallel.tp=2 --set parallel.pp=2 --format json");
  ASSERT_EQ(plan.code, 0) << plan.err;
  std::int64_t largest = 0;
  const nlohmann::json json = nlohmann::json::parse(plan.out);
  for (const nlohmann::json& rank : json.at("ranks")) largest = std::max(largest, rank.at("total").get<std::int64_t>());
  std::ifstream file(out("a") + "/metrics.jsonl");
  std::string line;
  std::getline(file, line);
  EXPECT_EQ(nlohmann::json::parse(line).at("memory_bytes").get<std::int64_t>(), largest);
}

#ifdef MEGALITH_WITH_MPI
// Processes of one host read rows as rank threads do, others send them.
TEST_F(Program, UnderALauncherExpertsArePlannedAsProcessesRunThem) {
  const std::string plan = " plan " + recipe() +
                           " --set moe.num_experts=4 --set moe.top_k=2 --set parallel.ep=2 --set parallel.ranks=2 "
                           "--format json",
                    sent = " --set moe.dispatcher=all_to_all";
  const Finished threads = run_shell("megalith" + plan), of_sent = run_shell("megalith" + plan + sent),
                 processes = run_shell(support::mpirun(2, support::program() + plan)),
                 of_two_hosts =
                     run_shell(support::mpirun(2, "env OMPI_COMM_WORLD_LOCAL_SIZE=1 " + support::program() + plan));
  ASSERT_EQ(processes.code, 0) << processes.err;
  EXPECT_EQ(nlohmann::json::parse(processes.out), nlohmann::json::parse(threads.out));
  ASSERT_EQ(of_two_hosts.code, 0) << of_two_hosts.err;
  EXPECT_EQ(nlohmann::json::parse(of_two_hosts.out), nlohmann::json::parse(of_sent.out));
  EXPECT_NE(nlohmann::json::parse(of_sent.out).at("sum"), nlohmann::json::parse(threads.out).at("sum"));
}
#endif

TEST_F(Program, ExpertsOnGpusArePlannedAsNcclSendsThem) {
  const auto sum = [&](const std::string& settings) {
    const Finished plan = run_shell("megalith plan " + recipe() +
                                    " --set device.type=cuda --set moe.num_experts=4 --set moe.top_k=2 --set "
                                    "parallel.ep=2 --set parallel.ranks=2 --format json" +
                                    settings);
    EXPECT_EQ(plan.code, 0) << plan.err;
    return nlohmann::json::parse(plan.out).at("sum");
  };
  const nlohmann::json sent = sum(" --set moe.dispatcher=all_to_all");
  EXPECT_EQ(sum(" --set parallel.transfers=kernels"), sent);
  EXPECT_NE(sum(""), sent);
}

TEST_F(Program, PlanSaysWhatOnlyARunOnGpusKnows) {
  const std::string plan = "megalith plan " + recipe() + " --set device.type=cuda";
  const Finished one = run_shell(plan), two = run_shell(plan + " --set parallel.tp=2 --format json");
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_NE(one.out.find("not included: cuda context, which a run measures"), std::string::npos) << one.out;
  EXPECT_EQ(one.out.find("nccl"), std::string::npos) << one.out;
  EXPECT_EQ(nlohmann::json::parse(two.out).at("not_included"), nlohmann::json::parse(R"(["cuda context", "nccl"])"));
  const Finished cpu = run_shell("megalith plan " + recipe());
  EXPECT_EQ(cpu.out.find("not included"), std::string::npos) << cpu.out;
}

TEST_F(Program, ARunFromGraphsPrintsWhatItCapturedBesideThePlan) {
  const std::string settings = "--set parallel.pp=2 --set graphs.mode=layers --set graphs.warmup_steps=2 ";
  const Finished run = run_shell(train("a", settings + "--set graphs.check=2"));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.err.find("graphs captured by step 4, of those planned\nrank"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("\n   0  32 of 32  32 of 32"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("graphs.check: 2 steps from graphs had the bits of eager ones"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("\nrank  static inputs "), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("\nWhere graphs of rank 1 find what they touch"), std::string::npos) << run.err;
  std::ifstream file(out("a") + "/metrics.jsonl");
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (!json.contains("graphs")) continue;
    ++lines;
    EXPECT_EQ(json.at("graphs"), 32);
    EXPECT_EQ(json.at("step"), 4) << "captured in step 3, first launched in step 4";
    EXPECT_EQ(json.at("launches"), 32);
    EXPECT_EQ(json.at("comm_calls"), 0) << "messages between stages are outside";
    EXPECT_GT(json.at("static_input_bytes").get<std::int64_t>(), 0);
  }
  EXPECT_EQ(lines, 1);
  EXPECT_THAT(run.err, ::testing::ContainsRegex(
                           "graphs: the host submitted a step in [0-9.]+ us, of which launches took [0-9.]+ us "));
}

// Three steps of 4 samples, then of 8.
TEST_F(Program, ARunWhoseBatchGrowsReportsItsFirstAndItsLastGraphs) {
  const std::string ramp = "--set train.batch_ramp=4:8:12 --set parallel.pp=2 ";
  const Finished run =
      run_shell(train("a", ramp + "--set graphs.mode=layers --set graphs.warmup_steps=1 --set graphs.check=1 "));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, ::testing::HasSubstr("graphs are captured again in step 4, the first of 8 samples"));
  EXPECT_THAT(run.err, ::testing::HasSubstr("graphs captured by step 3, of those planned\n"));
  EXPECT_THAT(run.err, ::testing::HasSubstr("\n   0  16 of 16  16 of 16"));
  EXPECT_THAT(run.err, ::testing::HasSubstr("graphs captured by step 5, of those planned\n"));
  EXPECT_THAT(run.err, ::testing::HasSubstr("\n   0  32 of 32  32 of 32"));
  std::ifstream file(out("a") + "/metrics.jsonl");
  std::vector<std::pair<int, int>> graphs;  // step, how many
  std::vector<int> batches;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains("graphs")) graphs.emplace_back(json.at("step"), json.at("graphs"));
    if (json.contains("batch")) batches.push_back(json.at("batch"));
  }
  EXPECT_EQ(graphs, (std::vector<std::pair<int, int>>{{3, 16}, {5, 32}}));
  EXPECT_EQ(batches, (std::vector<int>{4, 4, 4, 8, 8, 8, 8, 8}));
  ASSERT_EQ(run_shell(train("b", ramp)).code, 0);
  std::vector<std::string> lines = support::metrics_of(out("a"));
  std::erase_if(lines, [](const std::string& line) { return line.find("\"graphs\"") != std::string::npos; });
  EXPECT_EQ(lines, support::metrics_of(out("b"))) << "losses, and tokens so far";
}

TEST_F(Program, ARunSaysWhichSettingsOfGraphsDoNothing) {
  const auto told = [&](const std::string& name, const std::string& settings) {
    const Finished run = run_shell(train(name, settings));
    EXPECT_EQ(run.code, 0) << run.err;
    return run.err;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(told("a",
                   "--set graphs.check=2 --set graphs.optimizer=true --set graphs.per=slot --set graphs.scopes=mlp "
                   "--set graphs.warmup_steps=5"),
              ::testing::AllOf(HasSubstr("graphs.warmup_steps = 5: does nothing with graphs.mode = none"),
                               HasSubstr("graphs.check = 2: does nothing with graphs.mode = none"),
                               HasSubstr("graphs.optimizer = true: does nothing with graphs.mode = none"),
                               HasSubstr("graphs.per = slot: does nothing with graphs.mode = none"),
                               HasSubstr("graphs.scopes = [mlp]: does nothing with graphs.mode = none")));
  EXPECT_THAT(told("d", "--set graphs.mode=layers --set graphs.warmup_steps=7"),
              HasSubstr("graphs.mode = layers: no graph is launched, as there are 8 steps to train, "
                        "graphs.warmup_steps = 7 and the step of the capture runs eagerly"));
  EXPECT_THAT(
      told("b", "--set graphs.mode=layers --set graphs.warmup_steps=8 --set graphs.check=1"),
      ::testing::AllOf(HasSubstr("graphs.mode = layers: no graph is captured, as there are 8 steps to train and "
                                 "graphs.warmup_steps = 8"),
                       HasSubstr("graphs.check = 1: 0 steps were compared before the run ended")));
  const std::string some = told("c", "--set graphs.mode=iteration --set graphs.warmup_steps=5 --set graphs.check=4");
  EXPECT_THAT(some, ::testing::AllOf(HasSubstr("graphs.check: 2 steps from graphs had the bits of eager ones"),
                                     HasSubstr("graphs.check = 4: 2 steps were compared before the run ended")));
}

TEST_F(Program, GraphsPrintsAndDraws) {
  const std::string picture = (dir_ / "graphs.svg").string();
  const Finished graphs = run_shell("megalith graphs " + recipe() +
                                    " --ranks 2 --set parallel.pp=2 --format json --rank 1 --svg " + picture);
  ASSERT_EQ(graphs.code, 0) << graphs.err;
  EXPECT_EQ(nlohmann::json::parse(graphs.out).at("ranks").size(), 2U);
  std::ifstream file(picture);
  const std::string drawn((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(drawn.find("Stage 1 of 2"), std::string::npos) << drawn;
  const Finished experts =
      run_shell("megalith graphs " + recipe() + " --set moe.num_experts=4 --set parallel.ep=2 --ranks 2");
  EXPECT_EQ(experts.code, 0) << experts.err;
  EXPECT_THAT(experts.out, ::testing::AllOf(::testing::HasSubstr("scopes [attn, moe_router, moe_preprocess]"),
                                            ::testing::HasSubstr("experts after sorting rows  the host reads how many "
                                                                 "rows go between the ranks of parallel.ep = 2")));
  const Finished broken = run_shell("megalith graphs " + recipe() + " --set graphs.scopes=moe");
  EXPECT_EQ(broken.code, 64);
  EXPECT_THAT(broken.err, ::testing::ContainsRegex("[.]toml: graphs.scopes = .moe.: "));
}

}  // namespace
}  // namespace megalith
