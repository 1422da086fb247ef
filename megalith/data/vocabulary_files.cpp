#include "megalith/data/vocabulary_files.h"

#include "megalith/data/bpe_vocabulary.h"

namespace megalith::data {

bool has_vocabulary(io::Fs& fs, const io::Path& vocab_dir) {
  for (const char* name : {"encoder.json", "vocab.json", "tokenizer.json"}) {
    if (fs.exists(vocab_dir / name)) return true;
  }
  return false;
}

VocabularyFiles read_vocabulary_files(io::Fs& fs, std::string_view tokenizer, const io::Path& vocab_dir) {
  std::vector<VocabularyFile> files;
  const auto add = [&](const char* name, const io::Path& path) {
    files.push_back({name, std::string(fs.map(path).text())});
  };
  if (tokenizer == "gpt2") {
    const VocabularyPaths paths = vocabulary_paths(fs, vocab_dir);
    if (paths.merges.empty()) {
      add("tokenizer.json", paths.tokens);
    } else {
      add("vocab.json", paths.tokens);
      add("merges.txt", paths.merges);
    }
  }
  return std::make_shared<const std::vector<VocabularyFile>>(std::move(files));
}

}  // namespace megalith::data
