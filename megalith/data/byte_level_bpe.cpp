#include "megalith/data/byte_level_bpe.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/data/unicode_text.h"

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

struct ByteLevelBpe::Scratch {
  explicit Scratch(const PreTokenizer& pre_tokenizer) : match(pre_tokenizer) {}
  PreTokenizer::Match match;
  WordMerger merger;
  WordCache cache;
  std::string composed;
};

ByteLevelBpe::ByteLevelBpe(BpeVocabulary vocabulary, std::string name)
    : name_(std::move(name)), vocabulary_(std::move(vocabulary)), pre_tokenizer_(vocabulary_.splits) {
  if (!vocabulary_.ignore_merges) return;
  for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id)
    if (!vocabulary_.is_added[id]) whole_words_.emplace(vocabulary_.tokens[id], static_cast<std::int32_t>(id));
}

ByteLevelBpe::~ByteLevelBpe() = default;

void ByteLevelBpe::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::size_t valid = valid_utf8_prefix(text);
  if (valid != text.size()) throw EncodeError(name(), valid, "must be UTF-8");
  auto scratch = pool_.borrow([&] { return std::make_unique<Scratch>(pre_tokenizer_); });
  const auto add_id = [&](std::int32_t id) { ids.push_back(id); };
  const auto encode_composed = [&](std::string_view part) { encode_words(part, *scratch, ids); };
  vocabulary_.literals.sections(text, add_id, [&](std::string_view part) {
    if (vocabulary_.compose) part = composed(part, scratch->composed);
    vocabulary_.composed_literals.sections(part, add_id, encode_composed);
  });
}

void ByteLevelBpe::encode_words(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  pre_tokenizer_.pieces(text, scratch.match, [&](std::string_view word) {
    scratch.cache.append(word, ids, [&] {
      const auto whole = whole_words_.find(word);
      if (whole != whole_words_.end())
        ids.push_back(whole->second);
      else
        scratch.merger.merge(vocabulary_, word, ids);
    });
  });
}

std::optional<std::int32_t> ByteLevelBpe::special(Special which) const {
  const auto spelt = [&](std::string_view a, std::string_view b) -> std::optional<std::int32_t> {
    for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id)
      if (vocabulary_.is_added[id] && (vocabulary_.tokens[id] == a || vocabulary_.tokens[id] == b))
        return static_cast<std::int32_t>(id);
    return std::nullopt;
  };
  switch (which) {
    case Special::cls:
      return spelt("[CLS]", "<s>");
    case Special::sep:
      return spelt("[SEP]", "</s>");
    case Special::mask:
      return spelt("[MASK]", "<mask>");
    case Special::pad:
      return spelt("[PAD]", "<pad>");
    case Special::unk:
      return spelt("[UNK]", "<unk>");
  }
  return std::nullopt;
}

std::vector<std::int32_t> ByteLevelBpe::added_tokens() const {
  std::vector<std::int32_t> ids;
  for (std::size_t id = 0; id < vocabulary_.is_added.size(); ++id)
    if (vocabulary_.is_added[id]) ids.push_back(static_cast<std::int32_t>(id));
  return ids;
}

bool ByteLevelBpe::starts_word(std::int32_t id) const {
  const std::string& token = vocabulary_.tokens[static_cast<std::size_t>(id)];
  return vocabulary_.is_added[static_cast<std::size_t>(id)] || token.starts_with(' ') ||
         (!token.empty() && token[0] >= '\t' && token[0] <= '\r');
}

std::size_t ByteLevelBpe::next_cut(std::string_view text, std::size_t from) const {
  if (vocabulary_.literals.hold_white_space() || vocabulary_.composed_literals.hold_white_space()) return text.size();
  return pre_tokenizer_.next_cut(text, from);
}

}  // namespace megalith::data
