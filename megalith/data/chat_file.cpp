#include "megalith/data/chat_file.h"

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/document_reader.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

namespace megalith::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// One of the two forms of a line.
struct ChatForm {
  std::string_view list, role, content;
  std::array<std::string_view, 3> roles;  // in the order of ChatRole
  std::string_view roles_text;
};
constexpr ChatForm kForms[] = {
    {"messages", "role", "content", kChatRoleNames, "system, user or assistant"},
    {"conversations", "from", "value", {"system", "human", "gpt"}, "system, human or gpt"},
};

/// Reads the messages of one line. Its errors name the member.
class MessageReader {
 public:
  MessageReader(const ChatLine& line, const ChatForm& form) : line_(line), form_(form) {}

  Conversation read(const nlohmann::json& list) const {
    if (!list.is_array() || list.empty())
      fail(str(form_.list), list,
           str("must be a list of messages, as [{\"", form_.role, "\": \"", form_.roles[1], "\", \"", form_.content,
               "\": \"...\"}, ...]"));
    Conversation messages;
    for (std::size_t i = 0; i < list.size(); ++i) {
      messages.push_back(message(list[i], str(form_.list, '[', i, ']')));
      check_order(messages, list[i]);
    }
    if (messages.back().role != ChatRole::assistant) {
      const bool has_answer =
          std::ranges::any_of(messages, [](const ChatMessage& message) { return message.role == ChatRole::assistant; });
      throw InputError(str(
          place(), form_.list, " has ", has_answer ? "no answer to its last message" : "no message of the assistant",
          ": must end with ", form_.role, " = \"", form_.roles[2], "\"; leave out what has no answer"));
    }
    return messages;
  }

 private:
  std::string place() const { return str("[", line_.file, ":", line_.number, "] "); }
  [[noreturn]] void fail(const std::string& key, const nlohmann::json& value, std::string_view rule) const {
    constexpr std::size_t kShown = 40;
    std::string shown = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (shown.size() > kShown) shown = shown.substr(0, kShown) + "...";
    throw InputError(str(place(), key, " = ", io::printable(shown), ": ", rule));
  }

  /// The member `key` of a message, a text.
  std::string member(const nlohmann::json& message, const std::string& where, std::string_view key,
                     std::string_view fix) const {
    const auto found = message.find(key);
    if (found == message.end()) throw InputError(str(place(), where, ".", key, " is missing: ", fix));
    if (!found->is_string()) fail(str(where, ".", key), *found, str("must be a text; ", fix));
    return found->get<std::string>();
  }

  ChatMessage message(const nlohmann::json& json, const std::string& where) const {
    if (!json.is_object())
      fail(where, json, str("must be an object with the members ", form_.role, " and ", form_.content));
    const std::string role = member(json, where, form_.role, str("give ", form_.roles_text));
    const std::optional<ChatRole> known = enumerator_of<ChatRole>(form_.roles, role);
    if (!known) {
      fail(str(where, ".", form_.role), json.at(form_.role),
           str("must be ", form_.roles_text, "; leave out messages of others, such as tools"));
    }
    return {*known, member(json, where, form_.content, "give the text of the message, and leave out calls and images")};
  }

  /// Throws InputError if the last message may not stand behind those before it.
  void check_order(const Conversation& messages, const nlohmann::json& json) const {
    const std::size_t last = messages.size() - 1;
    const ChatRole role = messages[last].role;
    const bool follows_question = last > 0 && messages[last - 1].role == ChatRole::user;
    std::string_view rule;
    if (role == ChatRole::system && last > 0) rule = "a system message must be the first, and there may be one";
    if (role == ChatRole::user && follows_question) rule = "two questions in a row: must take turns; join the two";
    if (role == ChatRole::assistant && !follows_question)
      rule = "must follow a question; leave it out, or join two answers in a row";
    if (!rule.empty()) fail(str(form_.list, '[', last, "].", form_.role), json.at(form_.role), rule);
  }

  const ChatLine& line_;
  const ChatForm& form_;
};

}  // namespace

Conversation read_conversation(const ChatLine& line) {
  const nlohmann::json json = io::read_json(line.json, {.name = line.file, .first_line = line.number});
  const std::string place = str("[", line.file, ":", line.number, "] ");
  const ChatForm* form = nullptr;
  for (const ChatForm& known : kForms) {
    if (!json.is_object() || !json.contains(known.list)) continue;
    if (form != nullptr) throw InputError(place + "has messages and conversations: must have one of them; remove one");
    form = &known;
  }
  if (form == nullptr)
    throw InputError(place +
                     "messages is missing: must be an object with the member messages, or ShareGPT's conversations");
  return MessageReader(line, *form).read(json.at(form->list));
}

void use_conversation(const ChatLine& line, io::FileProblems& problems,
                      const std::function<void(const Conversation&)>& use) {
  if (line.json.find_first_not_of(" \t\r") == std::string_view::npos) return;
  try {
    const Conversation conversation = read_conversation(line);
    try {
      use(conversation);
    } catch (InputError& error) {
      error.put_in_front(str("[", line.file, ":", line.number, "] "));
      throw;
    }
  } catch (const InputError& error) {
    problems.add(error.what());
  }
}

void for_each_conversation(io::Fs& fs, const io::Path& file, std::size_t max_line, io::FileProblems& problems,
                           const std::function<void(const Conversation&)>& use) {
  DocumentReader reader(fs, file, {.format = CorpusFormat::json_lines, .max_document_bytes = max_line});
  const std::string name = file.string();
  while (const std::optional<DocumentBlock> block = reader.next()) {
    for (const RawDocument& document : block->documents) {
      std::string_view json = document.bytes;
      if (document.line == 1 && json.starts_with(kByteOrderMark)) json.remove_prefix(kByteOrderMark.size());
      use_conversation({.json = json, .file = name, .number = document.line}, problems, use);
    }
  }
}

}  // namespace megalith::data
