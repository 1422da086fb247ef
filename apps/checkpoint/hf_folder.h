#pragma once
#include <memory>
#include <string>

#include "megalith/io/fs.h"
#include "megalith/model/model_config.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::apps {

/// Whether a folder is a model of the transformers library: it has config.json and no checkpoint.
bool is_hf_folder(io::Fs& fs, const io::Path& folder);

/// The tokenizer of a folder. Without one: why it is missing or cannot be used.
struct ImportedTokenizer {
  std::string name;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::string warning;
};

/// GPT-2's own vocabulary must be usable. An unusable one of another family is left out with a warning, as the model
/// works without it.
ImportedTokenizer find_tokenizer(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model);

}  // namespace megalith::apps
