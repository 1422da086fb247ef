#include <algorithm>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/process.h"
#include "tests/test_data.h"

// Commands that need no run: their arguments, output and exit codes.
namespace megalith {
namespace {

using testing::Finished;
using testing::mpirun;
using testing::run_shell;

TEST(CommandLine, GroupsPrintsTheVectors) {
  std::ifstream file(MEGALITH_TEST_DATA "/groups/groups.json");
  const nlohmann::json vectors = nlohmann::json::parse(file);
  for (const nlohmann::json& row : vectors.at("cli")) {
    const Finished got = run_shell("megalith groups " + row.at("argv").get<std::string>());
    EXPECT_EQ(got.code, row.at("exit").get<int>()) << row.at("argv");
    std::string want;
    for (const std::string line : row.value("stdout", nlohmann::json::array())) want += line + "\n";
    EXPECT_EQ(got.out, want) << row.at("argv");
  }
}

TEST(CommandLine, MistakesEndWithCode64AndSayWhy) {
  const struct {
    const char* command;
    const char* text;
  } cases[] = {
      {"megalith", "subcommand"},
      {"megalith train", "recipe"},
      {"megalith train /", "error: recipe = /: is a folder; name a recipe in it"},
      {"megalith train /nowhere.toml", "error: recipe = /nowhere.toml: no such file"},
      {"megalith train x --ranks 0", "--ranks"},
      {"megalith groups --world-size 16 --tp 3", "error: E_WORLD_NOT_DIVISIBLE_DENSE: "},
      {"megalith groups --world-size 16 --colour red", "error:"},
      {"megalith schedule --pp 4 --vpp 2 --microbatches 3", "error:"},
      {"megalith tokenize --tokenizer nosuch --text a", "nosuch"},
      {"megalith bench step --batch 1 --dp 2", "--batch = 1: must be a multiple of --dp = 2"},
      {"megalith bench step --layers 1 --set model.preset=gpt2-124m", "--layers: model.preset = gpt2-124m says it"},
      {"megalith bench gemm --heads 0", "--heads"},
      {"megalith bench llama --heads 7", "--heads = 7: twice as many must divide --hidden = 768"},
      {"megalith bench moe --top-k 9", "--top-k = 9: must be at most --experts = 8"},
      {"megalith bench attention --dropout nan", "--dropout: must be a number from 0, not nan"},
      {"megalith bench embedding --vocab 4294967296", "--vocab: must be a number from 1 to 2147483647, not 4294967296"},
      {"megalith bench collectives --min 0", "--min: must be a number from 1, not 0"},
      {"megalith bench collectives --ranks 2 --max 1PiB", "--max = 1125899906842624: must be at most 2^48 bytes"},
      {"megalith bench norm --hidden 9223372036854775807",
       "--hidden: must be a number from 1 to 2147483647, not 9223372036854775807"},
      {"megalith bench loss --vocab 2147483647 --tokens 2147483647",
       "a tensor of shape [2147483647, 2147483647]: must"},
      {"megalith graphs x --rank 3", "--rank requires --svg"},
      {"megalith generate --checkpoint /nowhere --max-tokens -1", "max-tokens"}};
  for (const auto& [command, text] : cases) {
    const Finished got = run_shell(command);
    EXPECT_EQ(got.code, 64) << command << "\n" << got.err;
    EXPECT_EQ(got.out, "") << command;
    EXPECT_NE(got.err.find(text), std::string::npos) << command << "\n" << got.err;
  }
}

/// The commands below `path`, by its help; `path` itself where there are none.
std::vector<std::string> commands_below(const std::string& path, std::vector<std::string>& helps) {
  const Finished got = run_shell(path + " --help");
  EXPECT_EQ(got.code, 0) << path;
  std::istringstream lines(got.out);
  std::vector<std::string> commands;
  bool is_list = false;
  for (std::string line; std::getline(lines, line);) {
    const bool is_name = line.starts_with("  ") && line.size() > 2 && line[2] != ' ';
    if (is_list && is_name) {
      const std::string command = path + " " + line.substr(2, line.find(' ', 2) - 2);
      const auto inner = commands_below(command, helps);
      commands.insert(commands.end(), inner.begin(), inner.end());
    }
    is_list = is_list ? line.starts_with("  ") : line == "Subcommands:";
  }
  if (!commands.empty()) return commands;
  helps.push_back(got.out);
  return {path};
}

TEST(CommandLine, TheHelpOfEveryCommandEndsWithAnExample) {
  std::vector<std::string> helps;
  const std::vector<std::string> commands = commands_below("megalith", helps);
  ASSERT_EQ(commands.size(), helps.size());
  EXPECT_GE(commands.size(), 32u);
  for (const char* command :
       {"megalith data info", "megalith tokenizer train", "megalith bench step", "megalith train"})
    EXPECT_TRUE(std::ranges::find(commands, command) != commands.end()) << command;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const std::string help = helps[i].substr(0, helps[i].find_last_not_of(" \n") + 1);
    const std::string last = help.substr(help.rfind('\n') + 1);
    EXPECT_TRUE(last.starts_with("  " + commands[i] + " ")) << commands[i] << "\n" << last;
  }
}

TEST(CommandLine, UnknownCommandsNameTheWordAndTheNearest) {
  const struct {
    const char* arguments;
    const char* text;
  } cases[] = {
      {"trian x", "trian: no such command; did you mean megalith train? `megalith --help` lists all"},
      {"trian --help", "trian: no such command; did you mean megalith train? `megalith --help` lists all"},
      {"--help trian", "trian: no such command; did you mean megalith train? `megalith --help` lists all"},
      {"help", "help: no such command; did you mean megalith --help? `megalith --help` lists all"},
      {"evaluate r.toml", "evaluate: no such command; did you mean megalith eval? `megalith --help` lists all"},
      {"import-hf",
       "import-hf: no such command; did you mean megalith checkpoint import-hf? `megalith --help` lists all"},
      {"quux", "quux: no such command; `megalith --help` lists all"},
      {"bench nope",
       "bench nope: no such command; did you mean megalith bench norm? `megalith bench --help` lists all"},
      {"bench help",
       "bench help: no such command; did you mean megalith bench --help? `megalith bench --help` lists all"},
      {"bench setp --help",
       "bench setp: no such command; did you mean megalith bench step? `megalith bench --help` lists all"},
      {"data biuld a b",
       "data biuld: no such command; did you mean megalith data build? `megalith data --help` lists all"}};
  for (const auto& [arguments, text] : cases) {
    const Finished got = run_shell(std::string("megalith ") + arguments);
    EXPECT_EQ(got.code, 64) << arguments;
    EXPECT_EQ(got.out, "") << arguments;
    EXPECT_EQ(got.err, std::string("error: megalith ") + text + "\n") << arguments;
  }
}

TEST(CommandLine, UnknownOptionsNameTheKeyOrTheNearestOption) {
  const struct {
    const char* arguments;
    const char* text;
  } cases[] = {
      {"train r.toml --num-layers 4 --tensor-model-parallel-size=2",
       "error: --num-layers: no such option; did you mean --set model.num_layers=VALUE?\n"
       "error: --tensor-model-parallel-size: no such option; did you mean --set parallel.tp=VALUE?\n"},
      {"train r.toml --bf16",
       "error: --bf16: no such option; did you mean --set train.precision=VALUE? Its value is \"bf16\"\n"},
      {"train r.toml --output-dir x", "error: --output-dir: no such option. `megalith train --out FOLDER` says it\n"},
      {"plan r.toml --rank 4", "error: --rank: no such option; did you mean --ranks?\n"},
      {"train r.toml --num-layers 2 --log-throughput",
       "error: --num-layers: no such option; did you mean --set model.num_layers=VALUE?\n"
       "error: --log-throughput: no such option\n"}};
  for (const auto& [arguments, text] : cases) {
    const Finished got = run_shell(std::string("megalith ") + arguments);
    EXPECT_EQ(got.code, 64) << arguments;
    EXPECT_EQ(got.err, text) << arguments;
  }
}

TEST(CommandLine, UsageLinesBeginWithTheProgram) {
  for (const auto& [arguments, usage] : {std::pair{"bench", "megalith bench [OPTIONS] SUBCOMMAND"},
                                         {"bench step --nope", "megalith bench step [OPTIONS]"},
                                         {"train", "megalith train [OPTIONS] recipe"}}) {
    const Finished got = run_shell(std::string("megalith ") + arguments);
    EXPECT_EQ(got.code, 64) << arguments;
    EXPECT_NE(got.err.find(std::string("\nUsage: ") + usage + "\n"), std::string::npos) << got.err;
  }
}

TEST(CommandLine, TokenizeGoesBothWays) {
  const Finished ids = run_shell("printf 'hi\\ny\\xc3\\xa9\\n' | megalith tokenize --tokenizer byte");
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(ids.out, "{\"text\":\"hi\",\"ids\":[104,105]}\n{\"text\":\"y\u00e9\",\"ids\":[121,195,169]}\n");
  const Finished text =
      run_shell("printf '[104,105]\\n{\"ids\":[121]}\\n' | megalith tokenize --tokenizer byte --decode");
  EXPECT_EQ(text.out, "{\"ids\":[104,105],\"text\":\"hi\"}\n{\"ids\":[121],\"text\":\"y\"}\n") << text.err;
  const Finished bad = run_shell("printf '[1]\\n[300]\\n' | megalith tokenize --tokenizer byte --decode");
  EXPECT_EQ(bad.code, 65);
  EXPECT_NE(bad.err.find("line 2"), std::string::npos) << bad.err;
  EXPECT_NE(bad.err.find("300"), std::string::npos) << bad.err;
}

TEST(CommandLine, TokenizeReadsJsonLines) {
  const TempDir dir;
  write_all(dir / "a.jsonl", "{\"text\": \"a\\nb\"}\n \n{\"n\": [1], \"text\": \"\"}\r\n{\"text\": \"\\u00e9\"}");
  const std::string file = (dir / "a.jsonl").string(), bytes = "megalith tokenize --tokenizer byte ";
  const std::string want =
      "{\"text\":\"a\\nb\",\"ids\":[97,10,98]}\n{\"text\":\"\",\"ids\":[]}\n{\"text\":\"\u00e9\",\"ids\":[195,169]}\n";
  const Finished by_name = run_shell(bytes + file);
  EXPECT_EQ(by_name.out, want) << by_name.err;
  EXPECT_EQ(run_shell(bytes + "--input-format jsonl < " + file).out, want);
  EXPECT_EQ(run_shell(bytes + "--input-format jsonl --key n --text '{\"n\":\"x\"}'").out,
            "{\"text\":\"x\",\"ids\":[120]}\n");
  EXPECT_EQ(run_shell(bytes + "--input-format text " + file + " | head -c 12").out, "{\"text\":\"{\\\"");
  const auto error = [&](const std::string& text) {
    write_all(dir / "b.jsonl", "{\"text\": \"good\"}\n" + text);
    const Finished got = run_shell(bytes + (dir / "b.jsonl").string());
    EXPECT_EQ(got.code, 65) << text;
    return got.err;
  };
  EXPECT_NE(error("{\"txt\": \"a\"}").find("b.jsonl] line 2, key \"text\": is missing; --key names"),
            std::string::npos);
  EXPECT_NE(error("{\"text\": \"a\"} 1").find("b.jsonl] line 2, column 15, not valid JSON"), std::string::npos);
  EXPECT_NE(error("{\"text\": 1, \"text\": \"a\"}").find("must be a string"), std::string::npos);
  const Finished deep = run_shell("head -c 100000 /dev/zero | tr '\\0' '[' | " + bytes + "--decode");
  EXPECT_EQ(deep.code, 65);
  EXPECT_NE(deep.err.find("[standard input] line 1, column 65, nested deeper than 64"), std::string::npos) << deep.err;
}

TEST(CommandLine, NestedRecipesAreRefused) {
  const TempDir dir;
  for (const char* piece : {"a.", "[", "{ a = "}) {
    std::string text = piece == std::string("a.") ? "" : "x = ";
    for (int i = 0; i < 100'000; ++i) text += piece;
    write_all(dir / "r.toml", text + "b = 1");
    const Finished got = run_shell("megalith plan " + (dir / "r.toml").string());
    EXPECT_EQ(got.code, 64) << piece;
    EXPECT_NE(got.err.find("nested deeper than 64"), std::string::npos) << got.err.substr(0, 400);
  }
}

TEST(CommandLine, OptionNamesTakeUnderscoresAndValuesStay) {
  EXPECT_EQ(run_shell("megalith groups --world_size 4").out, run_shell("megalith groups --world-size 4").out);
  const Finished value = run_shell("megalith tokenize --tokenizer byte --text '--vocab_dir'");
  EXPECT_NE(value.out.find("--vocab_dir"), std::string::npos) << value.out << value.err;
}

TEST(CommandLine, ValuesThatAnOptionCannotTakeAreNamedWithTheRule) {
  const auto said = [](const std::string& arguments) {
    const Finished got = run_shell("megalith " + arguments);
    EXPECT_EQ(got.code, 64) << arguments;
    return got.err.substr(0, got.err.find('\n'));
  };
  EXPECT_EQ(
      said("groups --world-size 99999999999"),
      "error: --world-size = 99999999999: is not of the type that the list below gives for the option, or outside "
      "its range");
  EXPECT_EQ(said("plan r.toml --ranks -3"), "error: --ranks: must be a number from 1, not -3");
}

TEST(CommandLine, OutputThatCannotBeWrittenIsAFailure) {
  const Finished full = run_shell("megalith groups --world-size 4000 > /dev/full");
  EXPECT_EQ(full.code, 74) << full.err;
  EXPECT_NE(full.err.find("standard output"), std::string::npos) << full.err;
  EXPECT_EQ(run_shell("megalith doctor > /dev/full").code, 74);
}

TEST(CommandLine, HelpOfEveryCommand) {
  for (const char* command :
       {"train", "generate", "plan", "tokenize", "data", "checkpoint", "groups", "schedule", "bench", "doctor"}) {
    const Finished got = run_shell(std::string("megalith ") + command + " --help");
    EXPECT_EQ(got.code, 0) << command;
    EXPECT_NE(got.out.find("Usage: megalith"), std::string::npos) << command << "\n" << got.out;
  }
  EXPECT_EQ(run_shell("megalith doctor").code, 0);
  const nlohmann::json json = nlohmann::json::parse(run_shell("megalith doctor --format json").out);
  for (const char* what : {"cores allowed", "CPU quota", "threads in a rank"}) EXPECT_TRUE(json.contains(what)) << what;
  EXPECT_EQ(json.at("cores allowed").at("note").get<std::string>().rfind("by the affinity mask: ", 0), 0u);
  EXPECT_THAT(json.at("f32 products").at("state").get<std::string>(),
              ::testing::AnyOf("own loops", ::testing::ContainsRegex("oneDNN [0-9]+.[0-9]+")));
}

TEST(CommandLine, SaysWhatItWasBuiltFrom) {
  const Finished got = run_shell("megalith --version");
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_THAT(got.out, ::testing::MatchesRegex("megalith [0-9]+[.][0-9]+[.][0-9]+, (commit [0-9a-f]+( with changes)?|"
                                               "unknown commit)\n"));
  const nlohmann::json doctor = nlohmann::json::parse(run_shell("megalith doctor --format json").out);
  EXPECT_EQ(doctor.at("program").at("state").get<std::string>() + "\n", got.out);
}

/// What a benchmark says with --format json; null after a failure.
nlohmann::json json_of(const std::string& command) {
  const Finished got = run_shell(command + " --format json");
  EXPECT_EQ(got.code, 0) << got.err;
  return got.code == 0 ? nlohmann::json::parse(got.out) : nlohmann::json();
}

TEST(CommandLine, BenchStepMeasures) {
  const nlohmann::json json =
      json_of("megalith bench step --layers 2 --hidden 16 --heads 2 --seq 8 --batch 4 --steps 2 --tp 2");
  EXPECT_GT(json.at("tokens_per_second").get<double>(), 0);
  std::int64_t sum = 0;
  for (const nlohmann::json& bytes : json.at("memory")) sum += bytes.get<std::int64_t>();
  EXPECT_GT(sum, 0);
  EXPECT_EQ(json.at("memory_bytes").get<std::int64_t>(), sum);
  EXPECT_FALSE(json.contains("own_memory_bytes")) << "on a CPU all is the engine's own";
}

// What --set says holds for the tokens, too: how many there are in a step, and which.
TEST(CommandLine, BenchStepCountsTheTokensOfItsPlan) {
  const nlohmann::json json = json_of(
      "megalith bench step --layers 1 --hidden 16 --heads 2 --seq 64 --batch 2 --steps 2 "
      "--set model.seq_len=8 --set train.global_batch=4 --set model.vocab_size=8");
  EXPECT_NEAR(json.at("tokens_per_second").get<double>() * json.at("step_time_s").get<double>(), 4 * 8, 1e-6);
}

TEST(CommandLine, BenchStepTakesAPreset) {
  const nlohmann::json json = json_of(
      "megalith bench step --batch 1 --steps 1 --warmup 1 "
      "--set model.preset=gpt2-124m --set model.seq_len=8 --set model.num_layers=1");
  EXPECT_GT(json.at("memory").at("parameters").get<std::int64_t>(), std::int64_t{4} * 768 * 50257);
}

// Factors that are larger than what is left of 64 bits.
TEST(CommandLine, BenchCollectivesEndsAtItsLargestSize) {
  const nlohmann::json rows = json_of(
      "megalith bench collectives --ranks 2 --only all_reduce --min 64KiB --max 64KiB "
      "--factor 281474976710656 --rounds 1 --warmup 0");
  EXPECT_EQ(rows.size(), 2U) << "the roof and one size: " << rows;
}

TEST(CommandLine, BenchStepOnAGpuTellsItsOwnMemoryFromCudas) {
  if (!testing::has_gpu()) GTEST_SKIP() << "needs a GPU";
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
TEST(CommandLine, BenchOnAGpuRefusesShapesOverTheKernelsLimits) {
  if (!testing::has_gpu()) GTEST_SKIP() << "needs a GPU";
  const Finished head = run_shell("megalith bench attention --device cuda --hidden 2048 --heads 4"),
                 norm = run_shell("megalith bench norm --device cuda --hidden 16392");
  EXPECT_EQ(head.code, 64);
  EXPECT_NE(head.err.find("--heads = 4: a head is 512 wide, must be at most 256"), std::string::npos) << head.err;
  EXPECT_EQ(norm.code, 64);
  EXPECT_NE(norm.err.find("--hidden = 16392: must be at most 16384"), std::string::npos) << norm.err;
}

TEST(CommandLine, BenchStepTakesUnevenStages) {
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

TEST(CommandLine, BenchStepProfilesByPhaseAndByOp) {
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
  EXPECT_GT(of_phase("backward"), of_op("layer_norm_backward"));
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

TEST(CommandLine, BenchOfOpsGivesShareOfTheRoofs) {
  const std::pair<const char*, std::vector<std::string>> benches[] = {
      {"gemm", small_products()},
      {"attention", {"attention forward", "attention backward"}},
      {"norm",
       {"layer_norm", "residual_layer_norm", "layer_norm_backward + residual", "layer_norm_backward + residual + sums",
        "bias_dropout_residual", "rms_norm", "residual_rms_norm", "rms_norm_backward + residual"}},
      {"llama", {"rope", "rope, backward", "swiglu", "swiglu_backward"}},
      {"moe",
       {"router", "build_rows", "permute_rows", "sum_rows", "sum_rows_backward", "up 64 x 1536 x 16 grouped",
        "up 64 x 1536 x 16 one product", "up 64 x 1536 x 16 dgrad grouped", "up 64 x 1536 x 16 dgrad one product",
        "up 64 x 1536 x 16 wgrad grouped", "up 64 x 1536 x 16 wgrad one product", "down 64 x 16 x 768 grouped",
        "down 64 x 16 x 768 one product", "down 64 x 16 x 768 dgrad grouped", "down 64 x 16 x 768 dgrad one product",
        "down 64 x 16 x 768 wgrad grouped", "down 64 x 16 x 768 wgrad one product"}},
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

TEST(CommandLine, BenchStepTellsTheHostsTimeForAStepFromGraphs) {
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

TEST(CommandLine, BenchStepTimesNoSingleOpsOfAGraph) {
  for (const std::string wish : {"--profile", "--trace t.json"}) {
    const Finished refused = run_shell("megalith bench step --steps 1 --set graphs.mode=iteration " + wish);
    EXPECT_EQ(refused.code, 64);
    EXPECT_NE(refused.err.find("graphs.mode = \"iteration\" submits as one"), std::string::npos) << refused.err;
  }
}

TEST(CommandLine, BenchCollectivesMeasuresEachOnTheTransportOfTheRun) {
  const std::string command = " bench collectives --min 1000 --max 16K --rounds 3 --format json --dtype ";
  // Between CPUs nothing is left to parallel.transfers, nor to --transfers.
  std::vector<std::pair<std::string, std::string>> runs = {
      {"threads", "megalith" + command + "f32"}, {"threads", "megalith" + command + "bf16 --transfers kernels"}};
#ifdef MEGALITH_WITH_MPI
  runs.emplace_back("mpi", mpirun(2, testing::program() + command + "bf16"));
#endif
  for (const auto& [transport, run] : runs) {
    const Finished got = run_shell(run);
    ASSERT_EQ(got.code, 0) << got.err;
    const std::pair<const char*, double> wanted[] = {{"all_reduce", 1.0},  // bus over algorithm bandwidth, two ranks
                                                     {"reduce_scatter", 0.5},
                                                     {"all_gather", 0.5},
                                                     {"broadcast", 1.0},
                                                     {"send_recv", 1.0}};
    nlohmann::json rows = nlohmann::json::parse(got.out);
    ASSERT_EQ(rows.size(), 16u);
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

TEST(CommandLine, BenchCollectivesSaysWhatCarriedACall) {
  const Finished got = run_shell("megalith bench collectives --only all_gather --min 1K --max 1K --rounds 1");
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_THAT(got.out, ::testing::MatchesRegex(".* of roof  carried by\nroof: copy .* %  a plain copy\n"
                                               "all_gather .* 1024 .* %  threads\n"));
}

TEST(CommandLine, BenchCollectivesOnAGpuAndItsPeerMeasuresWhatCarriesTraining) {
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
                                            "nccl", "copy engines"));                // send_recv
    const std::vector<std::string> by_kernels = transports("--transfers kernels --dtype " + dtype);
    EXPECT_EQ(std::ranges::count(by_kernels, "nccl"), 10);
  }
}

}  // namespace
}  // namespace megalith
