#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "megalith/base/types.h"
#include "megalith/data/token_source.h"

namespace megalith::data {

/// Tokens [begin, end) of a source.
struct TokenRange {
  Index begin = 0, end = 0;
  Index size() const { return end - begin; }
  bool operator==(const TokenRange&) const = default;
};

/// Divides a corpus into train, valid and test: contiguous parts of its tokens, in this order.
struct Split {
  std::array<double, 3> weights = {1, 0, 0};  ///< in [0, inf), not all zero; only their ratios matter

  /// The parts of `num_tokens` tokens. They cover all of them, none twice. Cuts are at the token that the weights
  /// give, rounded down, so they may cut documents.
  std::array<TokenRange, 3> ranges(Index num_tokens) const;
};

/// Reads "969,30,1" (weights of train, valid and test), or "0.99,0.01" or "0.95" (the fraction of train; the rest is
/// valid). Throws ConfigError naming data.split.
Split parse_split(std::string_view text);

/// Samples of seq_len tokens with their targets, one after the other in a range of a source, across its documents.
/// Sample i reads tokens [i*S, i*S + S] of the range. Its targets are its tokens shifted by one. With end_of_document,
/// the token that ends one, a sample is cut into documents that do not attend to each other.
class SampleSet {
 public:
  /// Throws InputError when the range is too short for one sample (S + 1 tokens).
  SampleSet(TokenSourcePtr source, TokenRange range, Index seq_len,
            std::optional<std::int32_t> end_of_document = std::nullopt);

  Index seq_len() const { return seq_len_; }
  Index count() const { return (range_.size() - 1) / seq_len_; }
  const TokenSource& source() const { return *source_; }
  const TokenRange& range() const { return range_; }
  std::optional<std::int32_t> end_of_document() const { return end_of_document_; }

  /// tokens, targets [S]. Allocates nothing.
  void copy(Index sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

 private:
  TokenSourcePtr source_;
  TokenRange range_;
  Index seq_len_;
  std::optional<std::int32_t> end_of_document_;
};

/// Which sample is the n-th of a run, n from 0 across all epochs. Each epoch has every sample once, in an order that
/// is a function of (seed, epoch) alone. So a resumed run, and one on another number of data-parallel ranks, sees the
/// same samples. Its only state is n.
/// The order is a permutation that is computed element by element, without memory. It is a Feistel network whose round
/// function is Philox, over the next power of four. It is applied until the value is below count (1 to 4 times on
/// average).
/// Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 3 (cycle walking).
class SampleOrder {
 public:
  static SampleOrder shuffled(std::uint64_t seed, Index count) { return {count, seed, Kind::shuffled}; }
  /// 0, 1, 2, ... in every epoch: for evaluation.
  static SampleOrder sequential(Index count) { return {count, 0, Kind::sequential}; }

  Index count() const { return count_; }
  Index epoch(Index n) const { return n / count_; }
  /// In [0, count). n >= 0.
  Index sample(Index n) const;

 private:
  enum class Kind { shuffled, sequential };
  SampleOrder(Index count, std::uint64_t seed, Kind kind);

  Index count_ = 1;
  std::uint64_t seed_ = 0;
  Kind kind_ = Kind::sequential;
  int half_bits_ = 1;  // the network permutes [0, 4^half_bits)
};

/// Fills tokens and targets [B * S] with samples first, first + 1, ... of the order, as many as fit. Allocates
/// nothing. Throws ShapeError unless both hold the same whole number of samples and the order is over this set.
void fill_batch(const SampleOrder& order, const SampleSet& set, Index first, std::span<std::int32_t> tokens,
                std::span<std::int32_t> targets);

}  // namespace megalith::data
