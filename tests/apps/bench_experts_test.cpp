// `bench grouped`, `bench echo` and `bench moe`: what they measure and print, what loads are, and what is refused.
#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/str.h"

#include "tests/apps/program.h"

namespace megalith::support {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Counts = std::vector<std::int64_t>;

class BenchOfExperts : public Program {
 protected:
  static nlohmann::json printed(const std::string& command) {
    const Finished got = run_shell("megalith bench " + command + " --format json");
    EXPECT_EQ(got.code, 0) << command << "\n" << got.err;
    return got.code == 0 ? nlohmann::json::parse(got.out) : nlohmann::json();
  }
  static void expect_refused(const std::string& command, const std::string& text, int code = 64) {
    const Finished got = run_shell("megalith bench " + command);
    EXPECT_EQ(got.code, code) << command << "\n" << got.err;
    EXPECT_EQ(got.out, "") << command;
    EXPECT_THAT(got.err, HasSubstr(text)) << command;
  }
  std::string file_of(const std::string& text) const {
    std::ofstream(out("sizes")) << text;
    return out("sizes");
  }
};

std::vector<std::string> names_of(const nlohmann::json& rows) {
  std::vector<std::string> names;
  for (const nlohmann::json& row : rows) names.push_back(row.at("name").get<std::string>());
  return names;
}

TEST_F(BenchOfExperts, SizesOfGroupsAreExact) {
  const auto sizes = [](const std::string& options) {
    const nlohmann::json got = printed("grouped --n 8 --k 8 --repeats 1 --product wgrad " + options);
    const Counts counts = got.at("sizes").get<Counts>();
    EXPECT_EQ(got.at("rows").get<std::int64_t>(), std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    return counts;
  };
  EXPECT_EQ(sizes(""), Counts(8, 512));
  EXPECT_THAT(sizes("--rows 10 --groups 4"), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(sizes("--rows 2 --groups 3"), ElementsAre(1, 1, 0));
  EXPECT_THAT(sizes("--rows 10 --groups 4 --sizes zipf:0"), ElementsAre(3, 3, 2, 2));
  // 512 (1, 1/2, 1/3, 1/4) 12/25 = 245.76, 122.88, 81.92, 61.44: the largest remainders are rounded up.
  EXPECT_THAT(sizes("--rows 512 --groups 4 --sizes zipf:1"), ElementsAre(246, 123, 82, 61));
  EXPECT_THAT(sizes("--rows 21 --groups 3 --sizes zipf:2"), ElementsAre(15, 4, 2));  // 15.43, 3.86, 1.71
  EXPECT_THAT(sizes("--sizes " + file_of("7 0\n\n\t5  \n0 1")), ElementsAre(7, 0, 5, 0, 1));
  EXPECT_THAT(sizes("--rows 6 --groups 2 --sizes " + file_of("0\r\n6\r\n")), ElementsAre(0, 6));
}

TEST_F(BenchOfExperts, GroupedTimesEachProductAndOneGemmBeside) {
  const std::string command = "grouped --rows 40 --groups 3 --n 16 --k 24 --repeats 1 ";
  const nlohmann::json all = printed(command + "--gemm");
  EXPECT_EQ(all.at("n"), 16);
  EXPECT_EQ(all.at("k"), 24);
  EXPECT_THAT(names_of(all.at("times")),
              ElementsAre("roof: copy", "roof: product", "forward loop", "dgrad loop", "wgrad loop", "forward one GEMM",
                          "dgrad one GEMM", "wgrad one GEMM"));
  const double flops = 2.0 * 40 * 16 * 24;
  for (std::size_t i = 2; i < all.at("times").size(); ++i) {
    const nlohmann::json& row = all.at("times")[i];
    EXPECT_NEAR(row.at("flops_per_second").get<double>() * row.at("seconds").get<double>(), flops, 1e-6);
    EXPECT_GT(row.at("share_of_roof").get<double>(), 0);
  }
  EXPECT_THAT(names_of(printed(command + "--product wgrad,forward --backend loop").at("times")),
              ElementsAre("roof: copy", "roof: product", "forward loop", "wgrad loop"));
  const Finished table = run_shell("megalith bench " + command + "--product dgrad --sizes zipf:1");
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out,
              ::testing::MatchesRegex("40 rows in 3 groups of 7 to 22, N 16, K 24\nroof: copy .* GB/s .* %\n"
                                      "roof: product .* [GT]FLOP/s .* %\ndgrad loop .* us .* GFLOP/s .* %\n"));
}

TEST_F(BenchOfExperts, GroupedRefusesWhatItCannotMeasure) {
  expect_refused("grouped --sizes zipf:x", "--sizes = zipf:x: S of zipf:S must be a number from 0, such as zipf:1");
  expect_refused("grouped --sizes zipf:-1", "--sizes = zipf:-1: S of zipf:S must be a number from 0");
  expect_refused("grouped --sizes zipf:nan", "--sizes = zipf:nan: S of zipf:S");
  expect_refused("grouped --sizes " + out("nowhere"),
                 "nowhere: there is no such file; must be even, zipf:S, or a file of sizes", 65);
  expect_refused("grouped --sizes /tmp", "--sizes = /tmp: is a folder, and must be a file; must be even", 65);
  expect_refused("grouped --sizes " + file_of("3\n4 -5\n"),
                 "sizes: line 2, size = -5: must be a whole number from 0 to 2147483647", 65);
  expect_refused("grouped --sizes " + file_of("3.5"), "sizes: line 1, size = 3.5: must be a whole number", 65);
  expect_refused("grouped --sizes " + file_of("99999999999"), "sizes: line 1, size = 99999999999: must be a whole", 65);
  expect_refused("grouped --sizes " + file_of(" \n"), "sizes: has no sizes: it must have one for each group", 65);
  expect_refused("grouped --sizes " + file_of("0 0"), "sizes: its sizes sum to 0: must be 1 to 2147483647", 65);
  expect_refused("grouped --groups 3 --sizes " + file_of("1 2"),
                 "sizes: has 2 sizes: must be --groups = 3; leave --groups out", 65);
  expect_refused("grouped --rows 4 --sizes " + file_of("1 2"),
                 "sizes: its sizes sum to 3: must be --rows = 4; leave --rows out", 65);
  std::string many;
  for (int i = 0; i < 1025; ++i) many += "1 ";
  expect_refused("grouped --sizes " + file_of(many), "sizes: has 1025 sizes: must be at most 1024", 65);
  expect_refused("grouped --backend grouped", "--backend = grouped: is for --device cuda: a CPU has a GEMM for each");
  expect_refused("grouped --product up", "--product");
  expect_refused("grouped --n 0", "--n: must be a number from 1");
}

// Three ranks get a clone each: rank 0 has all 512 pairs, of two experts with 256 each.
TEST_F(BenchOfExperts, EchoTimesPlansAndTheWeightsOfSlots) {
  const std::string command =
      "echo --ranks 4 --experts 8 --top-k 2 --tokens 64 --min-pairs 0 --hidden 16 --ffn 8 --repeats 1 ";
  const nlohmann::json all = printed(command + "--slots 2");
  EXPECT_EQ(all.at("clones"), 3);
  EXPECT_EQ(all.at("moved"), 384);
  EXPECT_EQ(all.at("max_over_mean"), 4);
  EXPECT_EQ(all.at("max_over_mean_after"), 1);
  EXPECT_THAT(names_of(all.at("times")),
              ElementsAre("roof: copy", "roof: product", "count_pairs", "plan_echo", "rewrite_choices", "list_clones",
                          "plan and rewriting, all four", "weights of a slot, gather_rows", "weights of a slot, copy",
                          "weights of 2 slots, gather_rows", "weights of 2 slots, copy"));
  const auto bytes = [&](std::size_t row) {
    const nlohmann::json& of = all.at("times")[row];
    return of.at("bytes_per_second").get<double>() * of.at("seconds").get<double>();
  };
  constexpr double kBytesOfASlot = 2 * 4 * (2 * 8 * 16 + 8 * 16);  // read and written, f32
  for (const std::size_t row : {7U, 8U}) EXPECT_NEAR(bytes(row), kBytesOfASlot, 1e-6);
  for (const std::size_t row : {9U, 10U}) EXPECT_NEAR(bytes(row), 2 * kBytesOfASlot, 1e-6);
  ASSERT_EQ(all.at("share_of_copy").size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const nlohmann::json &gathered = all.at("times")[7 + 2 * i], &copied = all.at("times")[8 + 2 * i];
    EXPECT_DOUBLE_EQ(all.at("share_of_copy")[i].at("share").get<double>(),
                     copied.at("seconds").get<double>() / gathered.at("seconds").get<double>());
  }
  EXPECT_EQ(printed(command + "--slots 1 --load even").at("clones"), 0);
  EXPECT_EQ(printed(command + "--slots 1 --balance exact").at("clones"), 3);
  const Finished table = run_shell("megalith bench " + command + "--slots 1");
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("4 ranks, 8 experts, top-2, 64 tokens a rank, slots 1; load rank, most loaded rank "
                                   "over the mean 4.000 > 1.000, 3 clones\nweights of a slot: gather_rows has "));
}

TEST_F(BenchOfExperts, EchoRefusesWhatItCannotPlan) {
  expect_refused("echo --ranks 3 --experts 8 --top-k 9 --tokens 2147483647", "bench echo: 3 problems");
  expect_refused("echo --ranks 3 --experts 8", "--experts = 8: must be a multiple of --ranks = 3");
  expect_refused("echo --experts 8 --top-k 9", "--top-k = 9: must be at most --experts = 8");
  expect_refused("echo --experts 4 --top-k 2 --slots 5", "--slots = 5: must be at most --experts = 4");
  expect_refused("echo --slots 9", "--slots");
  expect_refused("echo --load hots", "--load = hots: must be even, hot, rank, rotate, burst or trace:FILE");
}

/// The choices of each expert in every step.
std::vector<Counts> choices_of(const nlohmann::json& got) { return got.at("choices").get<std::vector<Counts>>(); }

// The program ends with an error unless its router has chosen these.
TEST_F(BenchOfExperts, LoadsAreExact) {
  const auto loads = [](const std::string& options) {
    return choices_of(printed("moe --hidden 16 --ffn 8 --warmup 0 " + options));
  };
  const std::string two = "--tokens 10 --ep 2 --steps 1 --load ";  // 20 choices of 8 experts from each of two ranks
  EXPECT_THAT(loads(two + "even"), ElementsAre(Counts{6, 6, 6, 6, 4, 4, 4, 4}));
  EXPECT_THAT(loads(two + "hot"), ElementsAre(Counts{20, 4, 4, 4, 2, 2, 2, 2}));
  EXPECT_THAT(loads(two + "rank"), ElementsAre(Counts{10, 10, 10, 10, 0, 0, 0, 0}));
  EXPECT_THAT(loads("--tokens 10 --steps 1 --load rank"), ElementsAre(Counts{3, 3, 3, 3, 2, 2, 2, 2}))
      << "one rank has all experts";
  EXPECT_THAT(loads("--tokens 10 --ep 4 --top-k 3 --steps 1 --load rank"),
              ElementsAre(Counts{40, 40, 8, 8, 8, 8, 4, 4}))
      << "each of 4 ranks has 30 choices, of which experts 0 and 1 can take 20";
  EXPECT_THAT(loads("--tokens 10 --top-k 1 --steps 1 --load hot"), ElementsAre(Counts{10, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_THAT(loads("--tokens 10 --top-k 8 --steps 1 --load even"), ElementsAre(Counts(8, 10)));
  // In each step the hot expert is another rank's, and in 8 steps each expert has been hot.
  const std::vector<Counts> rotating = loads("--tokens 10 --ep 2 --steps 9 --load rotate");
  std::vector<std::int64_t> hot;
  for (const Counts& counts : rotating) {
    hot.push_back(std::ranges::max_element(counts) - counts.begin());
    EXPECT_EQ(std::ranges::max(counts), 20);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 40);
  }
  EXPECT_THAT(hot, ElementsAre(0, 4, 1, 5, 2, 6, 3, 7, 0));
  const Counts even = {6, 6, 6, 6, 4, 4, 4, 4}, burst = {10, 10, 10, 10, 0, 0, 0, 0};
  EXPECT_THAT(loads("--tokens 10 --ep 2 --steps 8 --load burst"),
              ElementsAre(even, even, even, burst, even, even, even, burst));
}

TEST_F(BenchOfExperts, LoadsOfATraceAreThoseOfItsFirstLayer) {
  const std::string trace = out("decisions");
  ASSERT_EQ(run_shell(train("run",
                            "--set train.steps=3 --set train.eval_interval=0 --set moe.num_experts=4 "
                            "--set moe.capacity=drop --set moe.capacity_factor=1 --set moe.capacity_run=4 "
                            "--router-trace " +
                                trace))
                .code,
            0);
  // 3 steps, 4 layers, 8 * 16 tokens, 2 experts a token; 2^15 is added for a dropped pair, which was chosen, too.
  std::ifstream file(trace, std::ios::binary);
  std::string line;
  std::getline(file, line);
  std::vector<std::uint16_t> values(3 * 4 * 128 * 2);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(2 * values.size()));
  const auto counted = [&](std::size_t step, std::size_t tokens) {
    Counts counts(4, 0);
    for (std::size_t i = 0; i < tokens * 2; ++i) ++counts[values[step * 4 * 256 + i] % 0x8000];
    return counts;
  };
  const std::string command = "moe --hidden 16 --ffn 8 --experts 4 --warmup 1 --steps 4 --load trace:" + trace;
  EXPECT_THAT(choices_of(printed(command + " --ep 2 --tokens 64")),
              ElementsAre(counted(0, 128), counted(1, 128), counted(2, 128), counted(0, 128)));
  EXPECT_THAT(choices_of(printed(command + " --tokens 50")),
              ElementsAre(counted(0, 50), counted(1, 50), counted(2, 50), counted(0, 50)));
  expect_refused(command + " --ep 2 --tokens 65",
                 "decisions: has tokens a step 128: must be at least --tokens * --ep = 130", 65);
  expect_refused("moe --hidden 16 --experts 8 --load trace:" + trace, "has experts 4: must be --experts = 8", 65);
  expect_refused("moe --hidden 16 --experts 4 --top-k 1 --load trace:" + trace, "has top_k 2: must be --top-k = 1", 65);
  expect_refused("moe --hidden 16 --load trace:" + file_of("3 4"),
                 "sizes: line 1, column 1, is not a router trace: `megalith", 65);
  expect_refused("moe --hidden 16 --load trace:" + out("nowhere"),
                 "nowhere: there is no such file; `megalith train --router-trace FILE` writes one", 65);
  expect_refused("moe --hidden 16 --load trace:/tmp", "--load = trace:/tmp: is a folder, and must be a file", 65);
  std::fstream(trace, std::ios::binary | std::ios::in | std::ios::out)
      .seekp(static_cast<std::streamoff>(line.size()) + 1)
      .write("\x09", 2);
  expect_refused(command + " --tokens 50",
                 str("--load = trace:", trace, ": line 2, byte ", line.size() + 2,
                     " of the file, step 1, MoE layer 0 names expert 9: must be below"),
                 65);
}

void expect_parts(const nlohmann::json& pass, bool several_ranks, const std::vector<std::string>& that_communicate) {
  const nlohmann::json& parts = pass.at("parts");
  EXPECT_THAT(names_of(parts), ElementsAre("router", "preprocess", "dispatch", "experts", "combine"));
  double sum = 0;
  for (const nlohmann::json& part : parts) {
    const std::string name = part.at("name");
    EXPECT_GT(part.at("seconds").get<double>(), 0) << name;
    EXPECT_GE(part.at("max_seconds").get<double>(), part.at("seconds").get<double>()) << name;
    const bool communicates = std::ranges::find(that_communicate, name) != that_communicate.end();
    EXPECT_EQ(part.at("communication_seconds").get<double>() > 0, several_ranks && communicates) << name;
    sum += part.at("max_seconds").get<double>();
  }
  EXPECT_GT(pass.at("seconds").get<double>(), 0);
  EXPECT_LE(pass.at("seconds").get<double>(), pass.at("max_seconds").get<double>());
  EXPECT_LT(pass.at("max_seconds").get<double>(), sum + 0.1) << "without shared experts little is between the parts";
}

TEST_F(BenchOfExperts, MoeTimesThePartsOfBothPasses) {
  std::vector<std::string> commands = {"megalith bench moe --ep 1", "megalith bench moe --ep 2",
                                       "megalith bench moe --ep 4"};
#ifdef MEGALITH_WITH_MPI
  commands.push_back(mpirun(2, program() + " bench moe --ep 2"));
#endif
  for (const std::string& command : commands) {
    SCOPED_TRACE(command);
    const Finished got = run_shell(command + " --tokens 24 --hidden 16 --ffn 8 --steps 3 --load hot --format json");
    ASSERT_EQ(got.code, 0) << got.err;
    const nlohmann::json json = nlohmann::json::parse(got.out);
    const bool several = json.at("ranks") != 1;
    expect_parts(json.at("forward"), several, {"preprocess", "dispatch", "combine"});
    expect_parts(json.at("backward"), several, {"experts", "dispatch"});
    EXPECT_EQ(json.at("tokens"), 24);
    EXPECT_EQ(json.at("load"), "hot");
    EXPECT_DOUBLE_EQ(json.at("expert_max_over_mean").get<double>(), 4) << "8 experts, of which a token has 2";
    EXPECT_EQ(json.at("choices").size(), 3u);
  }
}

/// The parts of clones in a pass, by name: {seconds, exposed seconds}.
std::map<std::string, std::pair<double, double>> clones_of(const nlohmann::json& pass) {
  std::map<std::string, std::pair<double, double>> parts;
  for (const nlohmann::json& part : pass.at("clones"))
    parts[part.at("name")] = {part.at("seconds").get<double>(), part.at("exposed_seconds").get<double>()};
  return parts;
}

// Ranks plan in the forward pass only. Weights move in it, and again in the backward pass where they are not kept.
TEST_F(BenchOfExperts, MoeTimesWhatClonesCost) {
  const std::string command =
      "moe --ep 2 --echo 2 --tokens 64 --hidden 16 --ffn 8 --steps 3 --load rank --set moe.echo.min_pairs=0 ";
  for (const char* weights : {"keep", "redispatch"}) {
    SCOPED_TRACE(weights);
    const nlohmann::json json = printed(command + "--set moe.echo.weights=" + weights);
    EXPECT_EQ(json.at("rank_max_over_mean"), 2);
    EXPECT_EQ(json.at("rank_max_over_mean_with_clones"), 1);
    EXPECT_FALSE(json.contains("pairs_left_out"));
    const bool again = weights == std::string("redispatch");
    for (const char* pass : {"forward", "backward"}) {
      const bool forward = pass == std::string("forward");
      const auto parts = clones_of(json.at(pass));
      EXPECT_EQ(parts.size(), 4u);
      for (const auto& [name, times] : parts) {
        const bool runs = name == "gradients" ? !forward : name == "weights" ? forward || again : forward;
        EXPECT_EQ(times.first > 0, runs) << pass << ' ' << name;
        EXPECT_EQ(times.second > 0, runs) << pass << ' ' << name;
      }
    }
    const auto forward = clones_of(json.at("forward"));
    const double planning = forward.at("planner").first + forward.at("rewriting").first;
    EXPECT_LT(planning, json.at("forward").at("seconds").get<double>());
  }
  const nlohmann::json plain = printed("moe --ep 2 --tokens 16 --hidden 16 --ffn 8 --steps 1 --echo 0");
  EXPECT_FALSE(plain.at("forward").contains("clones"));
  const Finished table = run_shell("megalith bench " + command);
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, ::testing::ContainsRegex("clones: at most 1.000 times the mean for a rank\n"
                                                  " +forward +exposed +backward +exposed\n"
                                                  "planner .* us .* us .* 0.0 us +0.0 us\nrewriting .*\n"
                                                  "weights .*\ngradients .*\n"));
}

// All choices are of rank 0, with room for 1.25 times the mean.
TEST_F(BenchOfExperts, MoeReportsPairsWithoutRoom) {
  const std::string command = "moe --ep 2 --tokens 64 --hidden 16 --ffn 8 --steps 1 --load rank ";
  const nlohmann::json json = printed(command + "--set moe.rank_capacity_factor=1.25");
  EXPECT_EQ(json.at("pairs_left_out"), 2 * 128 - 160) << "of 2 x 64 tokens with 2 choices";
  const Finished table = run_shell("megalith bench " + command + "--set moe.rank_capacity_factor=1.25");
  EXPECT_THAT(table.out, HasSubstr("up to 96 pairs of a step had no room on their ranks and were left out"));
  EXPECT_FALSE(printed(command + "--set moe.rank_capacity_factor=worst").contains("pairs_left_out"));
}

TEST_F(BenchOfExperts, MoePrintsATable) {
  const Finished got = run_shell("megalith bench moe --ep 2 --tokens 8 --hidden 16 --ffn 8 --steps 2 --load rank");
  EXPECT_THAT(got.err, Not(HasSubstr("moe.echo.slots")));
  const Finished alone = run_shell("megalith bench moe --ep 1 --echo 3 --tokens 8 --hidden 16 --ffn 8 --steps 2");
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.err, HasSubstr("moe.echo.slots = 3: does nothing with parallel.ep = 1")) << "there are no clones";
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_THAT(got.out, ::testing::MatchesRegex(
                           "2 ranks with 8 tokens each, hidden 16, 8 experts of 8, top-2, fp32, median of 2 steps\n"
                           "load rank: at most 2.00 times the mean for an expert, 2.00 for a rank\n"
                           " +forward +communication +backward +communication\n"
                           "router .* us .* us .* us .* us\npreprocess .*\ndispatch .*\nexperts .*\ncombine .*\n"
                           "layer .* us .* us *\nslowest step .* us .* us *\n"));
}

TEST_F(BenchOfExperts, MoeTakesWhatARecipeSets) {
  for (const char* settings :
       {"--set moe.capacity=pad --set moe.capacity_factor=1", "--set moe.capacity=drop --set moe.capacity_factor=1",
        "--set moe.shared_ffn_hidden_size=8 --set moe.shared_gate=true", "--set model.activation=gelu",
        "--set moe.score=sigmoid --set moe.expert_bias_rate=0.01",
        "--set recompute.mode=selective --set recompute.modules=mlp", "--precision fp64", "--precision bf16",
        "--set train.micro_batch=2 --set moe.aux_scope=sequence --set moe.z_loss=0.1"}) {
    const nlohmann::json got = printed(std::string("moe --ep 2 --tokens 16 --hidden 16 --ffn 8 --steps 1 ") + settings);
    EXPECT_GT(got.at("forward").at("seconds").get<double>(), 0) << settings;
  }
}

TEST_F(BenchOfExperts, MoeMeasuresFp8) {
  const std::string layer = "moe --ep 2 --tokens 128 --hidden 256 --ffn 128 --steps 1 --set fp8.weight_grad=true";
  const nlohmann::json got = printed(layer + " --precision fp8"),
                       none = printed(layer + " --precision fp8 --set fp8.experts=none"),
                       bf16 = printed(layer.substr(0, layer.find(" --set")) + " --precision bf16");
  EXPECT_EQ(got.at("precision"), "fp8");
  EXPECT_GT(got.at("backward").at("seconds").get<double>(), 0);
  EXPECT_EQ(none.at("kept_bytes"), bf16.at("kept_bytes"));
  EXPECT_NE(got.at("kept_bytes"), bf16.at("kept_bytes")) << "rows are kept in FP8";
}

TEST_F(BenchOfExperts, MoeRefusesWhatItCannotMeasure) {
  expect_refused("moe --ep 2 --echo 2 --set moe.echo.slots=3",
                 "--echo: --set moe.echo.slots sets it, too; leave one of the two out");
  expect_refused("moe --ep 2 --echo 9", "--echo");
  expect_refused("moe --ep 3", "parallel.ep = 3: must divide moe.num_experts = 8; the nearest is 4");
  expect_refused("moe --top-k 9", "moe.top_k = 9: must be in 1 .. moe.num_experts = 8");
  expect_refused("moe --hidden 4", "--hidden = 4: must be at least --experts = 8, as the first numbers of a row are");
  expect_refused("moe --load hott",
                 "--load = hott: must be even, hot, rank, rotate, burst or trace:FILE; the nearest is hot");
  const std::string rule = ": ranks of bench moe only share out experts";
  expect_refused("moe --ep 2 --set parallel.tp=2 --set parallel.etp=1", "parallel.tp = 2: must be 1" + rule);
  expect_refused("moe --set parallel.etp=2 --set parallel.ranks=2 --set train.global_batch=2",
                 "parallel.etp = 2: must be 1" + rule);
  expect_refused("moe --set parallel.ranks=2 --set train.global_batch=2",
                 "parallel.ranks = 2: must be --ep = 1" + rule);
  expect_refused("moe --set moe.router_skew=1", "moe.router_skew = 1: --load gives every token its experts");
  expect_refused("moe --set moe.force_balance=true", "moe.force_balance = true: --load gives every token its experts");
  expect_refused("moe --set moe.replay=x", "moe.replay = x: --load gives every token its experts");
  expect_refused("moe --set moe.num_groups=4 --set moe.group_top_k=2",
                 "moe.group_top_k = 2: must be moe.num_groups = 4");
  expect_refused("moe --set graphs.mode=iteration", "graphs.mode = iteration: must be none");
  expect_refused("moe --set model.preset=olmoe-1b-7b --experts 8",
                 "--experts: model.preset = olmoe-1b-7b sets it, too");
  expect_refused("moe --set model.preset=gpt2-124m", "moe.num_experts = none: must be given");
  expect_refused("moe --tokens 0", "--tokens: must be a number from 1");
  for (const auto& [option, key] :
       {std::pair("--experts 4", "moe.num_experts=16"), std::pair("--top-k 1", "moe.top_k=2"),
        std::pair("--hidden 16", "model.hidden_size=32"), std::pair("--ffn 16", "moe.ffn_hidden_size=32"),
        std::pair("--tokens 16", "model.seq_len=32"), std::pair("--ep 1", "parallel.ep=2"),
        std::pair("--steps 1", "train.steps=2"), std::pair("--device cpu", "device.type=cpu"),
        std::pair("--precision fp64", "train.precision=fp32"),
        std::pair("--deterministic", "train.deterministic=false")}) {
    const std::string name = std::string(option).substr(0, std::string(option).find(' '));
    expect_refused(str("moe ", option, " --set ", key),
                   str(name, ": --set ", std::string(key).substr(0, std::string(key).find('=')),
                       " sets it, too; leave one of the two out"));
  }
  expect_refused("moe --experts 4 --top-k 1 --set moe.num_experts=16 --set moe.top_k=2", "bench moe: 2 problems");
}

TEST_F(BenchOfExperts, RowsAreNumberedIn32Bits) {
  expect_refused("rows --tokens 1073741824 --top-k 2",
                 "--tokens = 1073741824: --tokens * --top-k must be at most 2147483647; with --top-k = 2 the most is "
                 "1073741823");
}

TEST_F(BenchOfExperts, OnAGpuBothBackendsAndAllLoadsRun) {
  if (!has_gpu()) GTEST_SKIP() << "needs a GPU";
  const nlohmann::json grouped = printed("grouped --device cuda --rows 3000 --sizes zipf:1 --n 256 --k 128 --gemm");
  EXPECT_THAT(names_of(grouped.at("times")), ::testing::IsSupersetOf({"forward loop", "dgrad loop", "wgrad loop",
                                                                      "forward one GEMM", "wgrad one GEMM"}));
  for (const char* load : {"even", "hot", "rotate", "burst"}) {
    for (const char* gemm : {"auto", "loop"}) {
      const nlohmann::json got =
          printed(std::string("moe --device cuda --tokens 512 --hidden 128 --ffn 64 --steps 4 ") + "--load " + load +
                  " --set moe.gemm=" + gemm);
      EXPECT_GT(got.at("backward").at("seconds").get<double>(), 0) << load;
    }
  }
  expect_refused("grouped --device cuda --backend grouped --precision fp32", "--backend = grouped: computes in bf16");
  expect_refused("grouped --device cuda --precision bf16 --rows 2147483647 --groups 2 --n 8 --k 8",
                 "--rows = 2147483647: with each group padded to 128 rows there are 2147483648: must be at most");
}

}  // namespace
}  // namespace megalith::support
