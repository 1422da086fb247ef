#pragma once
#include <cstdint>
#include <span>

namespace megalith::data {

/// The documents of one sample, one after the other, as attention takes them (ops/attention.h): the first token of each
/// token's document, and the token's place in it. Both are [S].
struct SampleDocuments {
  std::span<std::int32_t> begin, positions;

  /// Tokens [first, end) are a document.
  void put(std::size_t first, std::size_t end) const;
  /// Tokens from `first` on are padding. Each is a document of its own, which costs attention least.
  void put_padding(std::size_t first) const;
};

/// A document ends with each token `end_of_document`. The first may have begun in an earlier sample; here it begins
/// with the sample.
void put_documents_of(std::span<const std::int32_t> tokens, std::int32_t end_of_document, const SampleDocuments& to);

}  // namespace megalith::data
