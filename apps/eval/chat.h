#pragma once
#include <string>

#include "megalith/eval/generate.h"

#include "apps/eval/inference.h"

namespace megalith::apps {

/// Options of `generate --chat`.
struct ChatOptions {
  InferenceOptions model;
  std::string vocab_dir, format;
  std::string system;         ///< empty: no system message
  std::string chat_template;  ///< empty: that of the checkpoint's training, else of the tokenizer's folder
  eval::GenerateOptions drawing;
};

/// Answers each line of standard input, one after the other, and keeps the conversation. The oldest questions are left
/// out with their answers where the window gets too small; the system message stays.
void run_chat(const ChatOptions& options);

}  // namespace megalith::apps
