#include "megalith/tokenizer/pair_merger.h"

#include <algorithm>
#include <utility>

#include "megalith/base/hash.h"

namespace megalith::tokenizer {

std::size_t PairMerger::PairTable::slot(std::uint64_t key) const {
  std::size_t i = mix64(key) & (slots_.size() - 1);
  while (slots_[i].key != key && slots_[i].key != ~std::uint64_t{0}) i = (i + 1) & (slots_.size() - 1);
  return i;
}

PairMerger::Pair& PairMerger::PairTable::at(std::uint64_t key) {
  std::size_t i = slot(key);
  if (slots_[i].key == key) return slots_[i];
  if (2 * ++size_ > slots_.size()) {
    std::vector<Pair> old(2 * slots_.size());
    old.swap(slots_);
    for (const Pair& pair : old)
      if (pair.key != ~std::uint64_t{0}) slots_[slot(pair.key)] = pair;
    i = slot(key);
  }
  slots_[i].key = key;
  return slots_[i];
}

void PairMerger::add_word(std::span<const std::int32_t> symbols, std::uint64_t count) {
  words_.push_back({symbols_.size(), count, static_cast<std::uint32_t>(symbols.size())});
  symbols_.insert(symbols_.end(), symbols.begin(), symbols.end());
}

void PairMerger::push(Candidate candidate) {
  heap_.push_back(std::move(candidate));
  std::push_heap(heap_.begin(), heap_.end(), is_later);
}

PairMerger::Candidate PairMerger::pop() {
  std::pop_heap(heap_.begin(), heap_.end(), is_later);
  Candidate top = std::move(heap_.back());
  heap_.pop_back();
  return top;
}

void PairMerger::gain(std::int32_t left, std::int32_t right, std::uint32_t word) {
  Pair& pair = pairs_.at(key_of(left, right));
  pair.count += static_cast<std::int64_t>(words_[word].count);
  if (pair.fresh == kNone) {
    pair.fresh = static_cast<std::uint32_t>(fresh_.size());
    fresh_.push_back({pair.key, {}});
  }
  std::vector<std::uint32_t>& words = fresh_[pair.fresh].words;
  if (words.empty() || words.back() != word) words.push_back(word);
}

void PairMerger::lose(std::int32_t left, std::int32_t right, std::uint32_t word) {
  pairs_.at(key_of(left, right)).count -= static_cast<std::int64_t>(words_[word].count);
}

void PairMerger::count_pairs() {
  for (std::uint32_t word = 0; word < words_.size(); ++word) {
    const std::int32_t* const symbols = symbols_.data() + words_[word].begin;
    for (std::uint32_t i = 0; i + 1 < words_[word].size; ++i) gain(symbols[i], symbols[i + 1], word);
  }
}

/// From left to right. A merged symbol is a neighbour at once.
void PairMerger::merge_in(std::uint32_t word, const Merge& merge) {
  std::int32_t* const symbols = symbols_.data() + words_[word].begin;
  const std::uint32_t size = words_[word].size;
  std::uint32_t to = 0;
  for (std::uint32_t i = 0; i < size; ++i, ++to) {
    symbols[to] = symbols[i];
    if (symbols[i] != merge.left || i + 1 == size || symbols[i + 1] != merge.right) continue;
    symbols[to] = merge.merged;
    if (to > 0) {
      lose(symbols[to - 1], merge.left, word);
      gain(symbols[to - 1], merge.merged, word);
    }
    ++i;
    if (i + 1 < size) {
      lose(merge.right, symbols[i + 1], word);
      gain(merge.merged, symbols[i + 1], word);
    }
  }
  words_[word].size = to;
}

std::vector<PairMerger::Merge> PairMerger::learn(std::vector<std::string>& tokens, const Options& options) {
  std::unordered_map<std::string, std::int32_t> ids;
  for (std::size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<std::int32_t>(id));
  const auto push_fresh = [&] {
    for (Fresh& fresh : fresh_) {
      Pair& pair = pairs_.at(fresh.key);
      pair.fresh = kNone;
      if (pair.count > 0) push({pair.count, fresh.key, std::move(fresh.words)});
    }
    fresh_.clear();
  };
  count_pairs();
  push_fresh();

  std::vector<Merge> merges;
  while (static_cast<std::int64_t>(tokens.size()) < options.vocab_size && !heap_.empty()) {
    Candidate top = pop();
    const std::int64_t count = pairs_.at(top.key).count;
    if (top.count != count) {  // other merges have reduced its count
      if (count > 0) {
        top.count = count;
        push(std::move(top));
      }
      continue;
    }
    if (static_cast<std::uint64_t>(count) < options.min_frequency) break;
    Merge merge{static_cast<std::int32_t>(top.key >> 32), static_cast<std::int32_t>(top.key & 0xFFFFFFFF), 0};
    const std::string spelling =
        options.join(tokens[static_cast<std::size_t>(merge.left)], tokens[static_cast<std::size_t>(merge.right)]);
    const auto [known, is_new] = ids.emplace(spelling, static_cast<std::int32_t>(tokens.size()));
    merge.merged = known->second;
    if (is_new) tokens.push_back(spelling);
    merges.push_back(merge);
    for (const std::uint32_t word : top.words) merge_in(word, merge);
    push_fresh();
    if (options.progress && merges.size() % 256 == 0) options.progress(static_cast<std::int64_t>(tokens.size()));
  }
  return merges;
}

}  // namespace megalith::tokenizer
