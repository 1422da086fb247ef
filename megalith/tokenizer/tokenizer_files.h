#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace megalith::tokenizer {

// Parts of a tokenizer.json of the tokenizers library. tokenizer_json.h reads such files.

/// {token: id} from tokens by id, in linear time: insertion into ordered_json searches for every key.
nlohmann::ordered_json vocab_object(std::span<const std::string> tokens);
/// An entry of "added_tokens": a special token.
nlohmann::ordered_json special_token(std::size_t id, std::string_view content);

/// How a text is cut into words: not at all, or as for GPT-2.
enum class ByteLevelCut { whole, gpt2 };
/// The parts of a byte-level BPE in JSON.
struct BpeParts {
  const nlohmann::ordered_json &added_tokens, &vocab, &merges;
};
nlohmann::ordered_json byte_level_bpe_json(ByteLevelCut cut, const BpeParts& parts);

enum class LetterCase { kept, lowered };
/// BERT's WordPiece from tokens by id. If [CLS] and [SEP] are among them, the library adds them around a text on
/// request.
nlohmann::ordered_json wordpiece_json(std::span<const std::string> tokens, const nlohmann::ordered_json& added_tokens,
                                      LetterCase letters);

}  // namespace megalith::tokenizer
