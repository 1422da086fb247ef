#include "megalith/data/chat_samples.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::data {
namespace {

using SampleIds = std::vector<std::int32_t>;

/// Ids first, first + 1, ...; `loss` has a letter for each.
ChatTokens numbered_chat(std::int32_t first, std::string_view loss) {
  ChatTokens tokens;
  for (const char one : loss) {
    tokens.ids.push_back(first++);
    tokens.loss.push_back(one == '1' ? 1 : 0);
  }
  return tokens;
}

std::pair<SampleIds, SampleIds> sample_of(const ChatSamples& samples, Index sample) {
  const auto seq_len = static_cast<std::size_t>(samples.seq_len());
  std::pair<SampleIds, SampleIds> made{SampleIds(seq_len, 99), SampleIds(seq_len, 99)};
  samples.copy(sample, made.first, made.second);
  return made;
}

TEST(ChatSamples, TargetsAreTheTokensWithALoss) {
  const std::vector<ChatTokens> chats = {numbered_chat(10, "00110"), numbered_chat(20, "0111")};
  const ChatSamples samples("a", chats, 5, ChatTooLong::cut);
  ASSERT_EQ(samples.count(), 2);
  EXPECT_EQ(samples.num_tokens(), 7);
  EXPECT_EQ(sample_of(samples, 0), std::pair(SampleIds({10, 11, 12, 13, 0}), SampleIds({-1, 12, 13, -1, -1})));
  EXPECT_EQ(sample_of(samples, 1), std::pair(SampleIds({20, 21, 22, 0, 0}), SampleIds({21, 22, 23, -1, -1})));
}

TEST(ChatSamples, LongOnesAreCutOrDropped) {
  const std::vector<ChatTokens> chats = {numbered_chat(10, "00110"), numbered_chat(20, "000011"),
                                         numbered_chat(30, "001101"), numbered_chat(40, "0001")};
  const ChatSamples cut("a", chats, 3, ChatTooLong::cut);  // of 4 tokens with the target of the last
  EXPECT_EQ(cut.count(), 3);
  EXPECT_EQ(cut.cut(), 2);
  EXPECT_EQ(cut.dropped(), 1) << "no answer begins before the end";
  EXPECT_EQ(sample_of(cut, 1), std::pair(SampleIds({30, 31, 32}), SampleIds({-1, 32, 33})));
  const ChatSamples dropped("a", chats, 3, ChatTooLong::drop);
  EXPECT_EQ(dropped.count(), 1);
  EXPECT_EQ(dropped.cut(), 0);
  EXPECT_EQ(dropped.dropped(), 3);
  EXPECT_EQ(sample_of(dropped, 0), std::pair(SampleIds({40, 41, 42}), SampleIds({-1, -1, 43})));
  EXPECT_NE(cut.fingerprint(), dropped.fingerprint());
}

TEST(ChatSamples, TheFingerprintHasTheLosses) {
  const std::vector<ChatTokens> a = {numbered_chat(10, "0011")}, b = {numbered_chat(10, "0010")};
  EXPECT_NE(ChatSamples("a", a, 5, ChatTooLong::cut).fingerprint(),
            ChatSamples("a", b, 5, ChatTooLong::cut).fingerprint());
  EXPECT_EQ(ChatSamples("a", a, 5, ChatTooLong::cut).fingerprint(),
            ChatSamples("b", a, 9, ChatTooLong::cut).fingerprint());
}

class OpenChats : public ::testing::Test {
 protected:
  OpenChats() {
    std::string lines;
    for (const std::string text : {"a", "bb", "ccc", "dddddddddd"})
      lines += R"({"messages": [{"role": "user", "content": ")" + text +
               R"("}, {"role": "assistant", "content": "x"}]})"
               "\n";
    write_all(dir_ / "c.jsonl", lines);
    config_ = {.tokenizer = "byte",
               .train = {(dir_ / "c.jsonl").string()},
               .format = DataFormat::chat,
               .chat_template = "plain"};
  }
  ChatDataSets open(Index seq_len = 40) const { return open_chat_data(*fs_, config_, *tokenizer::bytes(), seq_len); }

  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  TempDir dir_;
  DataConfig config_;
};

TEST_F(OpenChats, SplitCutsBetweenConversations) {
  config_.split = "0.75";
  const ChatDataSets sets = open();
  EXPECT_EQ(sets.train.count(), 3);
  ASSERT_TRUE(sets.valid);
  EXPECT_EQ(sets.valid->count(), 1);
  EXPECT_EQ(sets.valid->num_tokens(), 29) << "User: dddddddddd, Assistant: x, and the end: all but the last token";
}

TEST_F(OpenChats, NotesCountWhatIsTooLong) {
  config_.train.push_back(config_.train.front());
  EXPECT_EQ(open().notes.left_out, std::vector<std::string>{});
  EXPECT_EQ(open(24).notes.left_out,
            std::vector<std::string>{"data.train: 2 of 8 conversations have over model.seq_len + 1 = 25 tokens: 0 were "
                                     "cut at their end, 2 were dropped, as no answer begins before that"});
  config_.chat_too_long = ChatTooLong::drop;
  EXPECT_EQ(open(24).notes.left_out,
            std::vector<std::string>{"data.train: 2 of 8 conversations have over model.seq_len + 1 = 25 tokens: 0 were "
                                     "cut at their end, 2 were dropped"});
  EXPECT_EQ(error_of<InputError>([&] { open(10); }),
            "data.train: no conversation is left of 8: all are longer than model.seq_len = 10; raise it");
}

TEST_F(OpenChats, RefusesWhatIsNoConversation) {
  const std::string path = config_.train.front();
  config_.train = {"0.5 " + path};
  EXPECT_EQ(error_of<ConfigError>([&] { open(); }),
            "data.train = \"0.5 " + path + "\": weights do not go with data.format = chat; name files only");
  write_all(dir_ / "bad.jsonl", "{\"text\": \"a\"}\n[]\n");
  config_.train = {path, (dir_ / "bad.jsonl").string()};
  const std::string text = error_of<InputError>([&] { open(); });
  EXPECT_NE(text.find("[data.train] 2 problems"), std::string::npos) << text;
  EXPECT_NE(text.find("bad.jsonl:2] messages is missing"), std::string::npos) << text;
}

}  // namespace
}  // namespace megalith::data
