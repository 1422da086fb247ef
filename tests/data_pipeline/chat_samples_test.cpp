#include "megalith/data/chat_samples.h"

#include <set>
#include <utility>

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

/// A conversation that takes `size` tokens of a sample.
ChatTokens chat_of(std::size_t size, std::int32_t first) { return numbered_chat(first, std::string(size, '0') + '1'); }

TEST(ChatPacking, PutsTheLongestFirstWhereTheyFitBest) {
  std::vector<ChatTokens> chats;
  std::int32_t first = 0;
  for (const std::size_t size : {3, 6, 4, 2, 7, 1, 5})
    chats.push_back(chat_of(size, std::exchange(first, first + 100)));
  const ChatSamples packed("a", chats, 10, ChatTooLong::cut, ChatPacking::on);
  // 7 opens one, 6 and 5 others; 4 fits that of 6 best, 3 that of 7; 2 and 1 that of 5.
  ASSERT_EQ(packed.count(), 3);
  EXPECT_EQ(packed.conversations(), 7);
  EXPECT_EQ(packed.num_tokens(), 28);
  EXPECT_EQ(sample_of(packed, 0), std::pair(SampleIds({0, 1, 2, 400, 401, 402, 403, 404, 405, 406}),
                                            SampleIds({-1, -1, 3, -1, -1, -1, -1, -1, -1, 407})));
  EXPECT_EQ(sample_of(packed, 2).first, SampleIds({300, 301, 500, 600, 601, 602, 603, 604, 0, 0}));
  EXPECT_EQ(sample_of(packed, 2).second, SampleIds({-1, 302, 501, -1, -1, -1, -1, 605, -1, -1}));
  SampleIds begin(10), positions(10);
  packed.put_documents(2, {begin, positions});
  EXPECT_EQ(begin, SampleIds({0, 0, 2, 3, 3, 3, 3, 3, 8, 9}));
  EXPECT_EQ(positions, SampleIds({0, 1, 0, 0, 1, 2, 3, 4, 0, 0}));
}

TEST(ChatPacking, LosesNothingAndFillsSamples) {
  std::vector<ChatTokens> chats;
  std::multiset<SampleIds> want, got;
  std::uint32_t drawn = 1;
  for (std::int32_t i = 0; i < 2000; ++i) {
    drawn = drawn * 1664525 + 1013904223;
    chats.push_back(chat_of(20 + drawn / 65536 % 480, 10000 * i));
    want.insert(SampleIds(chats.back().ids.begin(), chats.back().ids.end() - 1));
  }
  const ChatSamples packed("a", chats, 1024, ChatTooLong::cut, ChatPacking::on);
  SampleIds begin(1024), positions(1024);
  for (Index i = 0; i < packed.count(); ++i) {
    const SampleIds tokens = sample_of(packed, i).first;
    packed.put_documents(i, {begin, positions});
    for (std::size_t at = 0; at < 1024;) {
      std::size_t end = at + 1;
      while (end < 1024 && begin[end] == begin[at]) ++end;
      const bool is_padding = end == at + 1 && tokens[at] == 0;
      if (!is_padding)
        got.insert(SampleIds(tokens.begin() + static_cast<Index>(at), tokens.begin() + static_cast<Index>(end)));
      at = end;
    }
  }
  EXPECT_EQ(got, want);
  EXPECT_GT(packed.num_tokens() * 100, packed.count() * 1024 * 99) << "over 99 % are filled";
}

TEST(ChatPacking, IsInTheFingerprintWhereItPacks) {
  const std::vector<ChatTokens> small = {chat_of(4, 0), chat_of(5, 100)}, large = {chat_of(6, 0), chat_of(6, 100)};
  const auto fingerprint = [](const std::vector<ChatTokens>& chats, ChatPacking packing, Index seq_len = 10) {
    return ChatSamples("a", chats, seq_len, ChatTooLong::cut, packing).fingerprint();
  };
  EXPECT_NE(fingerprint(small, ChatPacking::on), fingerprint(small, ChatPacking::off));
  EXPECT_EQ(fingerprint(large, ChatPacking::on), fingerprint(large, ChatPacking::off));
  EXPECT_NE(fingerprint(large, ChatPacking::on), fingerprint(large, ChatPacking::on, 20));
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
  EXPECT_EQ(open(100).notes.packed,
            std::vector<std::string>{"data.train: 8 conversations are packed into 2 samples of "
                                     "model.seq_len = 100 tokens, of which 92 % are not padding"});
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

TEST_F(OpenChats, ATemplateThatDoesNotFitHidesNoBadLine) {
  write_all(dir_ / "bad.jsonl", "{}\n");
  write_all(dir_ / "worse.jsonl", "1\n");
  config_.train.push_back((dir_ / "bad.jsonl").string());
  config_.valid = {(dir_ / "worse.jsonl").string()};
  for (const auto& [name, rule] : {std::pair{"chatml", "has no special tokens <|im_start|>, <|im_end|>"},
                                   {"", "data.chat_template is not set: must be"}}) {
    config_.chat_template = name;
    const std::string text = error_of<ConfigError>([&] { open(); });
    for (const char* part : {rule, "\n[data.train, data.valid] 2 problems\n", "bad.jsonl:1] messages is missing",
                             "worse.jsonl:1] messages is missing"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  config_.train.pop_back();
  config_.valid.clear();
  EXPECT_EQ(error_of<ConfigError>([&] { open(); }), "data.chat_template is not set: must be chatml, llama3 or plain");
}

TEST_F(OpenChats, RefusesTheFilesOfBothKeysTogether) {
  write_all(dir_ / "bad.jsonl", "{}\n");
  write_all(dir_ / "worse.jsonl", "1\n");
  config_.train = {(dir_ / "bad.jsonl").string(), (dir_ / "none.jsonl").string()};
  config_.valid = {(dir_ / "worse.jsonl").string(), config_.train.front()};
  const std::string text = error_of<InputError>([&] { open(); });
  EXPECT_TRUE(text.starts_with("[data.train, data.valid] 4 problems\n")) << text;
  for (const char* part : {"bad.jsonl:1] messages is missing", "[data.train] ", "none.jsonl: there is no such file",
                           "worse.jsonl:1] messages is missing"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace
}  // namespace megalith::data
