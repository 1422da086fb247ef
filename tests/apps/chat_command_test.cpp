#include <cmath>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/apps/transformers_python.h"
#include "tests/test_data.h"

// Chats from the command line: tokens of conversations, training on them, and a conversation with the model.
namespace megalith {
namespace {

using support::Finished;
using support::metrics_of;
using support::Program;
using support::run_shell;
using ::testing::HasSubstr;

const std::string kChatData = MEGALITH_TEST_DATA "/chat";
const std::string kChatTokenizer = " --tokenizer bpe --vocab-dir " + kChatData + "/tokenizer ";

/// Questions and answers; two are of one dialogue.
const std::vector<std::pair<std::string, std::string>> kLearned = {
    {"Who are you?", "A small model."},
    {"What is the capital of Norland?", "Its capital is Elm Hill."},
    {"Name three rivers.", "Arl, Bess and Corm."},
    {"How many legs has a spider?", "Eight."},
    {"Is it far to Oakham?", "No, nine minutes."},
    {"Where do owls sleep?", "In the inn for owls."},
    {"Say nothing.", ""},
    {"Count to four.", "1, 2, 3, 4."},
    {"\u4E2D\u6587?", "caf\u00E9 <|im_end|>"},
    {"Bye.", "Good night."}};

class Chat : public Program {
 protected:
  /// A dialogue for each of kLearned, the last with a second question.
  void SetUp() override {
    std::ofstream lines(dir_ / "dialogues.jsonl");
    for (const auto& [question, answer] : kLearned) {
      nlohmann::json messages = {{{"role", "user"}, {"content", question}},
                                 {{"role", "assistant"}, {"content", answer}}};
      if (&answer == &kLearned.back().second) {
        messages.push_back({{"role", "user"}, {"content", "And then?"}});
        messages.push_back({{"role", "assistant"}, {"content", "Then I sleep."}});
      }
      lines << nlohmann::json{{"messages", messages}}.dump() << '\n';
    }
    std::ofstream(dir_ / "chat.toml") << "[model]\nnum_layers = 2\nhidden_size = 48\nnum_heads = 4\nseq_len = 80\n"
                                         "dropout = 0.0\n[train]\nsteps = 60\nglobal_batch = 10\nmicro_batch = 5\n"
                                         "[optimizer]\nlr = 1e-2\nmin_lr = 1e-3\nwarmup_steps = 10\nbeta2 = 0.95\n"
                                         "[data]\ntokenizer = \"bpe\"\nvocab_dir = \"" +
                                             kChatData +
                                             "/tokenizer\"\nformat = \"chat\"\nchat_template = \"chatml\"\n"
                                             "train = \"" +
                                             out("dialogues.jsonl") + "\"\n";
  }
  std::string chat_train(const std::string& name, const std::string& more = "") const {
    return "megalith train " + out("chat.toml") + " --out " + out(name) + " " + more;
  }
  /// `lines` as a shell writes them to standard input.
  Finished chat(const std::string& lines, const std::string& more) const {
    return run_shell("printf '" + lines + "' | megalith generate " + out("a") + " --chat --temperature 0 " + more);
  }
};

std::vector<nlohmann::json> turns_of(const Finished& finished) {
  std::vector<nlohmann::json> turns;
  std::istringstream lines(finished.out);
  for (std::string line; std::getline(lines, line);) turns.push_back(nlohmann::json::parse(line));
  return turns;
}

std::vector<double> losses_of(const std::vector<std::string>& metrics) {
  std::vector<double> losses;
  for (const std::string& line : metrics) {
    const nlohmann::json step = nlohmann::json::parse(line);
    if (step.contains("loss")) losses.push_back(step.at("loss"));
  }
  return losses;
}

/// The id of an added token in the tokenizer of an export; -1 without it.
int added_id(const std::string& folder, const std::string& text) {
  const auto tokens = nlohmann::json::parse(read_all(folder + "/tokenizer.json")).at("added_tokens");
  const auto found = std::ranges::find_if(tokens, [&](const auto& token) { return token.at("content") == text; });
  return found == tokens.end() ? -1 : found->at("id").template get<int>();
}

TEST_F(Chat, TokenizePrintsIdsAndLoss) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})";
  std::ofstream(dir_ / "c.jsonl") << line << "\n\n" << line;
  const Finished file = run_shell("megalith tokenize --tokenizer byte --chat plain " + out("c.jsonl"));
  EXPECT_EQ(file.code, 0) << file.err;
  const std::string want =
      "{\"ids\":[85,115,101,114,58,32,104,105,10,65,115,115,105,115,116,97,110,116,58,32,121,111,0],"
      "\"loss\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1,1,1,1]}\n";
  EXPECT_EQ(file.out, want + want);
  EXPECT_EQ(run_shell("megalith tokenize --tokenizer byte --chat plain < " + out("c.jsonl")).out, want + want);
}

TEST_F(Chat, TokenizePrintsNothingIfALineIsBad) {
  std::ofstream(dir_ / "c.jsonl")
      << R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})"
      << "\n{}\n[]\n";
  const Finished bad = run_shell("megalith tokenize --tokenizer byte --chat plain " + out("c.jsonl"));
  EXPECT_EQ(bad.code, 65);
  EXPECT_EQ(bad.out, "");
  EXPECT_THAT(bad.err, HasSubstr("2 problems"));
  EXPECT_THAT(bad.err, HasSubstr("c.jsonl:3] messages is missing"));
  const Finished lacks = run_shell("megalith tokenize --chat chatml " + out("c.jsonl"));
  EXPECT_EQ(lacks.code, 64);
  EXPECT_THAT(lacks.err, HasSubstr("no special tokens <|im_start|>, <|im_end|>"));
  EXPECT_THAT(run_shell("megalith tokenize --chat plain --decode " + out("c.jsonl")).err,
              HasSubstr("leave out --decode"));
}

// Continuous integration has no transformers: it skips this test. By hand, with a Python that has version 5 of it:
//   MEGALITH_TEST_PYTHON=VENV/bin/python build/PRESET/bin/tests_L10 --gtest_filter='Chat.*'
TEST_F(Chat, TokenizeGivesTheTokensOfTransformers) {
  const std::string python = support::python_with_transformers();
  if (python.empty()) GTEST_SKIP() << support::kNoTransformers;
  const std::string conversations = " " + kChatData + "/conversations.jsonl";
  for (const std::string name : {"chatml", "llama3", "plain"}) {
    const Finished ours = run_shell("megalith tokenize --chat " + name + kChatTokenizer + conversations);
    ASSERT_EQ(ours.code, 0) << ours.err;
    const Finished theirs =
        run_shell("HF_HUB_OFFLINE=1 " + python + " " MEGALITH_TEST_DATA "/../reference/chat_tokens.py " + kChatData +
                  "/tokenizer " + kChatData + "/" + name + ".jinja" + conversations);
    ASSERT_EQ(theirs.code, 0) << theirs.err;
    EXPECT_EQ(std::ranges::count(ours.out, '\n'), 200);
    EXPECT_TRUE(ours.out == theirs.out) << name;
  }
}

// By hand, as the test above. AutoTokenizer finds the template in an export by itself.
TEST_F(Chat, AnExportGivesTransformersTheTokensOfTokenize) {
  const std::string python = support::python_with_transformers();
  if (python.empty()) GTEST_SKIP() << support::kNoTransformers;
  const std::string conversations = " " + kChatData + "/conversations.jsonl";
  for (const std::string name : {"chatml", "llama3", "plain"}) {
    const Finished trained = run_shell(chat_train(name, "--set train.steps=1 --set data.chat_template=" + name));
    ASSERT_EQ(trained.code, 0) << trained.err;
    ASSERT_EQ(run_shell("megalith checkpoint export-hf " + out(name) + " --out " + out(name + "_hf")).code, 0);
    const Finished ours = run_shell("megalith tokenize --chat " + name + kChatTokenizer + conversations);
    const Finished theirs =
        run_shell("HF_HUB_OFFLINE=1 " + python + " " MEGALITH_TEST_DATA "/../reference/chat_tokens.py " +
                  out(name + "_hf") + " -" + conversations);
    ASSERT_EQ(theirs.code, 0) << theirs.err;
    EXPECT_EQ(std::ranges::count(theirs.out, '\n'), 200);
    EXPECT_TRUE(ours.out == theirs.out) << name;
  }
}

TEST_F(Chat, AModelAnswersWhatItWasTrainedOn) {
  const Finished trained = run_shell(chat_train("a"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  for (const auto& [question, answer] : kLearned) {
    const Finished got = chat(question + "\\n", "");
    EXPECT_EQ(got.code, 0) << got.err;
    EXPECT_EQ(got.out, answer + "\n") << question;
  }
  // The second question is about the first. A blank line is none, and the last line needs no end.
  const Finished two = chat("Bye.\\n\\nAnd then?", "--format json");
  const std::vector<nlohmann::json> turns = turns_of(two);
  ASSERT_EQ(turns.size(), 2u) << two.out << two.err;
  EXPECT_EQ(turns[1].at("question"), "And then?");
  EXPECT_EQ(turns[1].at("answer"), "Then I sleep.");
  EXPECT_EQ(turns[1].at("ending"), "end_of_answer");
  EXPECT_GT(turns[1].at("prompt_tokens"), turns[0].at("prompt_tokens"));
  for (const char* grid : {"--set parallel.tp=2", "--set parallel.pp=2", "--ranks 2"})
    EXPECT_EQ(turns_of(chat("Bye.\\nAnd then?\\n", std::string("--format json ") + grid)), turns) << grid;

  // An export has the template.
  const Finished exported =
      run_shell("megalith checkpoint export-hf " + out("a") + " --out " + out("hf") + " && megalith generate " +
                out("hf") + " --chat --temperature 0 --device cpu <<< 'Name three rivers.'");
  EXPECT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.out, HasSubstr("\nArl, Bess and Corm.\n"));
  EXPECT_EQ(read_all(out("hf") + "/chat_template.jinja"), read_all(kChatData + "/chatml.jinja"));
  // transformers' generate() stops at the end of a document, and at that of an answer.
  const nlohmann::json config = nlohmann::json::parse(read_all(out("hf") + "/config.json"));
  EXPECT_EQ(config.at("eos_token_id"),
            nlohmann::json({added_id(out("hf"), "<|endoftext|>"), added_id(out("hf"), "<|im_end|>")}));
  EXPECT_EQ(config.at("bos_token_id"), added_id(out("hf"), "<|endoftext|>"));

  // The window of 80 tokens: the oldest questions go, the system message stays, and a longer question is refused.
  std::string many, longest(100, 'x');
  for (int i = 0; i < 6; ++i) many += "How many legs has a spider?\\n";
  const std::vector<nlohmann::json> full = turns_of(chat(many + longest + "\\nBye.\\n", "--format json --system Hi"));
  ASSERT_EQ(full.size(), 8u);
  EXPECT_EQ(full[0].at("left_out"), 0);
  EXPECT_GT(full[5].at("left_out"), 0);
  for (const nlohmann::json& turn : full) EXPECT_LE(turn.at("prompt_tokens"), turn.contains("refused") ? 200 : 61);
  EXPECT_THAT(full[6].at("refused").get<std::string>(), HasSubstr("must be at most model.seq_len = 80; shorten it"));
  EXPECT_EQ(full[6].at("left_out"), 0) << "the conversation goes on as it was";
  EXPECT_EQ(full[7].at("turn"), 8);
  EXPECT_TRUE(full[7].contains("answer"));
  EXPECT_EQ(turns_of(chat("Count to four.\\n", "--format json --max-tokens 2"))[0].at("ending"), "max_tokens");

  EXPECT_THAT(chat("", "--prompt x").err, HasSubstr("--prompt excludes --chat"));
  EXPECT_EQ(chat("", "--chat-template llama3").code, 0) << "this vocabulary has its tokens, too";
}

/// In fp64 the mean over all answers of a global batch, whoever computes it.
TEST_F(Chat, TheLossIsThatOfAnswersOnEveryGrid) {
  const std::string steps =
      "--set train.steps=4 --set train.precision=fp64 --set data.valid=" + out("dialogues.jsonl") +
      " --set train.eval_interval=2 --set train.global_batch=8 --set optimizer.warmup_steps=2 "
      "--set optimizer.decay_steps=4 ";
  const auto losses = [&](const std::string& name, const std::string& more) {
    const Finished trained = run_shell(chat_train(name, steps + more));
    EXPECT_EQ(trained.code, 0) << trained.err;
    return losses_of(metrics_of(out(name)));
  };
  const std::vector<double> want = losses("one", "--set train.micro_batch=8");
  ASSERT_EQ(want.size(), 6u) << "four steps, two of which have a held-out loss";
  // Of 400 ids alike; with padding among the terms it would be less than a third of that.
  EXPECT_NEAR(want[0], std::log(400.0), 0.3);
  int number = 0;
  for (const char* grid :
       {"--set train.micro_batch=1", "--set train.micro_batch=2 --ranks 4",
        "--set train.micro_batch=2 --set parallel.tp=2", "--set train.micro_batch=2 --set parallel.pp=2 --ranks 4"}) {
    const std::vector<double> got = losses("grid" + std::to_string(number++), grid);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12 * want[i]) << grid;
  }
  // A run that stops and goes on has the same losses.
  const Finished half = run_shell(chat_train("half", steps + "--set train.micro_batch=8 --set train.steps=2"));
  const Finished rest = run_shell(chat_train("half", steps + "--set train.micro_batch=4 --resume"));
  EXPECT_EQ(rest.code, 0) << half.err << rest.err;
  const std::vector<double> resumed = losses_of(metrics_of(out("half")));
  ASSERT_EQ(resumed.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(resumed[i], want[i], 1e-12 * want[i]);
  // Another template makes other tokens.
  const Finished other = run_shell(chat_train("half", steps + "--set train.steps=6 --set train.micro_batch=4 "
                                                              "--set data.chat_template=plain --resume"));
  EXPECT_EQ(other.code, 66) << other.err;
}

TEST_F(Chat, TrainRefusesWhatDoesNotFit) {
  const auto refused = [&](const std::string& more) {
    const Finished finished = run_shell(chat_train("bad", more));
    EXPECT_NE(finished.code, 0) << more;
    return finished.err;
  };
  EXPECT_THAT(refused("--set data.format=text"), HasSubstr("data.chat_template = chatml: needs data.format = chat"));
  EXPECT_THAT(refused("--set data.tokenizer=gpt2 --set data.vocab_dir=''"),
              HasSubstr("the gpt2 vocabulary has no special tokens <|im_start|>, <|im_end|>: must have them"));
  EXPECT_THAT(refused("--set data.train=" + recipe()), HasSubstr("tiny.toml"));
  // Template, lines and tasks at once.
  std::ofstream(dir_ / "bad.jsonl") << "{}\n";
  const std::string all =
      run_shell("sed '/^chat_template/d' " + out("chat.toml") + " > " + out("none.toml") + " && megalith train " +
                out("none.toml") + " --out " + out("bad") +
                " --set data.tokenizer=byte --set data.vocab_dir='' --set data.train=" + out("bad.jsonl") +
                " --set eval.tasks=choice:" + out("none.jsonl"))
          .err;
  EXPECT_THAT(all, HasSubstr("no chat template is set"));
  EXPECT_THAT(all, HasSubstr("bad.jsonl:1] messages is missing"));
  EXPECT_THAT(all, HasSubstr("none.jsonl"));
  EXPECT_THAT(refused("--set moe.num_experts=4 --set moe.top_k=2 --set moe.ffn_hidden_size=16 --set moe.aux_loss=0.01"),
              HasSubstr("moe.aux_loss = 0.01: must be 0 with data.format = chat"));
  EXPECT_THAT(refused("--set model.family=bert --set data.tokenizer=bert-uncased --set data.vocab_dir=''"),
              HasSubstr("data.format = chat: must be text with model.family = bert"));
  const Finished cut = run_shell(chat_train("cut", "--set model.seq_len=24 --set train.steps=1"));
  EXPECT_EQ(cut.code, 0);
  EXPECT_THAT(cut.err, HasSubstr("conversations have over model.seq_len + 1 = 25 tokens"));
}

/// Without data.chat_template the tokenizer's folder decides, and the checkpoint keeps its answer.
TEST_F(Chat, TheTemplateMayBeThatOfTheTokenizer) {
  const std::string of_folder = "--set train.steps=1 --set data.vocab_dir=" + out("tokenizer");
  ASSERT_EQ(run_shell("cp -r " + kChatData + "/tokenizer " + out("tokenizer") + " && sed -i /chat_template/d " +
                      out("chat.toml"))
                .code,
            0);
  EXPECT_THAT(run_shell(chat_train("a", of_folder)).err, HasSubstr("has no chat template"));
  ASSERT_EQ(run_shell("cp " + kChatData + "/llama3.jinja " + out("tokenizer/chat_template.jinja")).code, 0);
  const Finished trained = run_shell(chat_train("a", of_folder));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(run_shell("cat " + out("a") + "/*.toml").out, HasSubstr("chat_template = 'llama3'"));
  const Finished resumed = run_shell(chat_train("a", of_folder + " --set train.steps=2 --resume"));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  ASSERT_EQ(run_shell("rm -r " + out("tokenizer")).code, 0);
  // Both files of an export begin a text with the same token.
  ASSERT_EQ(run_shell("megalith checkpoint export-hf " + out("a") + " --out " + out("hf")).code, 0);
  const auto of_export = [&](const char* file) { return nlohmann::json::parse(read_all(out("hf") + "/" + file)); };
  EXPECT_EQ(of_export("tokenizer_config.json").at("bos_token"), "<|begin_of_text|>");
  EXPECT_EQ(of_export("config.json").at("bos_token_id"), added_id(out("hf"), "<|begin_of_text|>"));
  EXPECT_EQ(turns_of(chat("Hi\\n", "--format json --max-tokens 3")).size(), 1u);
}

}  // namespace
}  // namespace megalith
