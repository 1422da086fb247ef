#include "megalith/tokenizer/byte_level_bpe.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/tokenizer/long_word.h"
#include "megalith/tokenizer/piece_stream.h"
#include "megalith/tokenizer/unicode_text.h"

namespace megalith::tokenizer {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kLongWord = std::size_t{1} << 20;
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
  pre_tokenizer_.pieces(text, scratch.match, [&](std::string_view word) { encode_word(word, scratch, ids); });
}

void ByteLevelBpe::encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  scratch.cache.append(word, ids, [&] {
    const auto whole = whole_words_.find(word);
    if (whole != whole_words_.end()) return ids.push_back(whole->second);
    if (word.size() < kLongWord) return scratch.merger.merge(vocabulary_, word, ids);
    if (word.size() >= kNone)
      throw InputError(str("[", name(), " tokenizer] a word of ", word.size(), " bytes: must be below 4 GiB"));
    const std::lock_guard lock(long_word_);
    merge_long_word(vocabulary_, word, ids);
  });
}

/// encode() up to the words. Each step works on the decided output of the previous one.
class ByteLevelBpe::Cutter final : public TextCutter {
 public:
  explicit Cutter(const ByteLevelBpe& owner) : owner_(owner), pieces_(owner.pre_tokenizer_) {}

  void push(std::string_view part, bool ends, CutText& out) override {
    const std::size_t valid = valid_utf8_prefix(part);
    if (valid != part.size()) throw EncodeError(owner_.name(), valid, "must be UTF-8");
    const BpeVocabulary& vocabulary = owner_.vocabulary_;
    const auto cut = [&](std::string_view text, bool ends_section) {
      pieces_.push(text, ends_section, [&](std::string_view word) {
        if (word.size() > std::numeric_limits<std::uint32_t>::max())
          throw InputError(
              str("[", owner_.name(), " tokenizer] a word of ", word.size(), " bytes: must be below 4 GiB"));
        out.bytes += word;
        out.pieces.push_back({.size = static_cast<std::uint32_t>(word.size())});
      });
    };
    const auto look_again = [&](std::string_view text, bool ends_section) {
      sections(vocabulary.composed_literals, composed_, text, ends_section, out, cut);
    };
    sections(vocabulary.literals, plain_, part, ends, out, [&](std::string_view text, bool ends_section) {
      if (vocabulary.compose)
        compose(text, ends_section, look_again);
      else
        look_again(text, ends_section);
    });
  }
  std::size_t held_bytes() const override {
    return plain_.size() + to_compose_.size() + composed_.size() + pieces_.held_bytes();
  }

 private:
  template <class Use>
  static void sections(const LiteralTokens& literals, std::string& held, std::string_view part, bool ends, CutText& out,
                       const Use& use) {
    if (literals.empty()) return use(part, ends);
    held += part;
    const auto add_id = [&](std::int32_t id) { out.pieces.push_back({.size = 0, .id = id}); };
    held.erase(0, literals.sections_of_part(held, ends, add_id, use));
  }

  /// No character composes with an ASCII character after it.
  template <class Use>
  void compose(std::string_view part, bool ends, const Use& use) {
    const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    const std::size_t before = to_compose_.size();
    to_compose_ += part;
    std::size_t known = ends ? to_compose_.size() : 0;
    for (std::size_t i = to_compose_.size(); i > before && known == 0; --i)
      if (is_ascii(to_compose_[i - 1])) known = i - 1;
    if (known == 0 && !ends) return;
    use(composed(std::string_view(to_compose_).substr(0, known), scratch_), ends);
    to_compose_.erase(0, known);
  }

  const ByteLevelBpe& owner_;
  PieceStream pieces_;
  std::string plain_, to_compose_, composed_;  // the text that each step keeps
  std::string scratch_;
};

bool ByteLevelBpe::knows_cuts() const {
  return pre_tokenizer_.knows_cuts() && !vocabulary_.literals.hold_white_space() &&
         !vocabulary_.composed_literals.hold_white_space();
}

std::unique_ptr<TextCutter> ByteLevelBpe::make_cutter() const {
  if (knows_cuts() || !pre_tokenizer_.can_stream()) return nullptr;
  return std::make_unique<Cutter>(*this);
}

void ByteLevelBpe::encode_cut(const CutText& cut, std::vector<std::int32_t>& ids) const {
  auto scratch = pool_.borrow([&] { return std::make_unique<Scratch>(pre_tokenizer_); });
  std::size_t begin = 0;
  for (const CutText::Piece& piece : cut.pieces) {
    if (piece.id >= 0) {
      ids.push_back(piece.id);
    } else {
      encode_word(std::string_view(cut.bytes).substr(begin, piece.size), *scratch, ids);
      begin += piece.size;
    }
  }
}

std::optional<std::int32_t> ByteLevelBpe::special(Special which) const {
  const auto find = [&](std::string_view a, std::string_view b) -> std::optional<std::int32_t> {
    for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id)
      if (vocabulary_.is_added[id] && (vocabulary_.tokens[id] == a || vocabulary_.tokens[id] == b))
        return static_cast<std::int32_t>(id);
    return std::nullopt;
  };
  switch (which) {
    case Special::cls:
      return find("[CLS]", "<s>");
    case Special::sep:
      return find("[SEP]", "</s>");
    case Special::mask:
      return find("[MASK]", "<mask>");
    case Special::pad:
      return find("[PAD]", "<pad>");
    case Special::unk:
      return find("[UNK]", "<unk>");
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
  return knows_cuts() ? pre_tokenizer_.next_cut(text, from) : text.size();
}

}  // namespace megalith::tokenizer
