#include "megalith/data/chat_file.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"

namespace megalith::data {
namespace {

std::string bad_chat_line(std::string_view json) {
  return error_of<InputError>([&] { read_conversation({.json = json, .file = "c.jsonl", .number = 3}); });
}

TEST(ChatFile, ReadsBothForms) {
  const Conversation ours = read_conversation(
      {.json = R"({"id": 7, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": ""},
                {"content": "a\n", "role": "assistant", "weight": 1}]})",
       .file = "c.jsonl"});
  const Conversation sharegpt =
      read_conversation({.json = R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": ""},
                {"from": "gpt", "value": "a\n"}]})",
                         .file = "c.jsonl"});
  for (const Conversation& one : {ours, sharegpt}) {
    ASSERT_EQ(one.size(), 3u);
    EXPECT_EQ(one[0].role, ChatRole::system);
    EXPECT_EQ(one[1].role, ChatRole::user);
    EXPECT_EQ(one[1].content, "");
    EXPECT_EQ(one[2].role, ChatRole::assistant);
    EXPECT_EQ(one[2].content, "a\n");
  }
}

TEST(ChatFile, NamesLineKeyAndRule) {
  EXPECT_EQ(bad_chat_line(R"({"text": "a"})"),
            "[c.jsonl:3] messages is missing: must be an object with the member messages, or ShareGPT's conversations");
  EXPECT_EQ(bad_chat_line(R"({"messages": [], "conversations": []})"),
            "[c.jsonl:3] has messages and conversations: must have one of them; remove one");
  EXPECT_EQ(bad_chat_line(R"({"messages": []})"),
            "[c.jsonl:3] messages = []: must be a list of messages, as [{\"role\": \"user\", \"content\": \"...\"}, "
            "...]");
  EXPECT_EQ(bad_chat_line(R"({"messages": [{"role": "user", "content": "q"}]})"),
            "[c.jsonl:3] messages has no message of the assistant: must end with role = \"assistant\"; leave out what "
            "has no answer");
  EXPECT_EQ(bad_chat_line(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"},
                          {"from": "human", "value": "q"}]})"),
            "[c.jsonl:3] conversations has no answer to its last message: must end with from = \"gpt\"; leave out what "
            "has no answer");
  EXPECT_EQ(bad_chat_line(R"({"messages": [{"role": "tool", "content": "q"}]})"),
            "[c.jsonl:3] messages[0].role = \"tool\": must be system, user or assistant; leave out messages of others, "
            "such as tools");
  EXPECT_EQ(
      bad_chat_line(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null}]})"),
      "[c.jsonl:3] messages[1].content = null: must be a text; give the text of the message, and leave out calls "
      "and images");
  EXPECT_EQ(bad_chat_line(R"({"messages": [{"content": "q"}]})"),
            "[c.jsonl:3] messages[0].role is missing: give system, user or assistant");
  EXPECT_EQ(bad_chat_line(R"({"messages": ["q"]})"),
            "[c.jsonl:3] messages[0] = \"q\": must be an object with the members role and content");
}

TEST(ChatFile, RefusesMessagesOutOfOrder) {
  const auto turns = [](std::initializer_list<const char*> roles) {
    std::string json;
    for (const char* role : roles)
      json += std::string(json.empty() ? "" : ", ") + "{\"role\": \"" + role + "\", \"content\": \"x\"}";
    return bad_chat_line("{\"messages\": [" + json + "]}");
  };
  EXPECT_EQ(turns({"assistant"}),
            "[c.jsonl:3] messages[0].role = \"assistant\": must follow a question; leave it out, or join two answers "
            "in a row");
  EXPECT_EQ(turns({"user", "assistant", "assistant"}),
            "[c.jsonl:3] messages[2].role = \"assistant\": must follow a question; leave it out, or join two answers "
            "in a row");
  EXPECT_EQ(turns({"system", "user", "user", "assistant"}),
            "[c.jsonl:3] messages[2].role = \"user\": two questions in a row: must take turns; join the two");
  EXPECT_EQ(turns({"user", "assistant", "system", "user", "assistant"}),
            "[c.jsonl:3] messages[2].role = \"system\": a system message must be the first, and there may be one");
}

TEST(ChatFile, ListsAllBadLines) {
  const TempDir dir;
  const std::string good = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  write_all(dir / "c.jsonl", good + "\r\n\n{\"messages\": 1}\n" + good + "\n{\"a\": \n");
  io::FileProblems problems;
  int used = 0;
  for_each_conversation(*io::posix_fs(), dir / "c.jsonl", 1 << 20, problems, [&](const Conversation&) {
    if (++used == 2) throw InputError("is too odd");
  });
  const std::string file = (dir / "c.jsonl").string();
  const std::string text = error_of<InputError>([&] { problems.throw_if_any(file); });
  EXPECT_EQ(used, 2);
  EXPECT_EQ(
      text.substr(0, text.rfind('\n')),
      "[" + file + "] 3 problems\n  [" + file +
          ":3] messages = 1: must be a list of messages, as [{\"role\": \"user\", \"content\": \"...\"}, ...]\n  [" +
          file + ":4] is too odd");
  EXPECT_NE(text.find("[" + file + "] line 5, column "), std::string::npos) << text;
}

}  // namespace
}  // namespace megalith::data
