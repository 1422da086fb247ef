#include "apps/checkpoint/hf_folder.h"

#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/save_protocol.h"
#include "megalith/tokenizer/vocabulary_files.h"

namespace megalith::apps {
namespace {

constexpr Index kBytes = 256;  // the vocabulary of the byte tokenizer

/// Tokenizers that the folder may have, the likeliest first.
std::vector<std::string> possible_tokenizers(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model) {
  if (model.vocab_size == kBytes) return {"byte"};
  if (model.family == "gpt2") return {"gpt2"};
  if (!fs.exists(folder / "tokenizer.model")) return {"bpe"};
  if (!fs.exists(folder / "tokenizer.json")) return {"sentencepiece"};
  return {"bpe", "sentencepiece"};  // Llama 2's tokenizer.json is of another kind; its source is next to it
}

}  // namespace

bool is_hf_folder(io::Fs& fs, const io::Path& folder) {
  return fs.exists(folder / "config.json") && !fs.exists(folder / io::kManifestName) &&
         !fs.is_dir(folder / "checkpoints");
}

ImportedTokenizer find_tokenizer(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model) {
  const std::vector<std::string> names = possible_tokenizers(fs, folder, model);
  ImportedTokenizer found{.name = names.front(), .tokenizer = {}, .warning = {}};
  if (found.name != "byte" && !tokenizer::has_vocabulary(fs, folder)) {
    found.warning = str(folder.string(), " holds no tokenizer (vocab.json and merges.txt, or tokenizer.json)");
    return found;
  }
  for (const std::string& name : names) {
    try {
      const auto tokenizer = tokenizer::make_tokenizer(name, folder, fs);
      if (tokenizer->vocab_size() <= model.vocab_size || name == "gpt2") return {name, tokenizer, {}};
      found.warning = str("the tokenizer of ", folder.string(), " has ", tokenizer->vocab_size(),
                          " ids, more than config.json's vocab_size = ", model.vocab_size);
    } catch (const Error& error) {
      if (name == "gpt2" || error.code() == ExitCode::io) throw;
      if (found.warning.empty())
        found.warning = str("the tokenizer of ", folder.string(), " cannot be used: ", error.what());
    }
  }
  return found;
}

}  // namespace megalith::apps
