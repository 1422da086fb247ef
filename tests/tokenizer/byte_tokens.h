#pragma once
#include <string>

#include "megalith/tokenizer/bpe_vocabulary.h"

namespace megalith::tokenizer {

/// Members "spelling": id of a tokenizer.json's vocabulary for the 256 bytes.
inline std::string byte_tokens() {
  std::string members;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::string spelling = byte_spelling(static_cast<unsigned char>(byte));
    members += (byte == 0 ? "\"" : ", \"") + std::string(spelling == "\"" || spelling == "\\" ? "\\" : "") + spelling +
               "\": " + std::to_string(byte);
  }
  return members;
}

}  // namespace megalith::tokenizer
