#include "megalith/data/chat_template.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/reader.h"

namespace megalith::data {
namespace {

constexpr std::string_view kChatmlJinja =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
constexpr std::string_view kLlama3Jinja =
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 "
    "%}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
constexpr std::string_view kPlainJinja =
    "{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}{{ {'system': 'System', 'user': 'User', "
    "'assistant': 'Assistant'}[message['role']] + ': ' + message['content'] }}{% if message['role'] == 'assistant' "
    "%}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '\nAssistant:' }}{% endif %}";

constexpr std::string_view kTurn = "<|im_start|>", kTurnEnd = "<|im_end|>";
constexpr std::string_view kHeader = "<|start_header_id|>", kHeaderEnd = "<|end_header_id|>",
                           kMessageEnd = "<|eot_id|>";

std::vector<std::string_view> special_texts(ChatTemplate chat_template) {
  switch (chat_template) {
    case ChatTemplate::chatml:
      return {kTurn, kTurnEnd};
    case ChatTemplate::llama3:
      return {kLlama3Begin, kHeader, kHeaderEnd, kMessageEnd};
    case ChatTemplate::plain:
      return {};
  }
  return {};
}

/// As Python's str.strip() decides, which Jinja's filter `trim` calls.
bool is_trimmed(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

struct FirstCharacter {
  char32_t value;
  std::size_t size;
};
/// The text must be UTF-8 and not empty.
FirstCharacter first_character(std::string_view text) {
  const std::size_t size = std::min(utf8_front(text).length, text.size());
  const auto lead = static_cast<unsigned char>(text[0]);
  char32_t value = size == 1 ? lead : lead & (0xFFU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) value = value << 6 | (static_cast<unsigned char>(text[i]) & 0x3FU);
  return {value, size};
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty()) {
    const FirstCharacter first = first_character(text);
    if (!is_trimmed(first.value)) break;
    text.remove_prefix(first.size);
  }
  while (!text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80) --begin;
    if (!is_trimmed(first_character(text.substr(begin)).value)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::string_view without_last_line_end(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

[[noreturn]] void throw_no_template(const io::Path& folder, std::string_view found) {
  throw InputError(
      str("[", folder.string(), "] ", found, ": set data.chat_template (--chat-template) to chatml, llama3 or plain"));
}

/// The text of the template of tokenizer_config.json; nothing if it has none.
std::optional<std::string> configured_template(io::Fs& fs, const io::Path& file) {
  if (!fs.exists(file)) return std::nullopt;
  const nlohmann::json config = io::read_json(fs.map(file).text(), {.name = file.string()});
  if (!config.is_object() || !config.contains("chat_template")) return std::nullopt;
  const nlohmann::json& value = config.at("chat_template");
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return std::nullopt;
  for (const nlohmann::json& entry : value) {
    const bool is_text = entry.is_object() && entry.contains("template") && entry.at("template").is_string();
    if (is_text && entry.contains("name") && entry.at("name") == "default") return entry.at("template");
  }
  return std::nullopt;
}

}  // namespace

std::string_view jinja_of(ChatTemplate chat_template) {
  switch (chat_template) {
    case ChatTemplate::chatml:
      return kChatmlJinja;
    case ChatTemplate::llama3:
      return kLlama3Jinja;
    case ChatTemplate::plain:
      return kPlainJinja;
  }
  return {};
}

ChatTemplate chat_template_of_folder(io::Fs& fs, const io::Path& folder) {
  if (folder.empty())
    throw InputError("no chat template is set (data.chat_template, --chat-template): must be chatml, llama3 or plain");
  const io::Path jinja = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  const bool is_file = fs.exists(jinja);
  const std::optional<std::string> text =
      is_file ? std::optional(std::string(fs.map(jinja).text())) : configured_template(fs, config);
  if (!text) throw_no_template(folder, "has no chat template (chat_template.jinja, tokenizer_config.json)");
  for (std::size_t i = 0; i < kChatTemplateNames.size(); ++i) {
    const auto known = static_cast<ChatTemplate>(i);
    if (without_last_line_end(*text) == without_last_line_end(jinja_of(known))) return known;
  }
  throw_no_template(
      folder, str("the template of ", (is_file ? jinja : config).filename().string(), " (\"",
                  io::printable(std::string_view(*text).substr(0, 40)), "...\") is none of chatml, llama3 and plain"));
}

/// Collects tokens. Text waits until the next special token, as it is encoded as a whole.
class ChatEncoder::Writer {
 public:
  explicit Writer(const ChatEncoder& encoder) : encoder_(encoder) {}

  void text(std::string_view more) { text_ += more; }
  /// Text up to the next special token is an answer.
  void begin_answer() { answer_ = text_.size(); }
  void special(std::int32_t id) {
    const bool ends_answer = answer_.has_value();
    flush();
    append({&id, 1}, ends_answer);
  }
  ChatTokens finish() {
    flush();
    return std::move(tokens_);
  }

 private:
  void flush() {
    const std::vector<std::int32_t> ids = encoder_.encode_text(text_);
    std::size_t header = ids.size();
    if (answer_) {
      const std::vector<std::int32_t> alone = encoder_.encode_text(std::string_view(text_).substr(0, *answer_));
      header = static_cast<std::size_t>(std::ranges::mismatch(ids, alone).in1 - ids.begin());
    }
    append(std::span(ids).first(header), false);
    append(std::span(ids).subspan(header), true);
    text_.clear();
    answer_.reset();
  }
  void append(std::span<const std::int32_t> ids, bool has_loss) {
    tokens_.ids.insert(tokens_.ids.end(), ids.begin(), ids.end());
    tokens_.loss.resize(tokens_.ids.size(), has_loss ? 1 : 0);
  }

  const ChatEncoder& encoder_;
  std::string text_;
  std::optional<std::size_t> answer_;  // where it begins in text_
  ChatTokens tokens_;
};

ChatEncoder::ChatEncoder(ChatTemplate chat_template, const tokenizer::Tokenizer& tokenizer)
    : template_(chat_template), tokenizer_(tokenizer), end_(tokenizer.end_of_document()) {
  std::string missing;
  for (const std::string_view text : special_texts(chat_template)) {
    specials_.push_back(token(text));
    if (specials_.back() < 0) missing += str(missing.empty() ? "" : ", ", text);
  }
  const std::string name(kChatTemplateNames[static_cast<std::size_t>(chat_template)]);
  if (!missing.empty()) {
    throw ConfigError(
        str("data.chat_template = ", name, ": the ", tokenizer.name(), " vocabulary has no special tokens ", missing,
            ": must have them; use a vocabulary that does (megalith tokenizer train --special), or plain"));
  }
  if (chat_template != ChatTemplate::plain) end_ = specials_.back();
  specials_.push_back(tokenizer.end_of_document());
}

std::optional<std::int32_t> ChatEncoder::start_of_text() const {
  if (template_ != ChatTemplate::llama3) return std::nullopt;
  return specials_[0];
}

std::int32_t ChatEncoder::token(std::string_view text) const {
  for (const std::int32_t id : tokenizer_.added_tokens())
    if (tokenizer_.token_bytes(id) == text) return id;
  return -1;
}

/// Tokens that a tokenizer.json does not call special are recognised in text. So where one of them comes out, its text
/// is cut behind its first character, and the parts are encoded one by one.
std::vector<std::int32_t> ChatEncoder::encode_text(std::string_view text) const {
  const auto has_special = [&](std::span<const std::int32_t> ids) {
    return std::ranges::find_first_of(ids, specials_) != ids.end();
  };
  std::vector<std::int32_t> ids = tokenizer_.encode(text);
  if (!has_special(ids)) return ids;
  ids.clear();
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size(); at += first_character(text.substr(at)).size) {
    const bool is_token = std::ranges::any_of(
        specials_, [&](std::int32_t id) { return text.substr(at).starts_with(tokenizer_.token_bytes(id)); });
    if (!is_token) continue;
    const std::size_t end = at + first_character(text.substr(at)).size;
    tokenizer_.encode(text.substr(begin, end - begin), ids);
    begin = end;
  }
  tokenizer_.encode(text.substr(begin), ids);
  if (has_special(ids)) {
    const auto found = std::ranges::find_first_of(ids, specials_);
    throw InputError(str("a message has the text \"", io::printable(tokenizer_.token_bytes(*found)), "\", which the ",
                         tokenizer_.name(), " tokenizer writes as a token that ends texts: must not occur; remove it"));
  }
  return ids;
}

void ChatEncoder::write(std::span<const ChatMessage> messages, Writer& out) const {
  constexpr std::array<std::string_view, 3> kLabels = {"System:", "User:", "Assistant:"};
  if (template_ == ChatTemplate::llama3) out.special(specials_[0]);
  for (const ChatMessage& message : messages) {
    const std::string_view role = kChatRoleNames[static_cast<std::size_t>(message.role)];
    const bool is_answer = message.role == ChatRole::assistant;
    switch (template_) {
      case ChatTemplate::chatml:
        out.special(specials_[0]);
        out.text(str(role, '\n'));
        if (is_answer) out.begin_answer();
        out.text(message.content);
        out.special(end_);
        out.text("\n");
        break;
      case ChatTemplate::llama3:
        out.special(specials_[1]);
        out.text(role);
        out.special(specials_[2]);
        out.text("\n\n");
        if (is_answer) out.begin_answer();
        out.text(trimmed(message.content));
        out.special(end_);
        break;
      case ChatTemplate::plain:
        if (&message != &messages.front()) out.text("\n");
        out.text(kLabels[static_cast<std::size_t>(message.role)]);
        if (is_answer) out.begin_answer();
        out.text(str(' ', message.content));
        if (is_answer) out.special(end_);
        break;
    }
  }
}

ChatTokens ChatEncoder::encode(std::span<const ChatMessage> messages) const {
  Writer out(*this);
  write(messages, out);
  return out.finish();
}

std::vector<std::int32_t> ChatEncoder::prompt(std::span<const ChatMessage> messages) const {
  Writer out(*this);
  write(messages, out);
  switch (template_) {
    case ChatTemplate::chatml:
      out.special(specials_[0]);
      out.text("assistant\n");
      break;
    case ChatTemplate::llama3:
      out.special(specials_[1]);
      out.text("assistant");
      out.special(specials_[2]);
      out.text("\n\n");
      break;
    case ChatTemplate::plain:
      out.text("\nAssistant:");
      break;
  }
  return out.finish().ids;
}

}  // namespace megalith::data
