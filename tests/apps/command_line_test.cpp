#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/config/other_names.h"

#include "tests/apps/program.h"
#include "tests/test_data.h"

// Commands that need no run: their arguments, output and exit codes.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::run_shell;

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
      {"megalith report", "subcommand"},
      {"megalith eval --task squad1 --data dev.json",
       "--task = squad1: needs a checkpoint that is fine-tuned on it, or --score FILE with predictions"},
      {"megalith train", "recipe"},
      {"megalith train /", "error: recipe = /: is a folder; name a recipe in it"},
      {"megalith train /nowhere.toml", "error: recipe = /nowhere.toml: no such file"},
      {"megalith train x --ranks 0", "--ranks"},
      {"megalith groups --world-size 16 --tp 3", "error: E_WORLD_NOT_DIVISIBLE_DENSE: "},
      {"megalith groups --world-size 16 --colour red", "error:"},
      {"megalith schedule --pp 4 --vpp 2 --microbatches 3", "error:"},
      {"megalith tokenize --tokenizer nosuch --text a", "nosuch"},
      {"megalith bench step --batch 1 --dp 2", "--batch = 1: must be a multiple of --dp = 2"},
      {"megalith bench step --layers 1 --set model.preset=gpt2-124m", "--layers: model.preset = gpt2-124m sets it"},
      {"megalith bench gemm --heads 0", "--heads"},
      {"megalith bench llama --heads 7", "--heads = 7: twice as many must divide --hidden = 768"},
      {"megalith bench rows --top-k 9", "--top-k = 9: must be at most --experts = 8"},
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

/// The commands below `path`, by its help; `path` itself where there are none. `helps`: of all of these, and between.
std::vector<std::string> commands_below(const std::string& path, std::map<std::string, std::string>& helps) {
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
  helps[path] = got.out;
  if (!commands.empty()) return commands;
  return {path};
}

TEST(CommandLine, TheHelpOfEveryCommandEndsWithAnExample) {
  std::map<std::string, std::string> helps;
  const std::vector<std::string> commands = commands_below("megalith", helps);
  EXPECT_GE(commands.size(), 32u);
  for (const char* command :
       {"megalith data info", "megalith tokenizer train", "megalith bench step", "megalith train"})
    EXPECT_TRUE(std::ranges::find(commands, command) != commands.end()) << command;
  for (const std::string& command : commands) {
    std::string help = std::regex_replace(helps.at(command), std::regex(R"( \\\n +)"), " ");  // a shell joins these
    help.resize(help.find_last_not_of(" \n") + 1);
    const std::string last = help.substr(help.rfind('\n') + 1);
    EXPECT_TRUE(last.starts_with("  " + command + " ")) << command << "\n" << last;
  }
}

TEST(CommandLine, TheHelpOfEveryCommandFitsEightyColumns) {
  std::map<std::string, std::string> helps;
  commands_below("megalith", helps);
  EXPECT_GE(helps.size(), 37u);
  for (const auto& [command, help] : helps) {
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << command << "\n" << line;
    EXPECT_EQ(help.find("{}"), std::string::npos) << command;
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
      {"train r.toml --output-dir x", "error: --output-dir: no such option. `megalith train --out FOLDER` sets it\n"},
      {"train r.toml --finetune",
       "error: --finetune: no such option; did you mean --set train.init=VALUE? It names a checkpoint whose weights a "
       "run begins with, at step 0 and with new moments\n"},
      {"generate --model out/a --prompt x", "error: --model: no such option; did you mean --checkpoint?\n"},
      {"score --model=out/a --tokens x", "error: --model: no such option; did you mean --checkpoint?\n"},
      {"eval --task loss --data x --model_name_or_path out/a",
       "error: --model_name_or_path: no such option; did you mean --checkpoint?\n"},
      {"train r.toml --model gpt2",
       "error: --model: no such option. A recipe describes its model: --set model.preset=NAME takes a published one, "
       "--set train.init=FOLDER the values of a checkpoint\n"},
      {"train r.toml --always_save_checkpoint",
       "error: --always_save_checkpoint: no such option. Every checkpoint.interval steps or checkpoint.every_s seconds "
       "a run saves, whatever its loss; leave it out\n"},
      {"train r.toml --init_from=gpt2",
       "error: --init_from: no such option; did you mean --set train.init=VALUE? It names a checkpoint of megalith, "
       "whose weights a run begins with; `megalith checkpoint import-hf` makes one of Hugging Face's models, such as "
       "gpt2; `megalith train --resume` goes on with a run\n"},
      {"plan r.toml --rank 4", "error: --rank: no such option; did you mean --ranks?\n"},
      {"train r.toml --num-layers 2 --frobnicate",
       "error: --num-layers: no such option; did you mean --set model.num_layers=VALUE?\n"
       "error: --frobnicate: no such option\n"}};
  for (const auto& [arguments, text] : cases) {
    const Finished got = run_shell(std::string("megalith ") + arguments);
    EXPECT_EQ(got.code, 64) << arguments;
    EXPECT_EQ(got.err, text) << arguments;
  }
}

TEST(CommandLine, HintsForOtherProgramsNamesNameCommandsAndOptionsThatThereAre) {
  const std::regex quoted("`megalith ((?:[a-z][a-z-]* ?)+)([^`]*)`"), option("--[a-z-]+");
  int found = 0;
  for (const config::OtherName& row : config::other_names()) {
    const std::string how(row.how);
    for (std::sregex_iterator at(how.begin(), how.end(), quoted), end; at != end; ++at, ++found) {
      const std::string command = (*at)[1].str(), rest = (*at)[2].str();
      const Finished help = run_shell("megalith " + command + " --help");
      EXPECT_EQ(help.code, 0) << how;
      for (std::sregex_iterator word(rest.begin(), rest.end(), option); word != end; ++word)
        EXPECT_NE(help.out.find("  " + word->str()), std::string::npos) << how;
    }
  }
  EXPECT_GE(found, 8);
}

TEST_F(Program, PathsThatAreNotFoundSayInWhichFolderTheyWereLookedFor) {
  const std::string train = "train " + recipe();
  for (const std::string& command : {std::string("train nowhere.toml"),
                                     train + " --set train.init=nowhere",
                                     train + " --resume --out nowhere",
                                     train + " --set data.train=nowhere.txt",
                                     train + " --set data.train=nowhere/a.txt",
                                     train + " --set data.train='nowhere/*.txt'",
                                     train + " --set data.train=empty",
                                     train + " --set data.split= --set data.valid='*.nowhere'",
                                     train + " --set data.tokenizer=bpe --set data.vocab_dir=nowhere",
                                     train + " --trace nowhere/trace.json",
                                     std::string("tokenizer info nowhere"),
                                     std::string("tokenizer info empty"),
                                     std::string("tokenizer info nowhere --tokenizer sentencepiece"),
                                     std::string("generate --checkpoint nowhere --prompt a"),
                                     std::string("eval nowhere --task loss --data text.txt"),
                                     std::string("score --checkpoint nowhere --tokens text.txt"),
                                     std::string("score --checkpoint a --tokens nowhere"),
                                     std::string("checkpoint info nowhere"),
                                     std::string("checkpoint export-hf nowhere --out hf"),
                                     std::string("checkpoint import-hf nowhere --out hf"),
                                     std::string("tokenize --tokenizer byte nowhere.txt"),
                                     std::string("data build --tokenizer byte --input 'nowhere/*.txt' --output out"),
                                     std::string("data dedup --input 'nowhere*.jsonl' --output out")}) {
    const Finished got =
        run_shell("mkdir -p '" + out("empty") + "'; cd '" + dir_.path().string() + "'; megalith " + command);
    EXPECT_NE(got.code, 0) << command;
    EXPECT_NE(got.err.find("it was looked for in " + dir_.path().string()), std::string::npos) << command << '\n'
                                                                                               << got.err;
  }
}

TEST_F(Program, ADanglingLinkIsNamedAndNotOfferedAsWhatWasMeant) {
  std::filesystem::create_symlink("/gone/b.txt", dir_ / "corpus.txt");
  const std::string link = (dir_ / "corpus.txt").string();
  const Finished got = run_shell("megalith train " + recipe() + " --out " + out("a") + " --set data.train=" + link);
  EXPECT_EQ(got.code, 65);
  EXPECT_NE(got.err.find("there is no such file; " + link + " is a link to /gone/b.txt, which is not there\n"),
            std::string::npos)
      << got.err;
}

TEST_F(Program, LinksThatLeadNowhereAreRefusedAsOutput) {
  std::filesystem::create_symlink("nowhere", dir_ / "dangling");
  std::filesystem::create_symlink("loop_b", dir_ / "loop_a");
  std::filesystem::create_symlink("loop_a", dir_ / "loop_b");
  write_all(dir_ / "text.txt", "some text\n");
  const std::string in = (dir_ / "text.txt").string();
  for (const auto& [name, target, reason] :
       {std::tuple{"dangling", "nowhere", ", which is not there"}, {"loop_a", "loop_b", ", which leads back to it"}}) {
    const std::string link = (dir_ / name).string();
    for (const std::string& to : {link, link + "/below"}) {
      for (const auto& [command, option] :
           {std::pair<std::string, const char*>{"train " + recipe() + " --out ", "--out"},
            {"data build --tokenizer byte --input " + in + " --output ", "--output"},
            {"data clean --input " + in + " --output ", "--output"},
            {"data dedup --input " + in + " --output ", "--output"},
            {"data overlap --train " + in + " --test " + in + " --output ", "--output"},
            {"tokenizer train --type bpe --vocab-size 300 --input " + in + " --output ", "--output"},
            {"checkpoint export-hf x --out ", "--out"},
            {"checkpoint import-hf x --out ", "--out"}}) {
        const Finished got = run_shell("megalith " + command + to);
        EXPECT_EQ(got.code, 64) << command << to << '\n' << got.err;
        EXPECT_NE(got.err.find(std::string(option) + " = " + to + ": " + link + " is a link to " + target + reason +
                               "; remove the link, or name another path"),
                  std::string::npos)
            << command << to << '\n'
            << got.err;
        EXPECT_TRUE(std::filesystem::is_symlink(link));
      }
    }
  }
}

TEST(CommandLine, TheHelpOfACheckpointsTwoFormsNamesNeitherAsRequired) {
  for (const std::string command : {"generate", "eval", "score"}) {
    const Finished help = run_shell("megalith " + command + " --help");
    EXPECT_NE(help.out.find("[checkpoint]\n"), std::string::npos) << help.out;
    EXPECT_EQ(help.out.find("checkpoint TEXT REQUIRED"), std::string::npos) << help.out;
    std::string words = std::regex_replace(help.out, std::regex("\\s+"), " ");
    EXPECT_NE(words.find("required in one of both forms, checkpoint or --checkpoint"), std::string::npos) << help.out;
    EXPECT_EQ(run_shell("megalith " + command).code, 64);
  }
}

TEST_F(Program, OptionsAndValuesOfOtherProgramsAreAnswered) {
  const auto error = [&](const std::string& arguments) {
    return run_shell("megalith train " + recipe() + " --out " + out("a") + " " + arguments).err;
  };
  EXPECT_THAT(error("--eval_only=True"),
              ::testing::HasSubstr("error: --eval_only: no such option. `megalith eval OUT"));
  EXPECT_THAT(error("--config=x.py"), ::testing::HasSubstr("error: --config: no such option. The recipe follows"));
  EXPECT_THAT(error("--set train.init=gpt2"),
              ::testing::HasSubstr("nothing is downloaded: of a model of Hugging Face, such as gpt2, `megalith "
                                   "checkpoint import-hf FOLDER --out OUT` makes one"));
}

TEST_F(Program, RecipeAndPlanCompareTheModelsIdsWithTheTokenizers) {
  for (const std::string command : {"recipe", "plan"}) {
    const auto run = [&](const std::string& ids) {
      return run_shell("megalith " + command + " " + recipe() +
                       " --set data.tokenizer=byte --set model.vocab_size=" + ids);
    };
    const Finished more = run("400"), fewer = run("100");
    EXPECT_EQ(more.code, 0) << more.err;
    EXPECT_THAT(more.err, ::testing::HasSubstr("model.vocab_size = 400: data.tokenizer = byte has 256 ids")) << command;
    EXPECT_EQ(fewer.code, 64) << command;
    EXPECT_THAT(fewer.err, ::testing::HasSubstr("model.vocab_size = 100: must be at least 256, the ids of "
                                                "data.tokenizer = byte"));
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
  EXPECT_NE(error("{\"txt\": \"a\"}").find("b.jsonl] line 2, key \"text\": is missing; did you mean txt? --key"),
            std::string::npos);
  EXPECT_NE(error("{\"text\": \"a\"} 1").find("b.jsonl] line 2, column 15, not valid JSON"), std::string::npos);
  EXPECT_NE(error("{\"text\": 1, \"text\": \"a\"}").find("must be a string"), std::string::npos);
  EXPECT_NE(error("{\"text\": \"a\", \"text\": \"a\"}").find("key \"text\" is there twice"), std::string::npos)
      << "as data build reads it";
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
  for (const char* command : {"train", "generate", "report", "plan", "tokenize", "data", "checkpoint", "groups",
                              "schedule", "echo", "bench", "doctor"}) {
    const Finished got = run_shell(std::string("megalith ") + command + " --help");
    EXPECT_EQ(got.code, 0) << command;
    EXPECT_NE(got.out.find("Usage: megalith"), std::string::npos) << command << "\n" << got.out;
  }
  EXPECT_EQ(run_shell("megalith doctor").code, 0);
  const nlohmann::json printed = nlohmann::json::parse(run_shell("megalith doctor --format json").out);
  for (const char* what : {"cores allowed", "CPU quota", "threads in a rank"})
    EXPECT_TRUE(printed.contains(what)) << what;
  EXPECT_EQ(printed.at("cores allowed").at("note").get<std::string>().rfind("by the affinity mask: ", 0), 0u);
  EXPECT_THAT(printed.at("f32 products").at("state").get<std::string>(),
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

}  // namespace
}  // namespace megalith
