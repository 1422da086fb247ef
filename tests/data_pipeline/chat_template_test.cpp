#include "megalith/data/chat_template.h"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/data/chat_file.h"

#include "tests/io/temp_dir.h"
#include "tests/test_data.h"
#include "tests/tokenizer/tokenizers.h"

// Tokens of conversations, against those of the transformers library (tests/data/chat/README.md).
namespace megalith::data {
namespace {

using ChatIds = std::vector<std::int32_t>;
const io::Path kChatFolder = io::Path(MEGALITH_TEST_DATA) / "chat";
constexpr ChatTemplate kAllChatTemplates[] = {ChatTemplate::chatml, ChatTemplate::llama3, ChatTemplate::plain};

const std::shared_ptr<const tokenizer::Tokenizer>& chat_tokenizer() {
  static const std::shared_ptr<const tokenizer::Tokenizer> tokenizer =
      tokenizer::make_tokenizer("bpe", kChatFolder / "tokenizer", *io::posix_fs());
  return tokenizer;
}

std::string loss_text(const ChatTokens& tokens) {
  std::string text;
  for (const std::uint8_t loss : tokens.loss) text += loss == 0 ? '0' : '1';
  return text;
}

TEST(ChatTemplates, WriteTheTokensOfTransformers) {
  std::ifstream expected(kChatFolder / "expected.jsonl");
  io::FileProblems problems;
  int conversations = 0;
  for_each_conversation(
      *io::posix_fs(), kChatFolder / "conversations.jsonl", 1 << 20, problems, [&](const Conversation& conversation) {
        std::string line;
        ASSERT_TRUE(std::getline(expected, line));
        const nlohmann::json want = nlohmann::json::parse(line);
        ++conversations;
        for (const ChatTemplate one : kAllChatTemplates) {
          const std::string name(kChatTemplateNames[static_cast<std::size_t>(one)]);
          const ChatTokens got = ChatEncoder(one, *chat_tokenizer()).encode(conversation);
          EXPECT_EQ(got.ids, want.at(name).at("ids").get<ChatIds>()) << name << ", line " << conversations;
          EXPECT_EQ(loss_text(got), want.at(name).at("loss")) << name << ", line " << conversations;
        }
      });
  problems.throw_if_any("conversations");
  EXPECT_EQ(conversations, 200);
}

TEST(ChatTemplates, PromptsAreWhatTrainingShowsBeforeAnAnswer) {
  const Conversation question = {{ChatRole::system, "Be short."}, {ChatRole::user, "Name three rivers."}};
  Conversation answered = question;
  answered.push_back({ChatRole::assistant, "Eight."});
  for (const tokenizer::Tokenizer* tokenizer : {chat_tokenizer().get(), tokenizer::bytes().get()}) {
    for (const ChatTemplate one : kAllChatTemplates) {
      if (tokenizer->name() == "byte" && one != ChatTemplate::plain) continue;
      const ChatEncoder encoder(one, *tokenizer);
      const ChatIds prompt = encoder.prompt(question);
      const ChatTokens whole = encoder.encode(answered);
      ASSERT_GT(whole.ids.size(), prompt.size());
      EXPECT_EQ(ChatIds(whole.ids.begin(), whole.ids.begin() + std::ssize(prompt)), prompt);
      EXPECT_EQ(std::ranges::find(whole.loss, 1) - whole.loss.begin(), std::ssize(prompt))
          << "all behind it is trained on";
      ChatIds answer(whole.ids.begin() + std::ssize(prompt), whole.ids.end());
      answer.resize(static_cast<std::size_t>(std::ranges::find(answer, encoder.end_of_answer()) - answer.begin()));
      EXPECT_EQ(tokenizer->decode(answer), std::string(encoder.before_answer()) + "Eight.");
    }
  }
}

TEST(ChatTemplates, NameTheSpecialTokensThatAVocabularyLacks) {
  EXPECT_EQ(error_of<ConfigError>([] { ChatEncoder(ChatTemplate::llama3, *tokenizer::gpt2()); }),
            "data.chat_template = llama3: the gpt2 vocabulary has no special tokens <|begin_of_text|>, "
            "<|start_header_id|>, <|end_header_id|>, <|eot_id|>: must have them; use a vocabulary that does (megalith "
            "tokenizer train --special), or plain");
  EXPECT_NO_THROW(ChatEncoder(ChatTemplate::plain, *tokenizer::gpt2()));
}

class ChatFolder : public ::testing::Test {
 protected:
  std::string refusal() const {
    return error_of<InputError>([&] { chat_template_of_folder(*fs_, dir_.path()); });
  }
  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  TempDir dir_;
};

TEST_F(ChatFolder, SpecialTokensThatTheFilesDoNotCallSpecialAreTextToo) {
  nlohmann::json file = nlohmann::json::parse(std::ifstream(kChatFolder / "tokenizer" / "tokenizer.json"));
  for (nlohmann::json& token : file.at("added_tokens")) token["special"] = false;
  write_all(dir_ / "tokenizer.json", file.dump());
  const auto lax = tokenizer::make_tokenizer("bpe", dir_.path(), *fs_);
  const Conversation conversation = {{ChatRole::user, "a<|im_end|>b<|im_start|><|endoftext|>"},
                                     {ChatRole::assistant, "<|im_end|>"}};
  ASSERT_EQ(lax->encode("<|im_end|>").size(), 1u) << "that tokenizer recognises it in text";
  const ChatTokens tokens = ChatEncoder(ChatTemplate::chatml, *lax).encode(conversation);
  const auto count = [&](std::string_view text) { return std::ranges::count(tokens.ids, lax->encode(text).front()); };
  EXPECT_EQ(count("<|im_start|>"), 2);
  EXPECT_EQ(count("<|im_end|>"), 2);
  EXPECT_EQ(count("<|endoftext|>"), 0);
  EXPECT_EQ(lax->decode(tokens.ids),
            "<|im_start|>user\na<|im_end|>b<|im_start|><|endoftext|><|im_end|>\n<|im_start|>assistant\n<|im_end|>"
            "<|im_end|>\n");
  EXPECT_EQ(std::ranges::find(tokens.loss, 1) - tokens.loss.begin(),
            std::ssize(ChatEncoder(ChatTemplate::chatml, *lax).prompt(std::span(conversation).first(1))));
}

TEST_F(ChatFolder, ATextThatIsTheEndOfDocumentIsRefused) {
  const ChatEncoder encoder(ChatTemplate::plain, *tokenizer::bytes());
  const Conversation zero = {{ChatRole::user, std::string("a\0b", 3)}, {ChatRole::assistant, "c"}};
  EXPECT_EQ(error_of<InputError>([&] { encoder.encode(zero); }),
            "a message has the text \"\\x00\", which the byte tokenizer writes as a token that ends texts: must not "
            "occur; remove it");
}

TEST_F(ChatFolder, TheTemplateOfAFolderMustBeOneOfTheThree) {
  EXPECT_EQ(refusal(), "[" + dir_.path().string() +
                           "] has no chat template (chat_template.jinja, tokenizer_config.json): set "
                           "data.chat_template (--chat-template) to chatml, llama3 or plain");
  for (const ChatTemplate one : kAllChatTemplates) {
    const io::Path file = kChatFolder / (std::string(kChatTemplateNames[static_cast<std::size_t>(one)]) + ".jinja");
    const std::string text(fs_->map(file).text());
    EXPECT_EQ(jinja_of(one), text);
    write_all(dir_ / "tokenizer_config.json", nlohmann::json{{"chat_template", text + "\n"}}.dump());
    EXPECT_EQ(chat_template_of_folder(*fs_, dir_.path()), one);
    write_all(dir_ / "tokenizer_config.json",
              nlohmann::json{
                  {"chat_template", {{{"name", "rag"}, {"template", "x"}}, {{"name", "default"}, {"template", text}}}}}
                  .dump());
    EXPECT_EQ(chat_template_of_folder(*fs_, dir_.path()), one);
  }
  write_all(dir_ / "chat_template.jinja", "{{ bos_token }}{% for m in messages %}other");
  EXPECT_EQ(refusal(),
            "[" + dir_.path().string() +
                "] the template of chat_template.jinja (\"{{ bos_token }}{% for m in messages %}ot...\") is "
                "none of chatml, llama3 and plain: set data.chat_template (--chat-template) to chatml, llama3 "
                "or plain");
}

}  // namespace
}  // namespace megalith::data
