#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "megalith/data/chat_template.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/fs.h"

namespace megalith::data {

/// A line of a file of conversations.
struct ChatLine {
  std::string_view json, file;
  std::uint64_t number = 1;  ///< counted from 1
};

/// The conversation of a line, an object with one of these members; others have no meaning:
///   "messages"       [{"role": "system"|"user"|"assistant", "content": "text"}, ...]
///   "conversations"  [{"from": "system"|"human"|"gpt", "value": "text"}, ...], as ShareGPT
/// A system message may come first. Then the user and the assistant speak in turn, the user first and the assistant
/// last. Throws InputError "[FILE:LINE] KEY = VALUE: RULE".
Conversation read_conversation(const ChatLine& line);

/// Calls use() for the conversation of each line that is not blank. Adds a problem for each bad line, and for each
/// InputError of use(), to which file and line are added.
void for_each_conversation(io::Fs& fs, const io::Path& file, std::size_t max_line, io::FileProblems& problems,
                           const std::function<void(const Conversation&)>& use);
/// The same of one line.
void use_conversation(const ChatLine& line, io::FileProblems& problems,
                      const std::function<void(const Conversation&)>& use);

}  // namespace megalith::data
