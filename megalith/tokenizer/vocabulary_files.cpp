#include "megalith/tokenizer/vocabulary_files.h"

#include "megalith/tokenizer/bpe_vocabulary.h"
#include "megalith/tokenizer/sentencepiece.h"
#include "megalith/tokenizer/wordpiece.h"

namespace megalith::tokenizer {

bool has_vocabulary(io::Fs& fs, const io::Path& vocab_dir) {
  for (const char* name : {"encoder.json", "vocab.json", "vocab.txt", "tokenizer.json", "tokenizer.model"}) {
    if (fs.exists(vocab_dir / name)) return true;
  }
  return false;
}

std::string_view vocabulary_file_names(std::string_view tokenizer) {
  if (tokenizer.starts_with("bert-")) return "vocab.txt or tokenizer.json";
  if (tokenizer == "sentencepiece") return "tokenizer.model";
  return "tokenizer.json, or encoder.json and vocab.bpe,";
}

VocabularyFiles read_vocabulary_files(io::Fs& fs, std::string_view tokenizer, const io::Path& vocab_dir) {
  std::vector<VocabularyFile> files;
  const auto add = [&](const char* name, const io::Path& path) {
    files.push_back({name, std::string(fs.map(path).text())});
  };
  if (tokenizer.starts_with("bert-")) {
    const io::Path path = wordpiece_path(fs, tokenizer, vocab_dir);
    add(path.extension() == ".json" ? "tokenizer.json" : "vocab.txt", path);
  } else if (tokenizer == "sentencepiece") {
    add("tokenizer.model", sentencepiece_path(fs, vocab_dir));
  } else if (tokenizer != "byte") {
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

}  // namespace megalith::tokenizer
