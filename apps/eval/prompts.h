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
  std::string name;  ///< of its line in the file, "name"; empty: none
  std::string text;
  std::vector<std::int32_t> ids;
};

/// What a prompt must fit.
struct PromptRules {
  const tokenizer::Tokenizer& tokenizer;
  Index vocab_size = 0;  ///< of the model
  Index seq_len = 0;     ///< tokens at most
};

/// The prompts of a file, one JSON object a line: {"prompt": "text"}, and "name" to tell it by; other members have no
/// meaning. Blank lines are passed over. Throws InputError with everything that is wrong, line by line: not JSON, not
/// UTF-8, no "prompt", an empty one, one above seq_len tokens, ids that the model has not; or a file without prompts.
std::vector<Prompt> read_prompts(io::Fs& fs, const std::string& file, const PromptRules& rules);

/// A prompt of the command line; an empty one is a new document. Throws ConfigError for what does not fit or is
/// not UTF-8.
Prompt one_prompt(const std::string& text, const PromptRules& rules);

}  // namespace megalith::apps
