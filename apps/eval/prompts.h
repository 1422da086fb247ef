#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::apps {

/// A text to continue.
struct Prompt {
  std::string name;  ///< "name" of its line in the file; empty: none
  std::string text;
  std::vector<std::int32_t> ids;
};

/// Limits of a prompt.
struct PromptRules {
  const tokenizer::Tokenizer& tokenizer;
  Index vocab_size = 0;  ///< the model's
  Index seq_len = 0;     ///< tokens at most
};

/// Reads the prompts of a file, one JSON object per line: {"prompt": "text"}, and optionally "name". Other members and
/// blank lines are ignored. Throws InputError for a file without prompts, and with all problems of lines: no JSON,
/// no UTF-8, no "prompt", an empty one, one above seq_len tokens, unknown ids.
std::vector<Prompt> read_prompts(io::Fs& fs, const std::string& file, const PromptRules& rules);

/// A prompt of the command line. An empty one is a new document. Throws ConfigError for a prompt above the limits or
/// not in UTF-8.
Prompt one_prompt(const std::string& text, const PromptRules& rules);

}  // namespace megalith::apps
