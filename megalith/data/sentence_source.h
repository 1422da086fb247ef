#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/data/indexed_dataset.h"

namespace megalith::data {

/// Documents as runs of sentences, sentences as runs of tokens. Immutable; any thread may read it.
class SentenceSource {
 public:
  virtual ~SentenceSource() = default;
  const std::string& name() const { return name_; }  ///< the file, for messages
  Index num_tokens() const { return first_token(first_sentence(num_documents())); }
  /// A hash that differs between corpora, for resumes: of all sentences' number, and of tokens as
  /// TokenSource::fingerprint().
  virtual std::uint64_t fingerprint() const;

  virtual Index num_documents() const = 0;
  /// The number of a document's first sentence among all. document may be num_documents().
  virtual Index first_sentence(Index document) const = 0;
  /// A sentence's first token among all. sentence may be the number of all.
  virtual Index first_token(Index sentence) const = 0;
  /// Where a document's text ends, among all tokens: before a token that `data build` has appended to end it.
  virtual Index text_end(Index document) const = 0;
  /// Tokens [first, first + out.size()).
  virtual void copy(Index first, std::span<std::int32_t> out) const = 0;

 protected:
  explicit SentenceSource(std::string name) : name_(std::move(name)) {}

 private:
  std::string name_;
};

using SentenceSourcePtr = std::shared_ptr<const SentenceSource>;

/// A .bin/.idx pair of `data build --sentences`: its sequences are sentences. end_of_document: as
/// Tokenizer::end_of_document().
SentenceSourcePtr indexed_sentences(IndexedDataset dataset, std::int32_t end_of_document);
/// Documents in memory: 4 bytes a token, 8 a sentence and a document.
struct SentenceText {
  std::vector<std::int32_t> tokens{};
  std::vector<Index> first_token = {0}, first_sentence = {0};  ///< with one more at the end

  /// Does nothing if the sentence has no token.
  void end_sentence() {
    if (first_token.back() < std::ssize(tokens)) first_token.push_back(std::ssize(tokens));
  }
  void end_document() {
    end_sentence();
    first_sentence.push_back(std::ssize(first_token) - 1);
  }
};
SentenceSourcePtr memory_sentences(std::string name, SentenceText text);
/// Several sources one after the other; at least one. Access takes O(log sources).
SentenceSourcePtr joined_sentences(std::vector<SentenceSourcePtr> sources);

}  // namespace megalith::data
