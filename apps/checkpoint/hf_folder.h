#pragma once
#include <memory>
#include <string>

#include "megalith/config/run_config.h"
#include "megalith/io/fs.h"
#include "megalith/model/model_config.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::apps {

/// The tokenizer of a folder. Without one: why it is missing or cannot be used.
struct ImportedTokenizer {
  std::string name;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::string warning;
};

/// GPT-2's own vocabulary must be usable. An unusable one of another family is left out with a warning, as the model
/// works without it.
ImportedTokenizer find_tokenizer(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model);

/// The keys of the model of a folder, as a recipe gives them: sections [model], [moe], [bert].
config::RunConfig keys_of(const model::ModelConfig& model);

}  // namespace megalith::apps
