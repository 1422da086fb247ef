#include "apps/vocabulary.h"

#include <filesystem>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::apps {

io::Path shipped_vocabulary(io::Fs& fs) {
  std::error_code failed;
  const io::Path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  for (io::Path folder = program; folder.has_relative_path(); folder = folder.parent_path()) {
    for (const char* place : {"share/megalith/gpt2", "share/gpt2"}) {
      if (data::has_vocabulary(fs, folder.parent_path() / place)) return folder.parent_path() / place;
    }
  }
  throw ConfigError(
      str("data.vocab_dir is not set, and there is no share/megalith/gpt2 or share/gpt2 with GPT-2's "
          "vocabulary in any folder above ",
          program.string(), ": name a folder with encoder.json and vocab.bpe"));
}

io::Path vocabulary_folder(io::Fs& fs, std::string_view tokenizer, const std::string& vocab_dir) {
  return vocab_dir.empty() && tokenizer == "gpt2" ? shipped_vocabulary(fs) : io::Path(vocab_dir);
}

std::shared_ptr<const data::Tokenizer> open_tokenizer(io::Fs& fs, std::string_view tokenizer,
                                                      const std::string& vocab_dir) {
  return data::make_tokenizer(tokenizer, vocabulary_folder(fs, tokenizer, vocab_dir), fs);
}

}  // namespace megalith::apps
