#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace megalith::tokenizer {

// Parts of a tokenizer.json of the tokenizers library. tokenizer_json.h reads such files.

/// {token: id} of tokens by id. Takes linear time: ordered_json looks for every key that it is given.
nlohmann::ordered_json vocab_object(std::span<const std::string> tokens);
/// An entry of "added_tokens": a special token.
nlohmann::ordered_json special_token(std::size_t id, std::string_view content);

/// How a text becomes words: not at all, or as GPT-2's.
enum class ByteLevelCut { whole, gpt2 };
/// What a byte-level BPE consists of, in JSON.
struct BpeParts {
  const nlohmann::ordered_json &added_tokens, &vocab, &merges;
};
nlohmann::ordered_json byte_level_bpe_json(ByteLevelCut cut, const BpeParts& parts);

enum class LetterCase { kept, lowered };
/// BERT's WordPiece of tokens by id. [CLS] and [SEP], where both are among them, go around a text where a caller of the
/// library wants special tokens.
nlohmann::ordered_json wordpiece_json(std::span<const std::string> tokens, const nlohmann::ordered_json& added_tokens,
                                      LetterCase letters);

}  // namespace megalith::tokenizer
