#include "megalith/data/bert_samples.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"

namespace megalith::data {
namespace {

constexpr auto kCutSite = static_cast<std::uint32_t>(fnv1a("data.bert_cuts")),
               kSampleSite = static_cast<std::uint32_t>(fnv1a("data.bert_samples"));

/// In [0, n), from a uniform random word.
Index below(std::uint32_t word, Index n) {
  return static_cast<Index>((std::uint64_t{word} * static_cast<std::uint64_t>(n)) >> 32);
}
bool happens(std::uint32_t word, double probability) { return static_cast<double>(word) < probability * 0x1p32; }

constexpr std::int32_t kNoPlace = -1;

/// A word of a sample: places [begin, end). Words follow each other where they adjoin.
struct Word {
  Index begin = 0, end = 0;
  bool is_masked = false;
  Index size() const { return end - begin; }
};

}  // namespace

BertVocabulary bert_vocabulary(const tokenizer::Tokenizer& tokenizer) {
  using tokenizer::Special;
  BertVocabulary vocabulary;
  std::string missing;
  const auto find = [&](Special special, const char* name) {
    const std::optional<std::int32_t> id = tokenizer.special(special);
    if (!id) missing += str(missing.empty() ? "" : ", ", name);
    return id.value_or(0);
  };
  vocabulary.cls = find(Special::cls, "[CLS]");
  vocabulary.sep = find(Special::sep, "[SEP]");
  vocabulary.mask = find(Special::mask, "[MASK]");
  vocabulary.pad = find(Special::pad, "[PAD]");
  if (!missing.empty())
    throw ConfigError(str("data.tokenizer = ", tokenizer.name(), ": has no ", missing,
                          ", which samples of masked language models need; use a vocabulary of BERT"));
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    vocabulary.is_special.push_back(false);
    vocabulary.starts_word.push_back(tokenizer.starts_word(id));
  }
  const auto mark = [&](std::int32_t id) { vocabulary.is_special[static_cast<std::size_t>(id)] = true; };
  for (const std::int32_t id : {vocabulary.cls, vocabulary.sep, vocabulary.mask, vocabulary.pad}) mark(id);
  if (const auto unknown = tokenizer.special(Special::unk)) mark(*unknown);
  for (const std::int32_t id : tokenizer.added_tokens()) mark(id);
  return vocabulary;
}

std::array<BertSamples::Documents, 3> split_documents(const Split& split, const SentenceSource& source) {
  const Index documents = source.num_documents();
  const auto first_token = [&](Index document) { return source.first_token(source.first_sentence(document)); };
  std::array<BertSamples::Documents, 3> parts;
  Index begin = 0;
  const std::array<TokenRange, 3> ranges = split.ranges(first_token(documents));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Index low = begin, high = documents;  // the first document that begins at or after the cut
    while (low < high) {
      const Index middle = low + (high - low) / 2;
      if (first_token(middle) < ranges[i].end)
        low = middle + 1;
      else
        high = middle;
    }
    parts[i] = {begin, low};
    begin = low;
  }
  return parts;
}

Index ngram_of(std::uint32_t word, Index max_ngram) {
  double sum = 0;
  for (Index n = 1; n <= max_ngram; ++n) sum += 1.0 / static_cast<double>(n);
  double left = (static_cast<double>(word) + 0.5) * 0x1p-32 * sum;
  for (Index n = 1; n < max_ngram; ++n) {
    left -= 1.0 / static_cast<double>(n);
    if (left < 0) return n;
  }
  return max_ngram;
}

/// The random words of a sample in an epoch.
class BertSamples::Draws {
 public:
  Draws(std::uint64_t seed, Index epoch, Index sample)
      : site_{.seed = seed, .step = static_cast<std::uint32_t>(epoch), .site = kSampleSite},
        next_(static_cast<std::uint64_t>(sample) << kBitsOfASample) {}

  std::uint32_t word() {
    if (left_ == 0) {
      words_ = site_.block(next_++);
      left_ = words_.size();
    }
    return words_[words_.size() - left_--];
  }
  Index below(Index n) { return data::below(word(), n); }

 private:
  static constexpr int kBitsOfASample = 26;  // blocks: four words for every token of the longest sample
  RandomSite site_;
  std::uint64_t next_;
  Philox4 words_{};
  std::size_t left_ = 0;
};

/// Cuts a document into samples, one after the other.
class BertSamples::Walk {
 public:
  Walk(const BertSamples& of, Index document)
      : of_(of),
        source_(*of.source_),
        document_(document),
        sentence_(source_.first_sentence(document)),
        last_sentence_(source_.first_sentence(document + 1)),
        at_(source_.first_token(sentence_)),
        end_(source_.text_end(document)) {
    if (of_.is_pair() && sentences_with_tokens() < 2) at_ = end_;
  }
  void go_to(const Anchor& anchor) {
    sentence_ = anchor.sentence;
    at_ = anchor.at;
    number_ = anchor.number;
  }
  Anchor anchor(Index sample) const { return {.sample = sample, .sentence = sentence_, .at = at_, .number = number_}; }

  /// Nothing at the end of the document.
  std::optional<Cut> next() {
    while (at_ < end_) {
      const Cut cut = take();
      if (!of_.is_pair() || cut.sentences > 1 || !of_.places_to_split(cut).empty()) return cut;
    }
    return std::nullopt;
  }

 private:
  Index end_of_sentence(Index sentence) const { return std::min(source_.first_token(sentence + 1), end_); }

  /// Counts up to 2.
  Index sentences_with_tokens() const {
    Index count = 0;
    for (Index i = sentence_; i < last_sentence_ && count < 2; ++i) {
      if (end_of_sentence(i) > source_.first_token(i)) ++count;
    }
    return count;
  }

  Index target() {
    const Philox4 words =
        RandomSite{.seed = of_.seed_, .step = number_++, .site = kCutSite}.block(static_cast<std::uint64_t>(document_));
    const Index max = of_.config_.max_tokens();
    return happens(words[0], of_.config_.short_fraction) ? 2 + below(words[1], max - 1) : max;
  }

  Cut take() {
    const Index max = of_.config_.max_tokens(), wanted = target();
    while (end_of_sentence(sentence_) <= at_) ++sentence_;
    Cut cut{.document = document_, .first_sentence = sentence_, .sentences = 0, .begin = at_, .end = at_};
    for (; sentence_ < last_sentence_; ++sentence_) {
      const Index end = end_of_sentence(sentence_);
      if (end <= cut.end) continue;
      const bool is_enough = cut.end - cut.begin >= wanted && (cut.sentences > 1 || !of_.is_pair());
      if (cut.sentences > 0 && (is_enough || end - cut.begin > max)) break;
      ++cut.sentences;
      if (end - cut.begin > max) {  // of one sentence
        cut.end = of_.cut_at_word(cut.begin, cut.begin + max);
        break;
      }
      cut.end = end;
    }
    at_ = cut.end;
    return cut;
  }

  const BertSamples& of_;
  const SentenceSource& source_;
  Index document_, sentence_, last_sentence_;
  Index at_, end_;  // tokens: of the next sample, of the document
  std::uint32_t number_ = 0;
};

BertSamples::BertSamples(SentenceSourcePtr source, Documents documents, BertVocabulary vocabulary,
                         const BertSampleConfig& config, std::uint64_t seed)
    : source_(std::move(source)),
      documents_(documents),
      vocabulary_(std::move(vocabulary)),
      config_(config),
      seed_(seed) {
  for (std::size_t id = 0; id < vocabulary_.is_special.size(); ++id) {
    if (!vocabulary_.is_special[id]) ordinary_.push_back(static_cast<std::int32_t>(id));
  }
  before_.reserve(static_cast<std::size_t>(documents.size()) + 1);
  before_.push_back(0);
  Index with_tokens = 0;
  for (Index document = documents.first; document < documents.last; ++document) {
    Index samples = 0;
    Walk walk(*this, document);
    for (Anchor here = walk.anchor(before_.back()); walk.next(); here = walk.anchor(before_.back() + samples)) {
      if (samples > 0 && samples % kSamplesOfAnchor == 0) anchors_.push_back(here);
      ++samples;
    }
    before_.push_back(before_.back() + samples);
    if (source_->text_end(document) > source_->first_token(source_->first_sentence(document))) ++with_tokens;
  }
  if (count() == 0) {
    throw InputError(str("[", source_->name(), "] ",
                         is_pair() && with_tokens > 0
                             ? "no document has two sentences: use bert.order = \"none\", or `data build --sentences`"
                             : "no document has a token"));
  }
  if (config_.order == SentenceOrder::nsp && with_tokens < 2) {
    throw InputError(str("[", source_->name(),
                         "] one document: bert.order = \"nsp\" needs two, as second segments may be of another; use "
                         "bert.order = \"sop\""));
  }
}

Index BertSamples::documents_without_samples() const {
  Index count = 0;
  for (std::size_t i = 1; i < before_.size(); ++i) count += before_[i] == before_[i - 1] ? 1 : 0;
  return count;
}

bool BertSamples::begins_word(std::int32_t id) const {
  const auto at = static_cast<std::size_t>(id);
  if (at >= vocabulary_.is_special.size())
    throw InputError(str("[", source_->name(), "] id ", id, ": must be below ", vocabulary_.is_special.size(),
                         ", the size of the vocabulary; the file was made with another tokenizer"));
  return !config_.whole_words || vocabulary_.is_special[at] || vocabulary_.starts_word[at];
}

std::vector<std::int32_t> BertSamples::read(Range range) const {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(range.size()));
  source_->copy(range.begin, tokens);
  return tokens;
}

/// The last place up to `limit` where a word begins, after `begin`; `limit` within a word that is longer. A token must
/// be there.
Index BertSamples::cut_at_word(Index begin, Index limit) const {
  const std::vector<std::int32_t> tokens = read({begin, limit + 1});
  for (Index at = limit; at > begin; --at) {
    if (begins_word(tokens[static_cast<std::size_t>(at - begin)])) return at;
  }
  return limit;
}

/// Where B may begin: at sentences, or of a single one at words.
std::vector<Index> BertSamples::places_to_split(const Cut& cut) const {
  std::vector<Index> places;
  if (cut.sentences > 1) {
    for (Index i = cut.first_sentence + 1; source_->first_token(i) < cut.end; ++i) {
      const Index begin = source_->first_token(i);
      if (begin > cut.begin && (places.empty() || places.back() != begin)) places.push_back(begin);
    }
    return places;
  }
  const std::vector<std::int32_t> tokens = read({cut.begin, cut.end});
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    if (begins_word(tokens[i])) places.push_back(cut.begin + static_cast<Index>(i));
  }
  return places;
}

BertSamples::Cut BertSamples::cut_of(Index sample) const {
  if (sample < 0 || sample >= count())
    throw ShapeError(str("[bert_samples] sample ", sample, " of ", source_->name(), ": must be below ", count()));
  const auto after = std::ranges::upper_bound(before_, sample);
  const Index document = after - before_.begin() - 1;
  Walk walk(*this, documents_.first + document);
  Index next = before_[static_cast<std::size_t>(document)];
  const auto behind = std::ranges::upper_bound(anchors_, sample, {}, &Anchor::sample);
  if (behind != anchors_.begin() && std::prev(behind)->sample > next) {
    walk.go_to(*std::prev(behind));
    next = std::prev(behind)->sample;
  }
  std::optional<Cut> cut = walk.next();
  for (; next < sample; ++next) cut = walk.next();
  return *cut;
}

/// At most `room` tokens of another document, from a random sentence on.
BertSamples::Range BertSamples::other_text(Draws& draws, Index document, Index room) const {
  Index other = documents_.first + draws.below(documents_.size() - 1);
  if (other >= document) ++other;
  Range text;
  while (text.size() == 0) {  // of a document without tokens it goes on with the next
    text = {source_->first_token(source_->first_sentence(other)), source_->text_end(other)};
    if (text.size() > 0 && other != document) break;
    text = {};
    if (++other == documents_.last) other = documents_.first;
  }
  const Index first = source_->first_sentence(other), sentences = source_->first_sentence(other + 1) - first;
  Index sentence = first + draws.below(sentences);
  while (source_->first_token(sentence) >= text.end) --sentence;  // empty ones at the end
  text.begin = source_->first_token(sentence);
  if (text.size() <= room) return text;
  Index end = text.begin;
  for (Index next; (next = std::min(source_->first_token(sentence + 1), text.end)) - text.begin <= room; ++sentence)
    end = next;
  return {text.begin, end > text.begin ? end : cut_at_word(text.begin, text.begin + room)};
}

void BertSamples::make(Index epoch, Index sample, BertSample& out) const {
  const auto size = static_cast<std::size_t>(config_.seq_len), places = static_cast<std::size_t>(config_.max_masked());
  if (out.tokens.size() != size || out.types.size() != size || out.places.size() != places ||
      out.targets.size() != places)
    throw ShapeError(str("[bert_samples] tokens [", out.tokens.size(), "], types [", out.types.size(), "], places [",
                         out.places.size(), "], targets [", out.targets.size(), "]: must be [", size, "], [", size,
                         "], [", places, "], [", places, "]"));
  const Cut cut = cut_of(sample);
  Draws draws(seed_, epoch, sample);
  Range segments[2] = {{cut.begin, cut.end}, {}};
  out.label = 0;
  if (is_pair()) {
    const std::vector<Index> splits = places_to_split(cut);
    const Index split = splits[static_cast<std::size_t>(draws.below(std::ssize(splits)))];
    segments[0].end = segments[1].begin = split;
    segments[1].end = cut.end;
    out.label = static_cast<std::int32_t>(draws.word() >> 31);
    if (out.label == 1 && config_.order == SentenceOrder::sop) std::swap(segments[0], segments[1]);
    if (out.label == 1 && config_.order == SentenceOrder::nsp)
      segments[1] = other_text(draws, cut.document, segments[1].size());
  }
  std::ranges::fill(out.tokens, vocabulary_.pad);
  std::ranges::fill(out.types, 0);
  Index at = 0;
  out.tokens[static_cast<std::size_t>(at++)] = vocabulary_.cls;
  for (std::int32_t type = 0; type < (is_pair() ? 2 : 1); ++type) {
    const Range& segment = segments[type];
    const auto begin = static_cast<std::size_t>(at), count = static_cast<std::size_t>(segment.size());
    source_->copy(segment.begin, out.tokens.subspan(begin, count));
    out.tokens[begin + count] = vocabulary_.sep;
    std::ranges::fill(out.types.subspan(begin, count + 1), type);
    at += segment.size() + 1;
  }
  out.length = static_cast<std::int32_t>(at);
  mask(draws, out);
}

void BertSamples::mask(Draws& draws, BertSample& out) const {
  std::vector<Word> words;
  Index tokens = 0;
  for (Index i = 1; i < out.length; ++i) {
    const std::int32_t id = out.tokens[static_cast<std::size_t>(i)];
    const bool begins = begins_word(id);
    if (vocabulary_.is_special[static_cast<std::size_t>(id)]) continue;
    ++tokens;
    if (begins || words.empty() || words.back().end != i)
      words.push_back({.begin = i, .end = i + 1});
    else
      ++words.back().end;
  }
  std::vector<std::size_t> order(words.size());
  for (std::size_t i = 0; i < order.size(); ++i) {  // a random order, built from the front (Fisher and Yates)
    const auto j = static_cast<std::size_t>(draws.below(static_cast<Index>(i) + 1));
    order[i] = order[j];
    order[j] = i;
  }
  Index left = config_.budget(tokens);
  for (const std::size_t first : order) {
    if (left == 0) break;
    if (words[first].is_masked) continue;
    const Index most = ngram_of(draws.word(), config_.max_ngram);
    std::size_t end = first;  // of the longest span that can be masked
    Index taken = 0;
    while (end < words.size() && static_cast<Index>(end - first) < most && !words[end].is_masked &&
           (end == first || words[end].begin == words[end - 1].end) && taken + words[end].size() <= left)
      taken += words[end++].size();
    for (std::size_t w = first; w < end; ++w) words[w].is_masked = true;
    left -= taken;
  }
  std::ranges::fill(out.places, kNoPlace);
  std::ranges::fill(out.targets, kNoPlace);
  std::size_t number = 0;
  for (const Word& word : words) {
    for (Index i = word.begin; word.is_masked && i < word.end; ++i, ++number) {
      std::int32_t& id = out.tokens[static_cast<std::size_t>(i)];
      out.places[number] = static_cast<std::int32_t>(i);
      out.targets[number] = id;
      const std::uint32_t draw = draws.word();
      if (happens(draw, 0.8))
        id = vocabulary_.mask;
      else if (happens(draw, 0.9))
        id = ordinary_[static_cast<std::size_t>(draws.below(std::ssize(ordinary_)))];
    }
  }
}

}  // namespace megalith::data
