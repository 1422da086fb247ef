#include "apps/program/vocabulary.h"

#include <filesystem>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::apps {

io::Path shipped_vocabulary(io::Fs& fs, std::string_view tokenizer) {
  std::error_code failed;
  const io::Path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  for (io::Path folder = program; folder.has_relative_path(); folder = folder.parent_path()) {
    for (const char* place : {"share/megalith", "share"}) {
      if (tokenizer::has_vocabulary(fs, folder.parent_path() / place / tokenizer))
        return folder.parent_path() / place / tokenizer;
    }
  }
  throw ConfigError(str("data.vocab_dir is not set, and there is no share/megalith/", tokenizer, " or share/",
                        tokenizer, " with its vocabulary in any folder above ", program.string(),
                        ": name a folder with ", tokenizer::vocabulary_file_names(tokenizer)));
}

io::Path vocabulary_folder(io::Fs& fs, std::string_view tokenizer, const std::string& vocab_dir) {
  const bool is_shipped = tokenizer == "gpt2" || tokenizer.starts_with("bert-");
  return vocab_dir.empty() && is_shipped ? shipped_vocabulary(fs, tokenizer) : io::Path(vocab_dir);
}

config::CountIds count_ids(io::Fs& fs) {
  return [&fs](const std::string& tokenizer, const std::string& vocab_dir) {
    return tokenizer::count_ids(tokenizer, vocabulary_folder(fs, tokenizer, vocab_dir), fs);
  };
}

std::shared_ptr<const tokenizer::Tokenizer> open_tokenizer(io::Fs& fs, std::string_view tokenizer,
                                                           const std::string& vocab_dir) {
  return tokenizer::make_tokenizer(tokenizer, vocabulary_folder(fs, tokenizer, vocab_dir), fs);
}

}  // namespace megalith::apps
