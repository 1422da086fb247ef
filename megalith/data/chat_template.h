#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/names.h"
#include "megalith/io/fs.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::data {

/// How a conversation is written as tokens.
///   chatml  <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message.
///   llama3  <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|> for each message;
///           white space at both ends of a content is left out.
///   plain   "System: ...", "User: ..." and "Assistant: ..." with a line end between messages. The tokenizer's end of
///           document stands after each answer. It needs no special tokens.
enum class ChatTemplate : std::uint8_t { chatml, llama3, plain };
inline constexpr std::array<std::string_view, 3> kChatTemplateNames = {"chatml", "llama3", "plain"};
/// Stands before the first message of llama3.
inline constexpr std::string_view kLlama3Begin = "<|begin_of_text|>";
/// The template in the form of transformers' apply_chat_template.
std::string_view jinja_of(ChatTemplate chat_template);

/// The template of a tokenizer's folder: chat_template.jinja, else the member chat_template of tokenizer_config.json.
/// Throws InputError, naming the file, if there is none, and if it is not one of ChatTemplate.
ChatTemplate chat_template_of_folder(io::Fs& fs, const io::Path& folder);

enum class ChatRole : std::uint8_t { system, user, assistant };
inline constexpr std::array<std::string_view, 3> kChatRoleNames = {"system", "user", "assistant"};

struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string content;
};
/// Perhaps a system message, then questions and answers in turn.
using Conversation = std::vector<ChatMessage>;

struct ChatTokens {
  std::vector<std::int32_t> ids;
  /// For each id, 1 if it is trained on: the tokens of answers, and the token that ends each of them.
  std::vector<std::uint8_t> loss;
};

/// Writes conversations as tokens of one vocabulary. The text between two special tokens is encoded as a whole, as
/// transformers does. A token that holds both the end of a header and the start of an answer belongs to the answer.
/// Texts of special tokens within a message are text. Any number of threads may use it.
class ChatEncoder {
 public:
  /// Throws ConfigError that names every special token of the template that the vocabulary lacks. Keeps a reference.
  ChatEncoder(ChatTemplate chat_template, const tokenizer::Tokenizer& tokenizer);

  /// Throws InputError, without a place, for a content that can only be written with a token that ends a text.
  ChatTokens encode(std::span<const ChatMessage> messages) const;
  /// The conversation, and the start of an answer that a model continues.
  std::vector<std::int32_t> prompt(std::span<const ChatMessage> messages) const;
  /// The token behind an answer.
  std::int32_t end_of_answer() const { return end_; }
  /// The token in front of a conversation, where the template has one: llama3.
  std::optional<std::int32_t> start_of_text() const;
  /// What stands in front of the answer in the text that a model writes: " " for plain.
  std::string_view before_answer() const { return template_ == ChatTemplate::plain ? " " : ""; }

 private:
  class Writer;
  void write(std::span<const ChatMessage> messages, Writer& writer) const;
  std::int32_t token(std::string_view text) const;
  std::vector<std::int32_t> encode_text(std::string_view text) const;

  ChatTemplate template_;
  const tokenizer::Tokenizer& tokenizer_;
  std::vector<std::int32_t> specials_;  // ids that no text may become
  std::int32_t end_ = -1;
};

}  // namespace megalith::data
