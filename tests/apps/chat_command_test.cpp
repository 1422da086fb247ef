#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/apps/transformers_python.h"
#include "tests/test_data.h"

// Chats from the command line: tokens of conversations.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::run_shell;
using ::testing::HasSubstr;

const std::string kChatData = MEGALITH_TEST_DATA "/chat";
const std::string kChatTokenizer = " --tokenizer bpe --vocab-dir " + kChatData + "/tokenizer ";

class Chat : public Program {};

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

}  // namespace
}  // namespace megalith
