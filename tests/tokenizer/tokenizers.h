#pragma once
#include <memory>

#include "megalith/io/fs.h"
#include "megalith/tokenizer/tokenizer.h"

#include "tests/test_data.h"

namespace megalith::tokenizer {

inline io::Path gpt2_dir() { return io::Path(MEGALITH_TEST_DATA) / "../../share/gpt2"; }

/// Loaded once: it takes some 50 ms, much longer under sanitizers.
inline const std::shared_ptr<const Tokenizer>& gpt2() {
  static const std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer("gpt2", gpt2_dir(), *io::posix_fs());
  return tokenizer;
}

inline const std::shared_ptr<const Tokenizer>& bytes() {
  static const std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer("byte", {}, *io::posix_fs());
  return tokenizer;
}

}  // namespace megalith::tokenizer
