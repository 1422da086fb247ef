#pragma once
#include <memory>
#include <string>

#include "megalith/io/fs.h"
#include "megalith/model/model_config.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::apps {

/// Whether a folder is a model as the transformers library keeps it: it has config.json and no checkpoint.
bool is_hf_folder(io::Fs& fs, const io::Path& folder);

/// The tokenizer of a folder; none: what is missing or cannot be used.
struct ImportedTokenizer {
  std::string name;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::string warning;
};

/// GPT-2's own vocabulary must be usable. One of another family that this program cannot use is left out, with a
/// warning: a model is of use without it.
ImportedTokenizer find_tokenizer(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model);

}  // namespace megalith::apps
