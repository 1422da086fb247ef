#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/process.h"

// megalith bench: what it measures, prints and refuses.
namespace megalith {
namespace {

using support::Finished;
using support::mpirun;
using support::run_shell;

/// What a benchmark prints with --format json; null after a failure.
nlohmann::json json_of(const std::string& command) {
  const Finished got = run_shell(command + " --format json");
  EXPECT_EQ(got.code, 0) << got.err;
  return got.code == 0 ? nlohmann::json::parse(got.out) : nlohmann::json();
}

TEST(BenchCommand, StepMeasures) {
  const nlohmann::json json =
      json_of("megalith bench step --layers 2 --hidden 16 --heads 2 --seq 8 --batch 4 --steps 3 --tp 2");
  EXPECT_GT(json.at("tokens_per_second").get<double>(), 0);
  const std::vector<double> times = json.at("step_times_s");
  ASSERT_EQ(times.size(), 3U);
  EXPECT_THAT(times, testing::Contains(json.at("step_time_s").get<double>())) << "the median of three is one of them";
  EXPECT_THAT(times, testing::Each(testing::Gt(0)));
  std::int64_t sum = 0;
  for (const nlohmann::json& bytes : json.at("memory")) sum += bytes.get<std::int64_t>();
  EXPECT_GT(sum, 0);
  EXPECT_EQ(json.at("memory_bytes").get<std::int64_t>(), sum);
  EXPECT_FALSE(json.contains("own_memory_bytes")) << "on a CPU all is the engine's own";
}

// --set holds for the tokens, too: how many there are in a step, and which.
TEST(BenchCommand, StepCountsTheTokensOfItsPlan) {
  const nlohmann::json json = json_of(
      "megalith bench step --layers 1 --hidden 16 --heads 2 --seq 64 --batch 2 --steps 2 "
      "--set model.seq_len=8 --set train.global_batch=4 --set model.vocab_size=8");
  EXPECT_NEAR(json.at("tokens_per_second").get<double>() * json.at("step_time_s").get<double>(), 4 * 8, 1e-6);
}

TEST(BenchCommand, StepTakesAPreset) {
  const nlohmann::json json = json_of(
      "megalith bench step --batch 1 --steps 1 --warmup 1 "
      "--set model.preset=gpt2-124m --set model.seq_len=8 --set model.num_layers=1");
  EXPECT_GT(json.at("memory").at("parameters").get<std::int64_t>(), std::int64_t{4} * 768 * 50257);
}

TEST(BenchCommand, StepCountsStepsThatAreRunAgain) {
  const std::string command =
      "megalith bench step --layers 2 --hidden 16 --heads 2 --seq 32 --batch 8 --micro-batch 4 --steps 3 "
      "--set model.family=llama --set moe.num_experts=8 --set moe.top_k=2 --set moe.ffn_hidden_size=16 "
      "--set parallel.ranks=2 --set parallel.ep=2 --set moe.router_skew=2 --set moe.aux_loss=0 --set "
      "moe.rank_capacity_factor=";
  const nlohmann::json narrow = json_of(command + "1"), wide = json_of(command + "worst");
  EXPECT_EQ(narrow.at("reruns"), 3);
  const auto factor = narrow.at("rows_factor").get<double>();
  EXPECT_GT(factor, 1);
  EXPECT_LE(factor, 2);
  EXPECT_FALSE(wide.contains("reruns"));
  EXPECT_EQ(narrow.at("loss"), wide.at("loss"));
  EXPECT_THAT(run_shell(command + "1").out,
              ::testing::HasSubstr("reruns             3 of 3 steps: experts need moe.rank_capacity_factor = "));
}

// One rank without the others holds what it holds beside them, whatever the grid.
TEST(BenchCommand, ARankAloneHoldsWhatItHoldsInItsGrid) {
  const std::string dense = "--layers 4 --hidden 16 --heads 4 --seq 8 --batch 8 --steps 2 --warmup 1 --vocab 512 ",
                    experts = dense +
                              " --set model.family=llama --set moe.num_experts=8 --set moe.top_k=2 --set "
                              "moe.ffn_hidden_size=16 --set moe.aux_loss=0 --micro-batch 4 --set parallel.ep=2 ";
  for (const std::string& grid :
       {dense + " --tp 2", dense + " --pp 2 --micro-batch 2", dense + " --dp 2 --set optimizer.distributed=true",
        dense + " --tp 2 --pp 2 --chunks 2 --micro-batch 2 --set parallel.sequence_parallel=true",
        experts + "--dp 2 --set moe.dispatcher=peer --set moe.rank_capacity_factor=worst",
        experts + "--dp 2 --set moe.dispatcher=all_to_all",
        experts + "--dp 2 --pp 2 --set moe.echo.slots=1 --set moe.rank_capacity_factor=worst"}) {
    const nlohmann::json whole = json_of("megalith bench step " + grid),
                         alone = json_of("megalith bench step --alone " + grid);
    EXPECT_EQ(alone.at("memory"), whole.at("memory")) << grid;
    EXPECT_EQ(alone.at("grid"), whole.at("grid"));
    EXPECT_EQ(alone.at("alone_rank"), 0);
    EXPECT_FALSE(alone.contains("loss")) << "others' losses are not known";
    EXPECT_FALSE(whole.contains("alone_rank"));
  }
}

TEST(BenchCommand, AnyRankOfALargeGridRunsAlone) {
  const std::string grid =
      "megalith bench step --layers 8 --hidden 64 --heads 8 --seq 16 --batch 256 --micro-batch 1 --steps 1 --warmup 1 "
      "--vocab 1024 "
      "--tp 8 --pp 4 --dp 32 ";
  const nlohmann::json first = json_of(grid + "--alone 0"), last = json_of(grid + "--alone 1023");
  EXPECT_EQ(first.at("alone_rank"), 0);
  EXPECT_EQ(last.at("alone_rank"), 1023);
  EXPECT_NE(first.at("memory"), last.at("memory")) << "the last stage has the head, the first more in flight";
  EXPECT_THAT(
      run_shell(grid + "--alone 1023").out,
      testing::StartsWith("alone              rank 1023 of 1024: others neither compute nor send; communication "
                          "takes no time\n"));
}

TEST(BenchCommand, ALinkMakesARankAloneSlower) {
  const std::string bench =
      "megalith bench step --layers 2 --hidden 64 --heads 2 --seq 64 --batch 4 --steps 3 --tp 2 --alone ";
  // 2 layers, each 4 sums of 4 x 64 x 64 f32: 512 KiB on the link and more.
  EXPECT_GE(json_of(bench + "--link 0.01").at("step_time_s").get<double>(), 0.05);
  EXPECT_EQ(json_of(bench + "--link 0.01").at("link_bytes_per_s"), 1e7);
  EXPECT_THAT(run_shell(bench + "--link 0.01").out, testing::HasSubstr("communication takes the time of 0.01 GB/s\n"));
}

TEST(BenchCommand, ARankRunsAloneOnAGpu) {
  if (!support::has_gpu()) GTEST_SKIP() << "needs a GPU";
  const std::string dense =
      "megalith bench step --device cuda --layers 4 --hidden 256 --heads 4 --seq 128 --batch 8 --steps 3 --alone ";
  const std::string experts =
      dense +
      "--set model.family=llama --set moe.num_experts=8 --set moe.top_k=2 --set moe.ffn_hidden_size=256 --set "
      "parallel.ranks=4 --set parallel.ep=4 ";
  for (const std::string& bench :
       {dense + "--tp 4", dense + "--tp 2 --pp 2 --micro-batch 2 --dp 2", dense + "--tp 4 --set graphs.mode=iteration",
        experts, experts + "--set graphs.mode=iteration", experts + "--set moe.echo.slots=1"})
    EXPECT_GT(json_of(bench).at("tokens_per_second").get<double>(), 0) << bench;
  // 4 layers, each 4 sums of 8 x 128 x 256 bf16 over 4 ranks: 12 MiB on the link.
  EXPECT_GE(json_of(dense + "--tp 4 --link 0.1").at("step_time_s").get<double>(), 0.1);
}

TEST(BenchCommand, WhatARankAloneCannotDoIsRefused) {
  const std::string options = " bench step --layers 2 --hidden 16 --heads 2 --seq 8 --batch 4 --tp 2 ",
                    bench = "megalith" + options;
  const auto refused = [](const std::string& command, const std::string& text) {
    const Finished got = run_shell(command);
    EXPECT_EQ(got.code, 64) << command << got.err;
    EXPECT_THAT(got.err, testing::HasSubstr(text)) << command;
  };
  refused(bench + "--alone 2", "--alone = 2: must be a rank of the grid, from 0 to 1");
  refused(bench + "--link 100", "--link: needs --alone, which runs one rank without the others");
  refused(bench + "--alone --trace trace.json", "--trace: has the calls of all ranks, and --alone runs one");
  refused(bench + "--vocab 100 --alone 1",
          "--alone = 1: its shard of the vocabulary, 100 ids padded to 256, has padding only");
  refused(mpirun(2, support::program() + options + "--alone"),
          "--alone: runs one rank without the others: start it without mpirun or srun");
}

// Factors that are larger than what is left of 64 bits.
TEST(BenchCommand, CollectivesEndsAtItsLargestSize) {
  const nlohmann::json rows = json_of(
      "megalith bench collectives --ranks 2 --only all_reduce --min 64KiB --max 64KiB "
      "--factor 281474976710656 --rounds 1 --warmup 0");
  EXPECT_EQ(rows.size(), 2U) << "the roof and one size: " << rows;
}

TEST(BenchCommand, StepOnAGpuTellsItsOwnMemoryFromCudas) {
  if (!support::has_gpu()) GTEST_SKIP() << "needs a GPU";
  const std::string bench =
      "megalith bench step --device cuda --layers 2 --hidden 64 --heads 2 --seq 64 --batch 4 --steps 2 --format ";
  const Finished json = run_shell(bench + "json"), text = run_shell(bench + "text");
  ASSERT_EQ(json.code, 0) << json.err;
  const nlohmann::json got = nlohmann::json::parse(json.out);
  EXPECT_EQ(got.at("own_memory_bytes").get<std::int64_t>() + got.at("memory").at("cuda context").get<std::int64_t>(),
            got.at("memory_bytes").get<std::int64_t>());
  EXPECT_NE(text.out.find(", without cuda context, as PyTorch counts its own)\n"), std::string::npos) << text.out;
}

// By options' names and with a user's exit status, not as an error inside.
TEST(BenchCommand, OnAGpuRefusesShapesOverTheKernelsLimits) {
  if (!support::has_gpu()) GTEST_SKIP() << "needs a GPU";
  const Finished head = run_shell("megalith bench attention --device cuda --hidden 2048 --heads 4"),
                 norm = run_shell("megalith bench norm --device cuda --hidden 16392");
  EXPECT_EQ(head.code, 64);
  EXPECT_NE(head.err.find("--heads = 4: a head is 512 wide, must be at most 256"), std::string::npos) << head.err;
  EXPECT_EQ(norm.code, 64);
  EXPECT_NE(norm.err.find("--hidden = 16392: must be at most 16384"), std::string::npos) << norm.err;
}

TEST(BenchCommand, StepTakesUnevenStages) {
  const auto bench = [](const std::string& grid) {
    return run_shell(
        "megalith bench step --layers 5 --hidden 16 --heads 2 --seq 8 --batch 4 --micro-batch 1 --steps 1 "
        "--format json " +
        grid);
  };
  const auto first_rank_bytes = [&](const std::string& grid) {
    const Finished got = bench(grid);
    EXPECT_EQ(got.code, 0) << got.err;
    return nlohmann::json::parse(got.out).at("memory_bytes").get<std::int64_t>();
  };
  EXPECT_GT(first_rank_bytes("--pp 2 --stage-layers 4,1"), first_rank_bytes("--pp 2 --stage-layers 1,4"));
  EXPECT_GT(first_rank_bytes("--pp 2 --chunks 2 --stage-layers 2,1,2,0 --group-size 4"), 0);
  const Finished refused = bench("--pp 2 --stage-layers 4,2");
  EXPECT_EQ(refused.code, 64);
  EXPECT_NE(refused.err.find("parallel.stage_layers = sum 6: must sum to model.num_layers = 5"), std::string::npos)
      << refused.err;
}

TEST(BenchCommand, StepProfilesByPhaseAndByOp) {
  const std::string command =
      "megalith bench step --layers 2 --hidden 16 --heads 2 --seq 8 --batch 4 --steps 1 --dp 2 --profile";
  const Finished got = run_shell(command + " --format json");
  ASSERT_EQ(got.code, 0) << got.err;
  const nlohmann::json json = nlohmann::json::parse(got.out);
  const auto sum = [](const nlohmann::json& times, const auto& counts) {
    double seconds = 0;
    for (const nlohmann::json& one : times) {
      if (counts(one.at("name").get<std::string>())) seconds += one.at("seconds").get<double>();
    }
    return seconds;
  };
  const auto of_phase = [&](const std::string& wanted) {
    return sum(json.at("phases"), [&](const std::string& name) { return name == wanted; });
  };
  const auto of_op = [&](const std::string& wanted) {
    return sum(json.at("ops"), [&](const std::string& name) { return name.starts_with(wanted); });
  };
  EXPECT_GT(of_phase("forward"), 0);
  EXPECT_GT(of_phase("backward"), of_op("norm_backward"));
  const double reductions = of_op("reduce_scatter") + of_op("all_gather") + of_op("all_reduce") + of_op("wait");
  EXPECT_NEAR(of_phase("communication"), reductions, 1e-9);
  EXPECT_GT(reductions, 0);
  EXPECT_GE(of_phase("optimizer"), of_op("adamw"));
  EXPECT_GT(of_op("adamw"), 0);
  EXPECT_GT(of_phase("idle"), 0);
  EXPECT_LE(of_phase("other"), of_op("fill") + 1e-9);  // clears sums
  const double all_phases = sum(json.at("phases"), [](const std::string&) { return true; });
  EXPECT_NEAR(all_phases, json.at("profiled_step_s").get<double>(), 1e-9);
  EXPECT_NEAR(all_phases - of_phase("idle"), sum(json.at("ops"), [](const std::string&) { return true; }), 1e-9);
  const Finished text = run_shell(command);
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* line : {"one more step, alone, on rank 0: ", "\n  communication ", "\n  idle "})
    EXPECT_NE(text.out.find(line), std::string::npos) << line;
}

/// What `bench gemm --tokens 32 --hidden 16 --vocab 50` measures.
std::vector<std::string> small_products() {
  std::vector<std::string> names;
  for (const std::string product :
       {"qkv 32 x 48 x 16 ", "out 32 x 16 x 16 ", "up 32 x 64 x 16 ", "down 32 x 16 x 64 ", "head 32 x 50 x 16 "}) {
    for (const char* pass :
         {"forward", "forward + bias", "dgrad", "wgrad", "wgrad, added", "wgrad + bias grad", "bias grad alone"})
      names.push_back(product + pass);
    if (product.starts_with("up")) names.push_back(product + "forward + bias + gelu");
    if (product.starts_with("down")) names.push_back(product + "dgrad + gelu' + bias grad");
  }
  return names;
}

TEST(BenchCommand, OfOpsGivesShareOfTheRoofs) {
  const std::pair<const char*, std::vector<std::string>> benches[] = {
      {"gemm", small_products()},
      {"attention", {"attention forward", "attention backward"}},
      {"norm",
       {"layer_norm", "residual_layer_norm", "layer_norm_backward + residual", "layer_norm_backward + residual + sums",
        "bias_dropout_residual", "rms_norm", "residual_rms_norm", "rms_norm_backward + residual"}},
      {"llama",
       {"rope", "rope, backward", "swiglu", "swiglu_backward", "up", "up + swiglu", "down, dgrad",
        "down, dgrad + swiglu'"}},
      {"rows", {"router", "router_backward", "build_rows", "permute_rows", "sum_rows, weighted", "sum_rows"}},
      {"elementwise",
       {"bias_gelu", "gelu_backward", "add", "cast", "bias_dropout_residual, dropout 0.1",
        "dropout_backward, dropout 0.1"}},
      {"loss",
       {"cross_entropy with gradient", "cross_entropy without", "logits_max", "logits_sum_exp", "logits_backward"}},
      {"embedding",
       {"embedding", "add_position", "embedding_backward", "position_backward", "bias_backward", "initialise"}},
      {"adamw", {"adamw", "sum_of_squares"}}};
  for (const auto& [bench, ops] : benches) {
    const Finished got = run_shell(std::string("megalith bench ") + bench +
                                   " --tokens 32 --hidden 16 --heads 2 --seq 16 --vocab 50 --params 1000 --repeats 1 "
                                   "--format json");
    ASSERT_EQ(got.code, 0) << got.err;
    std::vector<std::string> names = {"roof: copy", "roof: product"};
    names.insert(names.end(), ops.begin(), ops.end());
    const nlohmann::json rows = nlohmann::json::parse(got.out);
    ASSERT_EQ(rows.size(), names.size()) << bench;
    for (std::size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(rows[i].at("name"), names[i]);
      EXPECT_GT(rows[i].at("seconds").get<double>(), 0);
      EXPECT_GT(rows[i].at("share_of_roof").get<double>(), 0);
      if (bench != std::string("gemm") || i < 2) continue;
      EXPECT_EQ(rows[i].contains("bytes_per_second"), names[i].ends_with("bias grad alone")) << names[i];
    }
    EXPECT_EQ(rows[0].at("share_of_roof"), 1);
  }
}

TEST(BenchCommand, GemmComparesFp8WithBf16) {
  const std::string command = "megalith bench gemm --precision fp8 --tokens 128 --hidden 128 --repeats 1";
  const nlohmann::json json = json_of(command);
  EXPECT_TRUE(json.at("unsupported").empty()) << "a CPU computes every size";
  const nlohmann::json& rows = json.at("times");
  ASSERT_EQ(rows.size(), 4U * 8) << "four layers: five ways to quantise and three GEMMs";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_GT(rows[i].at("fp8_seconds").get<double>(), 0);
    if (i % 8 < 5) {
      EXPECT_GT(rows[i].at("bytes_per_second").get<double>(), 0) << rows[i];
      continue;
    }
    EXPECT_EQ(rows[i].at("what"), (std::array{"forward", "dgrad", "wgrad"})[i % 8 - 5]);
    EXPECT_DOUBLE_EQ(rows[i].at("ratio").get<double>(),
                     rows[i].at("bf16_seconds").get<double>() / rows[i].at("fp8_seconds").get<double>());
  }
  const nlohmann::json& down = rows[31];  // its weight gradient
  EXPECT_EQ(down.at("layer"), "down");
  EXPECT_EQ((std::array{down.at("m"), down.at("n"), down.at("k")}), (std::array<nlohmann::json, 3>{128, 512, 128}));
  const nlohmann::json& sums = json.at("layers").at(0);
  EXPECT_GT(sums.at("fp8_seconds").get<double>(), 0);
  EXPECT_THAT(run_shell(command).out, testing::HasSubstr("forward and dgrad in fp8"));
  const Finished refused = run_shell("megalith bench gemm --model llama-1b");
  EXPECT_EQ(refused.code, 64);
  EXPECT_THAT(refused.err, testing::HasSubstr("--model: is for --precision fp8"));
  const Finished one_kernel = run_shell(command + " --kernel own");
  EXPECT_EQ(one_kernel.code, 64);
  EXPECT_THAT(one_kernel.err, testing::HasSubstr("--kernel: is for --precision fp8 --device cuda"));
}

TEST(BenchCommand, StepTellsTheHostsTimeForAStepFromGraphs) {
  const std::string step =
      "megalith bench step --layers 2 --hidden 32 --heads 2 --seq 16 --vocab 50 --batch 4 --tp 2 --steps 4 --warmup 1 "
      "--format json";
  for (const std::string mode : {"iteration --set graphs.optimizer=true", "iteration", "layers"}) {
    const Finished got = run_shell(step + " --set graphs.mode=" + mode);
    ASSERT_EQ(got.code, 0) << got.err;
    const nlohmann::json row = nlohmann::json::parse(got.out);
    EXPECT_GT(row.at("launch_s").get<double>(), 0) << mode;
    EXPECT_GT(row.at("submit_s").get<double>(), 0) << mode;
    EXPECT_GT(row.at("comm_calls").get<int>(), 0) << mode;
  }
  const Finished eager = run_shell(step);
  ASSERT_EQ(eager.code, 0) << eager.err;
  EXPECT_FALSE(nlohmann::json::parse(eager.out).contains("submit_s"));
}

TEST(BenchCommand, StepTimesNoSingleOpsOfAGraph) {
  for (const std::string wish : {"--profile", "--trace t.json"}) {
    const Finished refused = run_shell("megalith bench step --steps 1 --set graphs.mode=iteration " + wish);
    EXPECT_EQ(refused.code, 64);
    EXPECT_NE(refused.err.find("graphs.mode = \"iteration\" submits as one"), std::string::npos) << refused.err;
  }
}

TEST(BenchCommand, CollectivesMeasuresEachOnTheTransportOfTheRun) {
  const std::string command = " bench collectives --min 1000 --max 16K --rounds 3 --format json --dtype ";
  // Between CPUs nothing is left to parallel.transfers, nor to --transfers.
  std::vector<std::pair<std::string, std::string>> runs = {
      {"threads", "megalith" + command + "f32"}, {"threads", "megalith" + command + "bf16 --transfers kernels"}};
#ifdef MEGALITH_WITH_MPI
  runs.emplace_back("mpi", mpirun(2, support::program() + command + "bf16"));
#endif
  for (const auto& [transport, run] : runs) {
    const Finished got = run_shell(run);
    ASSERT_EQ(got.code, 0) << got.err;
    const std::pair<const char*, double> wanted[] = {{"all_reduce", 1.0},  // bus over algorithm bandwidth, two ranks
                                                     {"reduce_scatter", 0.5}, {"all_gather", 0.5},
                                                     {"broadcast", 1.0},      {"send_recv", 1.0},
                                                     {"gather_rows", 0.5},    {"gather_sum_rows", 0.5}};
    nlohmann::json rows = nlohmann::json::parse(got.out);
    ASSERT_EQ(rows.size(), 22u);
    const nlohmann::json roof = rows[0];
    rows.erase(0);
    EXPECT_EQ(roof.at("name"), "roof: copy");
    EXPECT_EQ(roof.at("transport"), "a plain copy");
    EXPECT_EQ(roof.at("bytes"), 16384);
    EXPECT_EQ(roof.at("share_of_roof"), 1);
    const double roof_rate = roof.at("bytes").get<double>() / roof.at("seconds").get<double>();
    EXPECT_DOUBLE_EQ(roof.at("bus_bytes_per_second").get<double>(), roof_rate);
    constexpr double kBytes[] = {1000, 4000, 16000};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto& [name, factor] = wanted[i / 3];
      EXPECT_EQ(rows[i].at("name"), name);
      EXPECT_EQ(rows[i].at("transport"), transport);
      const double bytes = rows[i].at("bytes").get<double>(), seconds = rows[i].at("seconds").get<double>();
      EXPECT_EQ(bytes, kBytes[i % 3]);
      EXPECT_GT(seconds, 0);
      EXPECT_DOUBLE_EQ(rows[i].at("algorithm_bytes_per_second").get<double>(), bytes / seconds);
      EXPECT_DOUBLE_EQ(rows[i].at("bus_bytes_per_second").get<double>(), factor * bytes / seconds);
      EXPECT_DOUBLE_EQ(rows[i].at("share_of_roof").get<double>(), factor * bytes / seconds / roof_rate);
    }
  }
  for (const auto& [wrong, text] :
       {std::pair{"--dtype i32", "--dtype = i32: must be f64, f32, bf16 or f16"},
        std::pair{"--min 2K --max 1K", "--min = 2048: must be at most --max = 1024"},
        std::pair{"--transfers pigeons", "--transfers"}, std::pair{"--ranks 1", "--ranks"}}) {
    const Finished refused = run_shell(std::string("megalith bench collectives ") + wrong);
    EXPECT_EQ(refused.code, 64) << wrong;
    EXPECT_NE(refused.err.find(text), std::string::npos) << refused.err;
  }
}

TEST(BenchCommand, CollectivesSaysWhatCarriedACall) {
  const Finished got = run_shell("megalith bench collectives --only all_gather --min 1K --max 1K --rounds 1");
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_THAT(got.out, ::testing::MatchesRegex(".* of roof  carried by\nroof: copy .* %  a plain copy\n"
                                               "all_gather .* 1024 .* %  threads\n"));
}

TEST(BenchCommand, CollectivesOnAGpuAndItsPeerMeasuresWhatCarriesTraining) {
  if (run_shell("megalith doctor").out.find("GPU 1") == std::string::npos) GTEST_SKIP() << "needs two GPUs";
  const auto transports = [](const std::string& options) {
    const Finished got = run_shell(
        "megalith bench collectives --device cuda --ranks 2 --min 64K --max 4M --factor 64 --rounds 3 --format json " +
        options);
    EXPECT_EQ(got.code, 0) << got.err;
    std::vector<std::string> found;
    for (const nlohmann::json& row : nlohmann::json::parse(got.out))
      found.push_back(row.at("transport").get<std::string>());
    return found;
  };
  for (const std::string dtype : {"f32", "bf16"}) {
    const std::vector<std::string> got = transports("--dtype " + dtype);
    if (got.front() != "a plain copy") GTEST_SKIP() << "needs GPUs that reach each other's memory";
    EXPECT_THAT(got, ::testing::ElementsAre("a plain copy", "nccl", "copy engines",  // all_reduce of 64 KiB, of 4 MiB
                                            "nccl", "kernels with device barriers",  // reduce_scatter
                                            "nccl", "kernels with device barriers",  // all_gather
                                            "nccl", "nccl",                          // broadcast
                                            "nccl", "copy engines",                  // send_recv
                                            "kernels with device barriers", "kernels with device barriers",  // rows
                                            "kernels with device barriers", "kernels with device barriers"));
    const std::vector<std::string> by_kernels = transports("--transfers kernels --dtype " + dtype);
    EXPECT_EQ(std::ranges::count(by_kernels, "nccl"), 14);
  }
}

}  // namespace
}  // namespace megalith
