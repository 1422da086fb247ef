#include "megalith/tokenizer/long_word.h"

#include <algorithm>
#include <functional>

#include "megalith/base/host_limits.h"
#include "megalith/base/str.h"

namespace megalith::tokenizer {
namespace {

/// The index of a symbol is that of its first byte. Its size is stored at its first and at its last byte, so that both
/// neighbours are found without links.
class LongWord {
 public:
  LongWord(const BpeVocabulary& vocabulary, std::string_view word)
      : vocabulary_(vocabulary), ids_(word.size()), sizes_(word.size(), 1) {
    for (std::size_t i = 0; i < word.size(); ++i) ids_[i] = vocabulary.byte_ids[static_cast<unsigned char>(word[i])];
    // There are at most as many valid candidates as symbols. Stale ones are dropped when there is no room (offer()).
    heap_.reserve(word.size() + word.size() / 8 + 16);
    for (std::size_t i = 0; i + 1 < word.size(); ++i)
      if (const std::int32_t rank = rank_at(i); rank >= 0) heap_.push_back(candidate(rank, i));
    std::ranges::make_heap(heap_, kFirst);
  }

  void merge() {
    while (!heap_.empty()) {
      const std::uint64_t best = heap_.front();
      std::ranges::pop_heap(heap_, kFirst);
      heap_.pop_back();
      if (is_stale(best)) continue;
      const std::size_t left = position_of(best), right = left + sizes_[left];
      ids_[left] = vocabulary_.merges.find(ids_[left], ids_[right]).merged;
      ids_[right] = -1;
      const std::uint32_t size = sizes_[left] + sizes_[right];
      sizes_[left] = sizes_[left + size - 1] = size;
      if (left > 0) offer(left - sizes_[left - 1]);
      offer(left);
    }
  }

  void append(std::vector<std::int32_t>& ids) const {
    for (std::size_t i = 0; i < ids_.size(); i += sizes_[i]) ids.push_back(ids_[i]);
  }

 private:
  static constexpr std::greater<std::uint64_t> kFirst{};  // the lowest (rank, position) first
  static std::uint64_t candidate(std::int32_t rank, std::size_t position) {
    return std::uint64_t{static_cast<std::uint32_t>(rank)} << 32 | static_cast<std::uint32_t>(position);
  }
  static std::size_t position_of(std::uint64_t candidate) { return candidate & 0xFFFFFFFF; }

  /// The rank of the symbol at `left` with the next one. Negative if they do not merge or no symbol begins there.
  std::int32_t rank_at(std::size_t left) const {
    if (ids_[left] < 0) return -1;
    const std::size_t right = left + sizes_[left];
    return right < ids_.size() ? vocabulary_.merges.find(ids_[left], ids_[right]).rank : -1;
  }
  /// Each pair has its own rank, so another rank means another pair.
  bool is_stale(std::uint64_t one) const { return rank_at(position_of(one)) != static_cast<std::int32_t>(one >> 32); }

  void offer(std::size_t left) {
    const std::int32_t rank = rank_at(left);
    if (rank < 0) return;
    if (heap_.size() == heap_.capacity()) drop_stale();
    heap_.push_back(candidate(rank, left));
    std::ranges::push_heap(heap_, kFirst);
  }
  void drop_stale() {
    std::erase_if(heap_, [&](std::uint64_t one) { return is_stale(one); });
    std::ranges::sort(heap_);  // a sorted list is a heap
    heap_.erase(std::unique(heap_.begin(), heap_.end()), heap_.end());
  }

  const BpeVocabulary& vocabulary_;
  std::vector<std::int32_t> ids_;
  std::vector<std::uint32_t> sizes_;
  std::vector<std::uint64_t> heap_;
};

}  // namespace

void merge_long_word(const BpeVocabulary& vocabulary, std::string_view word, std::vector<std::int32_t>& ids) {
  require_memory(host_limits(), static_cast<Index>(17 * word.size()), str("a word of ", word.size(), " bytes"),
                 "shorten it, or lower the limit that took it (--max-line, data.max_line)");
  LongWord merged(vocabulary, word);
  merged.merge();
  merged.append(ids);
}

}  // namespace megalith::tokenizer
