#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "megalith/base/types.h"

namespace megalith::data {

/// The segments of a sample, and what its second class means.
enum class SentenceOrder : std::uint8_t {
  sop,  ///< two consecutive segments; the second class: they are swapped
  nsp,  ///< the second class: the second segment is of another document
  none  ///< one segment, no classes
};
inline constexpr std::array<std::string_view, 3> kSentenceOrderNames = {"sop", "nsp", "none"};

/// What samples of a masked language model are made by: section [bert] of a recipe.
struct BertSampleConfig {
  Index seq_len = 512;
  SentenceOrder order = SentenceOrder::sop;
  double mask_fraction = 0.15;  ///< of the tokens that are not special
  Index max_ngram = 3;          ///< words of a span
  bool whole_words = true;      ///< else every token is a word
  double short_fraction = 0.1;  ///< samples with a random shorter target

  bool is_pair() const { return order != SentenceOrder::none; }
  /// Tokens of texts in a sample, beside [CLS] A [SEP] B [SEP].
  Index max_tokens() const { return seq_len - 3; }
  /// Masked tokens of a sample with so many tokens that are not special: at least 1.
  Index budget(Index tokens) const {
    constexpr double kRounding = 1e-9;  // 0.29 * 100 is just below 29
    return std::max<Index>(1, static_cast<Index>(mask_fraction * static_cast<double>(tokens) + kRounding));
  }
  /// P, the places for masked tokens in every sample.
  Index max_masked() const { return budget(max_tokens()); }
};

}  // namespace megalith::data
