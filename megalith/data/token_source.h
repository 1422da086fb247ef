#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/data/indexed_dataset.h"

namespace megalith::data {

/// One stream of token ids, with all documents joined. Immutable; any thread may read it.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  Index num_tokens() const { return num_tokens_; }
  Index vocab_size() const { return vocab_size_; }
  const std::string& name() const { return name_; }  ///< the file, for messages

  /// Tokens [first, first + out.size()). Allocates nothing. Throws ShapeError outside the stream. Throws InputError
  /// for an id that is not in [0, vocab_size), which means that the file was made with another tokenizer.
  void copy(Index first, std::span<std::int32_t> out) const;

  /// A hash that differs between corpora, for resumes. Up to 2^26 tokens it covers all of them (0.1 s). Of a larger
  /// corpus it covers the number of tokens and 16,384 stretches of 4,096, spread evenly from the first token to the
  /// last. So it can miss an edit.
  std::uint64_t fingerprint() const;

 protected:
  TokenSource(std::string name, Index num_tokens, Index vocab_size)
      : name_(std::move(name)), num_tokens_(num_tokens), vocab_size_(vocab_size) {}

 private:
  virtual void read(Index first, std::span<std::int32_t> out) const = 0;

  std::string name_;
  Index num_tokens_ = 0, vocab_size_ = 0;
};

/// TokenSource::fingerprint() of a stream: copy(first, out) gives tokens [first, first + out.size()).
std::uint64_t fingerprint_of_tokens(Index num_tokens, const std::function<void(Index, std::span<std::int32_t>)>& copy);

using TokenSourcePtr = std::shared_ptr<const TokenSource>;

/// Tokens in memory: 4 bytes each.
TokenSourcePtr memory_source(std::string name, std::vector<std::int32_t> tokens, Index vocab_size);
/// Tokens of a .bin/.idx pair, read from the mapped file by each copy, in O(count).
TokenSourcePtr indexed_source(IndexedDataset dataset, Index vocab_size);
/// Several sources one after the other; at least one, all of one vocab_size. A copy takes O(log sources + count).
TokenSourcePtr joined_source(std::vector<TokenSourcePtr> sources);

}  // namespace megalith::data
