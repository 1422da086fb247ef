#include "megalith/corpus/ngram_table.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "megalith/base/error.h"

namespace megalith::corpus {

void NgramTable::add(const NormalWords& document, std::vector<std::uint32_t>& numbers) {
  if (document.size() < count_) return;
  std::vector<std::uint64_t> hashes;
  append_ngrams(document.hashes(), count_, hashes);
  const std::string_view text = document.joined(0, document.size());
  const std::uint64_t base = texts_.size();
  texts_ += text;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (2 * (ngrams_.size() + 1) > slots_.size()) grow();
    const std::string_view words = document.joined(i, count_);
    std::size_t at = slot(hashes[i]);
    while (slots_[at] != kNone && (ngrams_[slots_[at]].hash != hashes[i] || text_of(ngrams_[slots_[at]]) != words))
      at = (at + 1) & (slots_.size() - 1);
    if (slots_[at] == kNone) {
      if (ngrams_.size() == kNone - 1) throw InputError("the test files have over 4,294,967,294 different n-grams");
      slots_[at] = static_cast<std::uint32_t>(ngrams_.size());
      ngrams_.push_back({hashes[i], base + static_cast<std::uint64_t>(words.data() - text.data()),
                         static_cast<std::uint32_t>(words.size())});
    }
    numbers.push_back(slots_[at]);
  }
}

void NgramTable::grow() {
  slots_.assign(std::max<std::size_t>(1024, 2 * slots_.size()), kNone);
  for (std::size_t i = 0; i < ngrams_.size(); ++i) {
    std::size_t at = slot(ngrams_[i].hash);
    while (slots_[at] != kNone) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = static_cast<std::uint32_t>(i);
  }
}

void NgramTable::finish() {
  found_.assign(ngrams_.size(), 0);
  const std::uint64_t bits = std::bit_ceil(std::max<std::uint64_t>(64, 16 * ngrams_.size()));
  filter_.assign(bits / 64, 0);
  filter_mask_ = bits - 1;
  for (const Ngram& ngram : ngrams_) {
    const std::uint64_t bit = (ngram.hash >> 32) & filter_mask_;
    filter_[bit / 64] |= std::uint64_t{1} << bit % 64;
  }
  if (slots_.empty()) grow();
}

void NgramTable::mark(const NormalWords& document, std::vector<std::uint64_t>& hashes) {
  hashes.clear();
  append_ngrams(document.hashes(), count_, hashes);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::uint64_t bit = (hashes[i] >> 32) & filter_mask_;
    if ((filter_[bit / 64] >> bit % 64 & 1) != 0) mark_held(hashes[i], document.joined(i, count_));
  }
}

void NgramTable::mark_held(std::uint64_t hash, std::string_view text) {
  for (std::size_t at = slot(hash); slots_[at] != kNone; at = (at + 1) & (slots_.size() - 1)) {
    const Ngram& ngram = ngrams_[slots_[at]];
    if (ngram.hash != hash) continue;
    const std::atomic_ref found(found_[slots_[at]]);
    if (found.load(std::memory_order_relaxed) != 0 || text_of(ngram) != text) continue;
    found.store(1, std::memory_order_relaxed);
    return;
  }
}

}  // namespace megalith::corpus
