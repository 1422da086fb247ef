// `megalith echo`: plans of given counts, of a skewed router, and of a run's own routing.
#include <map>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"

namespace megalith::support {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr std::size_t kSteps = 2, kLayers = 2, kSamples = 8, kSeq = 16, kTopK = 2, kExperts = 8;

class EchoCommand : public Program {
 protected:
  std::string trace() const { return out("decisions"); }
  /// 2 steps of 8 samples with 16 tokens; layers 1 and 3 have 8 experts, of which a token takes 2.
  void record() const {
    const Finished run =
        run_shell(train("run", "--router-trace " + trace() +
                                   " --set train.steps=2 --set train.eval_interval=0 --set moe.num_experts=8 --set "
                                   "moe.top_k=2 --set moe.pattern=dm --set moe.router_skew=0.5"));
    ASSERT_EQ(run.code, 0) << run.err;
    ASSERT_THAT(run_shell("head -n 1 " + trace()).out, HasSubstr("layers 2 experts 8 top_k 2 tokens 128 seq_len 16"));
  }
  Finished echo(const std::string& arguments) const { return run_shell("megalith echo " + arguments); }
  Finished echo_trace(const std::string& arguments) const {
    return echo("--router-trace " + trace() + " " + arguments);
  }
  json echo_json(const std::string& arguments) const {
    const Finished got = echo_trace(arguments + " --format json");
    EXPECT_EQ(got.code, 0) << got.err;
    return json::parse(got.out);
  }
  /// Pairs of these samples of a step and MoE layer for each expert, from the file.
  std::vector<int> pairs_of(std::size_t step, std::size_t layer, std::size_t first_sample, std::size_t samples) const {
    std::ifstream file(trace(), std::ios::binary);
    std::string line;
    std::getline(file, line);
    std::vector<std::uint16_t> all(kSteps * kLayers * kSamples * kSeq * kTopK);
    file.read(reinterpret_cast<char*>(all.data()), static_cast<std::streamsize>(2 * all.size()));
    std::vector<int> pairs(kExperts, 0);
    const std::size_t begin = ((step * kLayers + layer) * kSamples + first_sample) * kSeq * kTopK;
    for (std::size_t i = 0; i < samples * kSeq * kTopK; ++i) ++pairs[all[begin + i]];
    return pairs;
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(dir_ / name) << text; }
};

TEST_F(EchoCommand, PlansCountsOfAFile) {
  write("counts.json", "[[5, 4, 2, 1], [6, 4, 1, 1]]");
  const Finished got = echo("--counts " + out("counts.json") + " --slots 1 --min-pairs 0 --format json");
  ASSERT_EQ(got.code, 0) << got.err;
  const json expect = json::parse(got.out).at("expect");
  EXPECT_EQ(expect.at("slot_src"), json::parse("[-1, 0]"));
  EXPECT_EQ(expect.at("load_after"), json::parse("[12, 12]"));
  EXPECT_EQ(expect.at("plan_hash"), "753e480df0f3adaa");
  const Finished text = echo("--counts " + out("counts.json"));
  EXPECT_THAT(text.out, HasSubstr("3 slots a rank; balance greedy, min_pairs 1024\n")) << "the defaults of a run";
  EXPECT_THAT(text.out, HasSubstr("stay home: 7 pairs, in parts below min_pairs = 1024"));
  const Finished stage = echo("--counts " + out("counts.json") + " --stage shares --balance exact");
  EXPECT_THAT(stage.out, HasSubstr("   3       0      7     3+1       3\n")) << stage.out << stage.err;
  write("entry.json", R"({"op": "plan", "input": {"count": [[5, 4, 2, 1], [6, 4, 1, 1]]}})");
  EXPECT_THAT(echo("--counts " + out("entry.json")).out, HasSubstr("3 slots a rank; balance greedy, min_pairs 1024\n"))
      << "the command's, as of plain arrays";
  EXPECT_THAT(echo("--counts " + out("entry.json") + " --slots 1 --min-pairs 5").out,
              HasSubstr("1 slots a rank; balance greedy, min_pairs 5\n"));
  EXPECT_THAT(echo("--counts " + out("counts.json") + " --format svg --min-pairs 0").out, HasSubstr("<svg"));
}

TEST_F(EchoCommand, PlansMicrobatchesOfARunAsItsRanksHaveThem) {
  record();
  // Two ranks with four samples each, two at a time: microbatch 1 of rank 1 are the samples 6 and 7.
  json plan = echo_json("--ep 2 --micro-batch 2 --step 2 --layer 3 --microbatch 1 --min-pairs 0");
  EXPECT_EQ(plan.at("input").at("count"), json({pairs_of(1, 1, 2, 2), pairs_of(1, 1, 6, 2)}));
  EXPECT_EQ(plan.at("input").at("slots_per_rank"), 3);
  // Of four ranks the last two are the second group.
  plan = echo_json("--ep 2 --dp 4 --step 1 --layer 1 --microbatch 3 --min-pairs 0");
  EXPECT_EQ(plan.at("input").at("count"), json({pairs_of(0, 0, 5, 1), pairs_of(0, 0, 7, 1)}));
}

TEST_F(EchoCommand, ReportsTheLayersOfARun) {
  record();
  const std::string costs = " --link-gbps 400 --tflops 1 --hidden 20 --ffn 32";
  const json report = echo_json("--ep 2 --micro-batch 4 --min-pairs 0" + costs);
  ASSERT_EQ(report.at("layers").size(), kLayers);
  EXPECT_DOUBLE_EQ(report.at("break_even_pairs").get<double>(), 2.5);
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const json& got = report.at("layers").at(layer);
    EXPECT_EQ(got.at("layer"), 2 * layer + 1) << "a layer of the model";
    EXPECT_EQ(got.at("microbatches"), kSteps);
    EXPECT_EQ(got.at("max_over_mean").size(), 9u);
    double before = 0;
    for (std::size_t step = 0; step < kSteps; ++step) {
      const std::vector<int> pairs = pairs_of(step, layer, 0, kSamples);
      const int first = pairs[0] + pairs[1] + pairs[2] + pairs[3], all = kSamples * kSeq * kTopK;
      before += std::max(first, all - first) / (all / 2.0) / kSteps;
    }
    EXPECT_NEAR(got.at("max_over_mean").at(0).get<double>(), before, 1e-12);
    EXPECT_GT(before, 1.05) << "of a skewed router";
    EXPECT_DOUBLE_EQ(got.at("max_over_mean").at(8).get<double>(), 1);
    const double clones = got.at("clones").get<double>();
    EXPECT_DOUBLE_EQ(got.at("weight_bytes").get<double>(), clones * 3 * 20 * 32 * 2);
    EXPECT_EQ(got.at("pays"), got.at("pairs_moved").get<double>() / clones > 2.5);
    const std::size_t enough = got.at("slots_that_suffice");
    EXPECT_GE(enough, 1u);
    EXPECT_DOUBLE_EQ(got.at("max_over_mean").at(enough).get<double>(), 1);
  }
  const Finished text = echo_trace("--ep 2 --micro-batch 4 --min-pairs 0" + costs);
  EXPECT_THAT(text.out, HasSubstr("steps 1 to 2; 2 MoE layers of 8 experts, top_k 2\n2 ranks of 4 x 16 tokens; 2 "
                                  "microbatches a layer; balance greedy, min_pairs 0\n"));
  EXPECT_THAT(text.out, HasSubstr("A clone pays above 3 pairs"));
  EXPECT_THAT(echo_trace("--ep 2").out, HasSubstr("No clone would get min_pairs = 1024 pairs"));
  const json one = echo_json("--ep 2 --micro-batch 4 --layer 3 --min-pairs 0" + costs);
  EXPECT_EQ(one.at("layers"), json({report.at("layers").at(1)}));
}

TEST_F(EchoCommand, RefusesWhatDoesNotFit) {
  record();
  write("counts.json", "[[5, 4, 2, 1],\n [6, -4, 1, 1]]");
  write("good.json", "[[5, 4, 2, 1]]");
  write("cut",
        "megalith router trace 2: layers 1 experts 4 top_k 1 tokens 16 seq_len 16 pattern m capacity none "
        "first_step 0\n123");
  std::string pairs(32, '\0');
  pairs[4] = 9;
  write("wrong",
        "megalith router trace 2: layers 1 experts 4 top_k 1 tokens 16 seq_len 16 pattern m capacity none "
        "first_step 0\n" +
            pairs);
  const std::map<std::string, std::pair<int, std::string>> refused = {
      {"--counts " + out("counts.json"), {65, "line 2, column 6, count = -4: must be a whole number"}},
      {"--counts " + out("absent"), {65, "absent"}},
      {"--counts " + out("good.json") + " --ep 2", {65, "line 1, column 14, counts are 1 x 4: must be 2 x 4"}},
      {"--counts " + out("good.json") + " --slots 5", {64, "--slots = 5: must be at most the number of experts, 4"}},
      {"--router-trace " + out("good.json") + " --ep 1", {65, "line 1, column 1, is not a router trace"}},
      {"--router-trace " + out("cut") + " --ep 1", {65, ": line 2, byte 111 of the file, is cut: 3 of the 32 bytes"}},
      {"--router-trace " + out("wrong") + " --ep 1 --step 1 --layer 0",
       {65, ": line 2, byte 115 of the file, step 1, MoE layer 0 names expert 9: must be below"}},
      {"--zipf 1 --experts 1024", {64, "--slots = 3: times 4 ranks, plus 1024 experts, must be at most 1024; use"}},
      {"--zipf 0.5 --ep 16 --experts 64 --tokens 1048576", {64, "--ep * --tokens * --experts at most 2^27"}},
      {"--router-trace " + trace() + " --ep 3",
       {65, "line 1, column 35, experts = 8: must be a multiple of the 3 ranks"}},
      {"--router-trace " + trace() + " --ep 2 --experts 4", {65, "line 1, column 35, experts = 8: must be 4, by"}},
      {"--router-trace " + trace() + " --ep 2 --micro-batch 3",
       {65, "line 1, column 53, tokens = 128: must be a multiple"}},
      {"--router-trace " + trace() + " --ep 2 --step 3", {64, "--step = 3: must be from 1 to 2, as the trace has"}},
      {"--router-trace " + trace() + " --ep 2 --layer 0",
       {64, "--layer = 0: must have experts; the model's layers are dmdm"}},
      {"--router-trace " + trace() + " --ep 2 --format svg", {64, "draws one plan; choose it with --step and --layer"}},
      {"--router-trace " + trace() + " --ep 2 --step 1 --layer 1 --microbatch 4",
       {64, "must be below 4, as a step has"}},
      {"", {64, "--counts, --router-trace, --zipf: must be given, and one of them only"}},
      {"--zipf 1 --ep 3 --top-k 65 --step 1 --balance exact --min-pairs 1", {64, "echo: 4 problems"}},
      {"--zipf 1 --micro-batch 2", {64, "--micro-batch: does nothing without --router-trace"}},
      {"--zipf 1 --hidden 8", {64, "--hidden: does nothing without --ffn"}},
      {"--zipf 1 --ffn 8", {64, "--ffn: does nothing without --hidden"}},
      {"--zipf 1 --tflops 8", {64, "--tflops: does nothing without --link-gbps"}},
      {"--zipf 1 --link-gbps 8", {64, "--link-gbps: does nothing without --tflops"}},
      {"--zipf 1 --weight-bytes 2",
       {64, "--weight-bytes: does nothing without --link-gbps and --tflops, or --hidden and --ffn"}},
      {"--zipf 1 --hidden 8 --ffn 8 --format json",
       {64, "--ffn: does nothing here: costs of one plan are printed with"}},
      {"--zipf 1 --hidden 8 --ffn 8 --stage spill", {64, "--hidden: does nothing here: costs of one plan are printed"}},
      {"--zipf 1 --slots 9", {64, "--slots: must be a number from 0 to 8, not 9"}},
      {"--zipf 1 --min-pairs -1", {64, "--min-pairs: must be a number from 0"}}};
  for (const auto& [arguments, want] : refused) {
    const Finished got = echo(arguments);
    EXPECT_EQ(got.code, want.first) << arguments << got.err;
    EXPECT_THAT(got.err, HasSubstr(want.second)) << arguments;
    EXPECT_EQ(got.out, "") << arguments;
  }
}

TEST_F(EchoCommand, PlansASkewedRouter) {
  const Finished got = echo("--zipf 0.5 --tokens 1024 --stage plan --min-pairs 0 --slots 3");
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("4 ranks, 64 experts, 3 slots a rank"));
  EXPECT_THAT(got.out, HasSubstr(" before, 1.000 after; "));
  EXPECT_THAT(echo("--zipf 0 --stage plan").out, HasSubstr("; 0 clones, 0 of 262144 pairs moved")) << "even routing";
}

}  // namespace
}  // namespace megalith::support
