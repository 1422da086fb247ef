#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace megalith::tokenizer {

/// Learns merges: the most frequent pair of neighbours in the words becomes one token, and this is repeated. Counts
/// have 64 bits. Among equal counts the pair with the lower ids is taken, the left id first (the rule of the
/// tokenizers library). So the order of the words does not matter. Source: Sennrich et al. 2016, arXiv:1508.07909,
/// algorithm 1.
class PairMerger {
 public:
  /// A merge: tokens `left` and `right` became `merged`, which need not be new.
  struct Merge {
    std::int32_t left, right, merged;
    bool operator==(const Merge&) const = default;
  };
  struct Options {
    std::int64_t vocab_size = 0;      ///< size of `tokens` at the end
    std::uint64_t min_frequency = 2;  ///< a rarer pair is not merged
    /// Joins the texts of a pair to that of its token.
    std::function<std::string(const std::string& left, const std::string& right)> join;
    /// Called at intervals with the number of tokens.
    std::function<void(std::int64_t)> progress{};
  };

  /// `symbols` are ids of tokens.
  void add_word(std::span<const std::int32_t> symbols, std::uint64_t count);
  /// Adds the new tokens to `tokens`, each text once. Ends early if no pair is frequent enough. Changes the words, so
  /// call it once.
  std::vector<Merge> learn(std::vector<std::string>& tokens, const Options& options);

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  /// Counts by pair. An open hash table, because learning spends its time on it.
  struct Pair {
    std::uint64_t key = ~std::uint64_t{0};  // left and right; no pair: ids are not negative
    std::int64_t count = 0;
    std::uint32_t fresh = kNone;  // index in fresh_ of a pair that the current merge made
  };
  class PairTable {
   public:
    PairTable() : slots_(1 << 16) {}
    Pair& at(std::uint64_t key);
    template <class Use>
    void each(const Use& use) {
      for (Pair& pair : slots_)
        if (pair.key != ~std::uint64_t{0}) use(pair);
    }

   private:
    std::size_t slot(std::uint64_t key) const;
    std::vector<Pair> slots_;  // a power of two, at most half full
    std::size_t size_ = 0;
  };
  /// A pair that may be next, and the words that contain it.
  struct Candidate {
    std::int64_t count;
    std::uint64_t key;
    std::vector<std::uint32_t> words;
  };
  static bool is_later(const Candidate& a, const Candidate& b) {
    return a.count != b.count ? a.count < b.count : a.key > b.key;
  }
  struct Fresh {
    std::uint64_t key;
    std::vector<std::uint32_t> words;
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  void count_pairs();
  void gain(std::int32_t left, std::int32_t right, std::uint32_t word);
  void lose(std::int32_t left, std::int32_t right, std::uint32_t word);
  void merge_in(std::uint32_t word, const Merge& merge);
  void push(Candidate candidate);
  Candidate pop();

  struct Word {
    std::uint64_t begin, count;  // a range of symbols_
    std::uint32_t size;
  };
  std::vector<std::int32_t> symbols_;
  std::vector<Word> words_;
  PairTable pairs_;
  std::vector<Fresh> fresh_;
  std::vector<Candidate> heap_;  // the next one first
};

}  // namespace megalith::tokenizer
