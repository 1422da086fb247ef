#include "megalith/data/byte_level_bpe.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"

namespace megalith::data {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
constexpr auto kLater = [](const auto& a, const auto& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
};

}  // namespace

void WordMerger::offer(const BpeVocabulary& vocabulary, std::uint32_t left) {
  const std::uint32_t right = symbols_[left].next;
  if (right == kNone) return;
  const std::int32_t left_id = symbols_[left].id;
  const std::int32_t right_id = symbols_[right].id;
  const MergeTable::Merge merge = vocabulary.merges.find(left_id, right_id);
  if (merge.rank < 0) return;
  heap_.push_back({merge.rank, merge.merged, left, left_id, right_id});
  std::push_heap(heap_.begin(), heap_.end(), kLater);
}

void WordMerger::merge(const BpeVocabulary& vocabulary, std::string_view word, std::vector<std::int32_t>& ids) {
  if (word.size() >= kNone)
    throw InputError(str("[gpt2 tokenizer] a word of ", word.size(), " bytes: must be below 4 GiB"));
  const auto length = static_cast<std::uint32_t>(word.size());
  symbols_.clear();
  heap_.clear();
  for (std::uint32_t i = 0; i < length; ++i)
    symbols_.push_back({vocabulary.byte_ids[static_cast<unsigned char>(word[i])], i == 0 ? kNone : i - 1,
                        i + 1 == length ? kNone : i + 1});
  for (std::uint32_t i = 0; i + 1 < length; ++i) offer(vocabulary, i);

  while (!heap_.empty()) {
    const Candidate best = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), kLater);
    heap_.pop_back();
    Symbol& left = symbols_[best.left];
    if (left.id != best.left_id || left.next == kNone || symbols_[left.next].id != best.right_id) continue;
    Symbol& right = symbols_[left.next];
    left.id = best.merged;
    right.id = -1;
    left.next = right.next;
    if (left.next != kNone) symbols_[left.next].previous = best.left;
    if (left.previous != kNone) offer(vocabulary, left.previous);
    offer(vocabulary, best.left);
  }
  for (std::uint32_t i = 0; i != kNone; i = symbols_[i].next) ids.push_back(symbols_[i].id);
}

WordCache::Entry& WordCache::at(std::string_view word, bool& found) {
  std::uint64_t key[2] = {0, 0};
  std::memcpy(key, word.data(), word.size());
  key[1] |= std::uint64_t{word.size()} << 56;
  const std::uint64_t hash = mix64(key[0] ^ (key[1] * 0x9e3779b97f4a7c15ULL));
  Entry& entry = entries_[hash & (entries_.size() - 1)];
  found = entry.word[0] == key[0] && entry.word[1] == key[1];
  if (!found) entry = {.word = {key[0], key[1]}};
  return entry;
}

struct ByteLevelBpe::Scratch {
  explicit Scratch(const PreTokenizer& pre_tokenizer) : match(pre_tokenizer) {}
  PreTokenizer::Match match;
  WordMerger merger;
  WordCache cache;
};

/// Takes a Scratch from the free ones, or makes one, and puts it back.
class ByteLevelBpe::Borrowed {
 public:
  explicit Borrowed(const ByteLevelBpe& owner) : owner_(owner) {
    const std::lock_guard lock(owner.mutex_);
    if (owner.free_.empty()) {
      scratch_ = std::make_unique<Scratch>(owner.pre_tokenizer_);
    } else {
      scratch_ = std::move(owner.free_.back());
      owner.free_.pop_back();
    }
  }
  ~Borrowed() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.free_.push_back(std::move(scratch_));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Scratch* operator->() { return scratch_.get(); }

 private:
  const ByteLevelBpe& owner_;
  std::unique_ptr<Scratch> scratch_;
};

ByteLevelBpe::ByteLevelBpe(BpeVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

ByteLevelBpe::~ByteLevelBpe() = default;

void ByteLevelBpe::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::size_t valid = valid_utf8_prefix(text);
  if (valid != text.size()) throw EncodeError(name(), valid, "must be UTF-8");
  Borrowed scratch(*this);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = pre_tokenizer_.piece_end(text, begin, scratch->match);
    const std::string_view word = text.substr(begin, end - begin);
    begin = end;
    if (word.size() > WordCache::kLongestWord) {
      scratch->merger.merge(vocabulary_, word, ids);
      continue;
    }
    bool found = false;
    WordCache::Entry& entry = scratch->cache.at(word, found);
    if (found && entry.ids[0] >= 0) {
      for (const std::int32_t id : entry.ids) {
        if (id < 0) break;
        ids.push_back(id);
      }
      continue;
    }
    const std::size_t before = ids.size();
    scratch->merger.merge(vocabulary_, word, ids);
    if (ids.size() - before <= std::size(entry.ids))  // longer ones stay at -1 and are merged each time: they are rare
      std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), entry.ids);
  }
}

std::size_t ByteLevelBpe::next_cut(std::string_view text, std::size_t from) const {
  // Before white space that follows something else: a piece always ends there, whatever comes behind, and the next
  // piece depends on what follows only. ASCII white space is enough to find such a place in real text.
  for (std::size_t p = std::max<std::size_t>(from, 1); p < text.size(); ++p) {
    const bool white_space = text[p] == ' ' || (text[p] >= '\t' && text[p] <= '\r');
    if (white_space && !ends_in_white_space(text, p)) return p;
  }
  return text.size();
}

}  // namespace megalith::data
