#pragma once
#include <memory>
#include <string>

#include "megalith/tokenizer/tokenizer.h"

#include "tests/tasks/task_files.h"

namespace megalith::tasks {

/// A small uncased vocabulary: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then words and pieces.
class WordPieces : public TaskFiles {
 protected:
  WordPieces() {
    file("vocab/vocab.txt",
         "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nwho\n?\nthe\nun\n##aff\n##able\ncafe\nof\nann\n(\n)\n.\n-\n##"
         "s\na\nb\nc\nd\n"
         "e\nf\ng\nh\n");
    tokenizer_ = tokenizer::make_tokenizer("bert-uncased", dir_ / "vocab", *fs_);
  }
  std::int32_t id(const std::string& token) const { return tokenizer_->encode(token).at(0); }

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
};

}  // namespace megalith::tasks
