#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/data/indexed_dataset.h"

namespace megalith::data {

/// One long stream of token ids, documents joined, wherever it lies. Immutable; safe to read from any thread.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  Index num_tokens() const { return num_tokens_; }
  Index vocab_size() const { return vocab_size_; }
  const std::string& name() const { return name_; }  ///< the file, for messages

  /// Tokens [first, first + out.size()). Allocates nothing. Throws ShapeError outside the stream, InputError for an id
  /// that is not in [0, vocab_size): the file was made with another tokenizer.
  void copy(Index first, std::span<std::int32_t> out) const;

  /// Tells two corpora apart at resume: a hash of all tokens up to 2^26 (0.1 s); of a larger corpus, of their number
  /// and 16,384 stretches of 4,096 spread evenly over them, the first and the last included, so that it can miss an
  /// edit.
  std::uint64_t fingerprint() const;

 protected:
  TokenSource(std::string name, Index num_tokens, Index vocab_size)
      : name_(std::move(name)), num_tokens_(num_tokens), vocab_size_(vocab_size) {}

 private:
  virtual void read(Index first, std::span<std::int32_t> out) const = 0;

  std::string name_;
  Index num_tokens_ = 0, vocab_size_ = 0;
};

using TokenSourcePtr = std::shared_ptr<const TokenSource>;

/// Tokens that are in memory already: 4 bytes each.
TokenSourcePtr memory_source(std::string name, std::vector<std::int32_t> tokens, Index vocab_size);
/// Tokens of a .bin/.idx pair, read from the mapped file when they are asked for. A copy takes O(count).
TokenSourcePtr indexed_source(IndexedDataset dataset, Index vocab_size);
/// Several sources one after the other; at least one, all of one vocab_size. A copy takes O(log sources + count).
TokenSourcePtr joined_source(std::vector<TokenSourcePtr> sources);

}  // namespace megalith::data
