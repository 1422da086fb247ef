#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/problem_text.h"
#include "megalith/tokenizer/sentencepiece.h"

namespace megalith::tokenizer {

io::Path sentencepiece_path(io::Fs& fs, const io::Path& vocab_dir) {
  if (fs.exists(vocab_dir / "tokenizer.model")) return vocab_dir / "tokenizer.model";
  std::vector<std::string> found;
  if (fs.is_dir(vocab_dir)) {
    for (const std::string& name : fs.list(vocab_dir))
      if (io::Path(name).extension() == ".model") found.push_back(name);
  }
  if (found.size() == 1) return vocab_dir / found.front();
  throw InputError(str("[", vocab_dir.string(), "] ", found.empty() ? "has no" : "has more than one",
                       " *.model: the sentencepiece tokenizer reads tokenizer.model or the only one there is",
                       io::looked_for_in(vocab_dir)));
}

}  // namespace megalith::tokenizer
