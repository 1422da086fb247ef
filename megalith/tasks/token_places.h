#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "megalith/tasks/text_range.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::tasks {

/// Tokens of a text, and the part of it that each stands for. Ranges ascend and have no white space around them. Where
/// the tokenizer does not allow to tell tokens apart, several have the range of all of them.
struct PlacedTokens {
  std::vector<std::int32_t> ids;
  std::vector<TextRange> ranges;
};

/// encode(text) with places. They are found by encoding the beginnings of each part between two cuts of the tokenizer
/// (next_cut()): the longest beginning that gives the first k tokens ends where token k ends. This is exact for
/// WordPiece, whose longest match looks no further. A word of n characters is encoded n times.
PlacedTokens place_tokens(const tokenizer::Tokenizer& tokenizer, std::string_view text);

}  // namespace megalith::tasks
