#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/test_data.h"

// megalith generate: several prompts, every grid, how texts end, and what is refused.
namespace megalith {
namespace {

using nlohmann::json;
using support::Finished;
using support::mpirun;
using support::Program;
using support::run_shell;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Generate : public Program {
 protected:
  void SetUp() override {
    const Finished trained = run_shell(train("a", "--set parallel.tp=2 --set train.eval_interval=0"));
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  /// What follows `megalith` or a launcher.
  std::string arguments(const std::string& more) const {
    return " generate --checkpoint " + out(model_) + " --max-tokens 30 --seed 3 " + more;
  }
  Finished generate(const std::string& more) const { return run_shell("megalith" + arguments(more)); }
  std::string model_ = "a";
  std::string prompts(const std::string& lines) const {
    std::ofstream(dir_ / "prompts.jsonl") << lines;
    return "--prompts " + out("prompts.jsonl") + " ";
  }
  std::string five() const {
    return prompts(
        "{\"prompt\": \"the 3rd\", \"name\": \"first\"}\n{\"name\": 7, \"prompt\": \"a text that\"}\n\n"
        "{\"prompt\": \"l\", \"other\": [1]}\n{\"prompt\": \"times.\\nthe 12t\"}\n{\"prompt\": \"the 3rd\"}");
  }
};

/// The lines of --format json but the summary.
std::vector<json> texts_of(const Finished& finished) {
  std::vector<json> lines;
  std::istringstream out(finished.out);
  for (std::string line; std::getline(out, line);) lines.push_back(json::parse(line));
  EXPECT_FALSE(lines.empty()) << finished.err;
  if (lines.empty()) return lines;
  EXPECT_TRUE(lines.back().contains("summary")) << finished.out;
  lines.pop_back();
  return lines;
}

TEST_F(Generate, EveryGridAndBatchGivesTheSameTexts) {
  const std::string of = five() + "--samples 2 --format json --precision fp64 ";
  for (const char* temperature : {"--temperature 0", "--temperature 1.5 --top-k 40 --top-p 0.95"}) {
    const Finished one = generate(of + temperature);
    ASSERT_EQ(one.code, 0) << one.err;
    const std::vector<json> want = texts_of(one);
    ASSERT_EQ(want.size(), 10u);
    EXPECT_EQ(want[0].at("name"), "first");
    EXPECT_FALSE(want[2].contains("name")) << "a number is none";
    EXPECT_EQ(want[0].at("text"), want[8].at("text")) << "the same prompt and sample";
    EXPECT_EQ(want[0].at("text") == want[1].at("text"), std::string(temperature) == "--temperature 0") << "samples";
    for (const char* grid : {"--batch 1", "--batch 3", "--set parallel.tp=2", "--set parallel.pp=2",
                             "--set parallel.tp=2 --set parallel.pp=2", "--ranks 3", "--ranks 4 --set parallel.pp=2"}) {
      const Finished other = generate(of + temperature + ' ' + grid);
      EXPECT_EQ(other.code, 0) << other.err;
      EXPECT_EQ(texts_of(other), want) << grid;
    }
#ifdef MEGALITH_WITH_MPI
    const Finished processes =
        run_shell(mpirun(4, support::program() + arguments(of + temperature + " --set parallel.tp=2")));
    EXPECT_EQ(processes.code, 0) << processes.err;
    EXPECT_EQ(texts_of(processes), want) << "two copies of two processes";
#endif
  }
}

TEST_F(Generate, ExpertsMayBeOnOtherRanks) {
  const std::string experts = "--set moe.num_experts=4 --set moe.top_k=2 --set moe.ffn_hidden_size=16 ";
  model_ = "experts";
  const Finished trained = run_shell(train(model_, experts + "--set train.eval_interval=0"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string of = five() + "--samples 2 --format json --precision fp64 --temperature 1.5 ";
  const Finished one = generate(of);
  ASSERT_EQ(one.code, 0) << one.err;
  const std::vector<json> want = texts_of(one);
  for (const char* grid : {"--ranks 2", "--set parallel.ep=2", "--set parallel.ep=4 --batch 2",
                           "--set parallel.tp=2 --set parallel.ep=2 --set parallel.etp=1 --batch 1",
                           "--set parallel.pp=2 --set parallel.ep=2", "--set parallel.etp=2 --batch 3"}) {
    const Finished other = generate(of + grid);
    EXPECT_EQ(other.code, 0) << grid << other.err;
    EXPECT_EQ(texts_of(other), want) << grid;
  }
#ifdef MEGALITH_WITH_MPI
  const Finished processes = run_shell(mpirun(3, support::program() + arguments(of)));
  EXPECT_EQ(processes.code, 0) << processes.err;
  EXPECT_EQ(texts_of(processes), want) << "three copies";
  const Finished parts = run_shell(mpirun(2, support::program() + arguments(of + "--set parallel.ep=2")));
  EXPECT_EQ(parts.code, 0) << parts.err;
  EXPECT_EQ(texts_of(parts), want) << "ep 2";
#endif
}

/// The second text, which another copy of the model writes, is printed long before the last one is complete.
TEST_F(Generate, TextsOfOtherCopiesArePrintedWhenTheyAreComplete) {
  const Finished got =
      run_shell(support::program() + arguments("--ranks 2 --batch 1 --samples 2000 --format json > ") + out("texts") +
                " & pid=$!; until [ $(wc -l < " + out("texts") +
                ") -ge 2 ] || ! kill -0 $pid; do sleep 0.02; done; kill -0 $pid && echo goes on; kill -KILL $pid");
  EXPECT_EQ(got.out, "goes on\n") << got.err;
}

TEST_F(Generate, TextIsPrintedPromptByPrompt) {
  const Finished json_texts = generate(five() + "--format json"), text = generate(five() + "--batch 2");
  ASSERT_EQ(text.code, 0) << text.err;
  std::string want;
  int number = 0;
  for (const json& one : texts_of(json_texts)) {
    ++number;
    want += std::string(number > 1 ? "\n" : "") + "--- prompt " + std::to_string(number) +
            (number == 1 ? " (first)" : "") + ", sample 0 ---\n" + one.at("prompt").get<std::string>() +
            one.at("text").get<std::string>() + "\n";
  }
  EXPECT_EQ(text.out, want);
  EXPECT_THAT(text.err, HasSubstr(" tokens in "));
  EXPECT_THAT(text.err, HasSubstr("fp32 on cpu, tp 1 pp 1 dp 1"));
  EXPECT_THAT(text.err, HasSubstr("key/value cache"));
}

TEST_F(Generate, AStopTextEndsATextBeforeIt) {
  const json whole = texts_of(generate("--prompt 'the ' --temperature 0 --format json")).at(0);
  const auto text = whole.at("text").get<std::string>();
  ASSERT_EQ(whole.at("ending"), "max_tokens");
  const std::string stop = text.substr(10, 4);
  std::ofstream(dir_ / "stop") << stop;
  const std::string option = "--temperature 0 --stop \"$(cat " + out("stop") + ")\" ";
  const json ended = texts_of(generate("--prompt 'the ' --format json " + option)).at(0);
  EXPECT_EQ(ended.at("ending"), "stop");
  EXPECT_EQ(ended.at("text"), text.substr(0, text.find(stop)));
  EXPECT_EQ(generate("--prompt 'the ' " + option).out, "the " + text.substr(0, text.find(stop)) + "\n");
}

TEST_F(Generate, ASlideIsReported) {
  const Finished slow = generate("--prompt 'the ' --temperature 0 --format json"),
                 fast = generate("--prompt 'the ' --temperature 0 --slide 8 --format json");
  EXPECT_EQ(texts_of(slow).at(0).at("slides"), 17) << "4 + 29 tokens in a window of 16";
  EXPECT_EQ(texts_of(fast).at(0).at("slides"), 3);
  EXPECT_THAT(slow.err, HasSubstr("prompt 1, sample 0 fills the window of 16 tokens: it loses 1 at its beginning"));
  // Where both streams are one terminal the line stands after the text, not in it.
  const Finished both = generate("--prompt 'the ' --temperature 0 2>&1");
  const std::string text = "the " + texts_of(slow).at(0).at("text").get<std::string>() + "\n";
  const std::size_t at = both.out.find(text);
  ASSERT_NE(at, std::string::npos) << both.out;
  EXPECT_GT(both.out.find("fills the window"), at);
  EXPECT_THAT(both.out, HasSubstr("fills the window"));
}

TEST_F(Generate, EveryBadLineOfAFileIsNamed) {
  const std::string file = out("prompts.jsonl");
  const Finished bad = generate(
      prompts("{\"prompt\": \"good\"}\n{\"prompt\": \n{\"text\": \"a\"}\n{\"prompt\": 3}\n{\"prompt\": \"\"}\n[1]\n"
              "{\"prompt\": \"seventeen letters\"}\n{\"prompt\": \"\xff\"}\n"));
  EXPECT_EQ(bad.code, 65);
  EXPECT_EQ(bad.out, "");
  for (const std::string& text :
       {"[" + file + "] 7 problems\n", "[" + file + "] line 2, column",
        "[" + file + "] line 3: prompt is missing; give ", "[" + file + "] line 4: prompt must be a string",
        "[" + file + "] line 5: prompt = \"\": must not be empty",
        "[" + file + "] line 6, JSON value: must be an object",
        "[" + file + "] line 7: prompt has 17 tokens: must have at most model.seq_len = 16; leave out its beginning",
        "[" + file + "] line 8, column"})
    EXPECT_THAT(bad.err, HasSubstr(text));
  const Finished empty = generate(prompts("\n  \n"));
  EXPECT_EQ(empty.code, 65);
  EXPECT_THAT(empty.err, HasSubstr("[" + file + "] holds no prompts: must have lines as {\"prompt\": "));
  const Finished missing = generate("--prompts " + out("prompt.jsonl"));
  EXPECT_EQ(missing.code, 65);
  EXPECT_THAT(missing.err, HasSubstr("--prompts"));
}

TEST_F(Generate, AHuggingFaceFolderContinuesTextsAsTheCheckpointDoes) {
  ASSERT_EQ(run_shell("megalith checkpoint export-hf " + out("a") + " --out " + out("hf")).code, 0);
  const std::string more = " --max-tokens 30 --prompt 'the 3rd' --temperature 0";
  const Finished want = run_shell("megalith generate --checkpoint " + out("a") + more);
  for (const char* grid : {"", " --set parallel.tp=2", " --set parallel.pp=2"}) {
    const Finished got = run_shell("megalith generate --checkpoint " + out("hf") + more + grid);
    EXPECT_EQ(got.code, 0) << got.err;
    EXPECT_EQ(got.out, want.out) << grid;
  }
  EXPECT_GT(want.out.size(), 30u);
}

TEST_F(Generate, MistakesOnTheCommandLineEndWithCode64) {
  const struct {
    std::string options, text;
  } cases[] = {
      {"--prompt 'more than sixteen bytes'",
       "--prompt has 23 tokens: must have at most model.seq_len = 16; leave out its beginning"},
      {"--prompt a --prompts b", "excludes"},
      {"--set model.seq_len=8", "model.seq_len = 8: is not for this command: the model is that of its checkpoint"},
      {"--set parallel.ep=2", "parallel.ep = 2: is for models with experts"},
      {"--set parallel.chunks=2",
       "parallel.chunks = 2: is not for this command: the model is that of its checkpoint, and the "
       "grid's keys are parallel.tp, parallel.pp, parallel.ranks, parallel.ep, parallel.etp"},
      {"--set parallel.tp=3", "parallel.tp"},
      {"--set parallel.pp=5", "parallel.pp = 5: must be at most model.num_layers = 4 to generate"},
      {"--prompt \"$(printf 'a\\377')\"", "--prompt has byte 1: must be UTF-8"},
      {"--vocab-dir nowhere", "--vocab-dir = nowhere: the model's tokenizer is \"byte\", which reads no files"},
      {"--top-p nan", "must be a number in (0, 1], not nan"},
      {"--top-p 0", "must be a number in (0, 1], not 0"},
      {"--seed -1", "must be a whole number from 0 to 18446744073709551615, not -1"},
      {"--seed 1.5", "must be a whole number from 0"},
      {"--set parallel.tp=2 --ranks 3", "tp"},
      {"--slide 17", "--slide = 17: must be at most model.seq_len = 16"},
      {"--slide 17 --stop ''", "--stop = \"\": must not be empty"},
      {"--slide 0", "--slide"},
      {"--samples 0", "--samples"},
      {"--batch 0", "--batch"},
      {"--precision fp8", "--precision"},
      {"--device cuda --precision fp64", "--precision = fp64: is for --device cpu; a GPU computes in bf16 or fp32"}};
  for (const auto& [options, text] : cases) {
    const Finished got = generate(options);
    EXPECT_EQ(got.code, 64) << options << "\n" << got.err;
    EXPECT_EQ(got.out, "") << options;
    EXPECT_THAT(got.err, HasSubstr(text)) << options;
  }
  const Finished all = generate(prompts("no\n{}\n") + " --slide 40 --stop '' --set parallel.tp=3");
  EXPECT_EQ(all.code, 64) << all.err;
  for (const char* const text :
       {"parallel.tp = 3: must divide model.num_heads = 4", "--slide = 40: must be at most model.seq_len = 16",
        "--stop = \"\": must not be empty", "prompts.jsonl] 2 problems", "line 2: prompt is missing"})
    EXPECT_THAT(all.err, HasSubstr(text));
  EXPECT_THAT(run_shell("megalith generate --help").out, ::testing::Not(HasSubstr("parallel.chunks")));
}

TEST_F(Generate, StagesShareOutLayersAsEvenlyAsItGoes) {
  const std::string of = five() + "--format json --precision fp64 ";
  const Finished one = generate(of);
  for (const char* const grid : {"--set parallel.pp=3", "--set parallel.pp=3 --set parallel.tp=2"}) {
    const Finished other = generate(of + grid);
    EXPECT_EQ(other.code, 0) << other.err;
    EXPECT_EQ(texts_of(other), texts_of(one)) << grid;
  }
}

TEST_F(Generate, TheFiveContextsOfTheRecipesAreFit) {
  const std::string name = MEGALITH_TEST_DATA "/../../recipes/text/contexts.jsonl";
  std::ifstream file(name);
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const json context = json::parse(line);
    EXPECT_FALSE(context.at("name").get<std::string>().empty());
    EXPECT_GT(context.at("prompt").get<std::string>().size(), 100u);
  }
  EXPECT_EQ(count, 5);
  const Finished refused = generate("--prompts " + name);
  EXPECT_THAT(refused.err, HasSubstr("5 problems")) << "above 16 bytes";
}

}  // namespace
}  // namespace megalith
