#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/data/bert_config.h"
#include "megalith/data/samples.h"
#include "megalith/data/sentence_source.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::data {

/// What samples need of a vocabulary.
struct BertVocabulary {
  std::int32_t cls = 0, sep = 0, mask = 0, pad = 0;
  std::vector<bool> is_special;   ///< by id; these are never masked, nor put in place of others
  std::vector<bool> starts_word;  ///< by id
};

/// Of a tokenizer. Throws ConfigError, which lists the tokens, if it lacks one of the four. [UNK] and all added tokens
/// are special, too.
BertVocabulary bert_vocabulary(const tokenizer::Tokenizer& tokenizer);

/// One sample, in memory of the caller. S = seq_len, P = max_masked().
struct BertSample {
  std::span<std::int32_t> tokens, types;    ///< [S], padded with [PAD] and 0; types: 1 for B and the [SEP] after it
  std::span<std::int32_t> places, targets;  ///< [P] ascending places of masked tokens and their ids; then -1
  std::int32_t length = 0;                  ///< tokens before the padding
  std::int32_t label = 0;                   ///< class of the order
};

/// Samples for masked language models from documents of sentences.
///
/// Cuts are a function of the seed and the document. A sample takes sentences until it has its target, as long as they
/// fit: S - 3 tokens, or for a share short_fraction a random number from 2 to S - 3; at least two sentences for a pair.
/// A sentence above S - 3 tokens is cut at words. With pairs, documents of one sentence give no samples. What is left
/// of a document gives none if it is one word.
///
/// All else is a function of (seed, epoch, sample). Of a pair A ends at a random sentence, or at a random word where
/// the sample has one sentence. With 0.5 both are swapped (sop), or B replaced by a text of another document that is at
/// most as long (nsp). Words are visited in random order. From a word on a span of n words is masked, P(n) ~ 1/n, if
/// none of them is masked yet, and if it stays in its segment and in the budget. Else it is tried shorter, then left
/// out. Each masked token becomes [MASK], a random id or itself with 0.8, 0.1, 0.1.
///
/// Memory: 8 bytes a document, the samples before it, and 32 for 64 samples of a document. It is cut again from there
/// when a sample of it is read.
/// Sources: Devlin et al. 2019, arXiv:1810.04805, section 3.1; Lan et al. 2020, arXiv:1909.11942, section 3.1 (order);
/// Joshi et al. 2020, arXiv:1907.10529 (spans); Shoeybi et al. 2019, arXiv:1909.08053, section 4.2.
class BertSamples {
 public:
  /// Documents [first, last) of a source.
  struct Documents {
    Index first = 0, last = 0;
    Index size() const { return last - first; }
  };
  /// Cuts all documents once. Throws InputError if they give no sample, and for nsp unless two have tokens.
  BertSamples(SentenceSourcePtr source, Documents documents, BertVocabulary vocabulary, const BertSampleConfig& config,
              std::uint64_t seed);

  Index count() const { return before_.back(); }
  const BertSampleConfig& config() const { return config_; }
  const SentenceSource& source() const { return *source_; }
  Index num_documents() const { return documents_.size(); }
  /// Documents that are too short for a sample: of one sentence, where a sample has two segments.
  Index documents_without_samples() const;
  /// Writes a sample, 0 <= sample < count(), as an epoch has it. Any thread; allocates some kilobytes.
  void make(Index epoch, Index sample, BertSample& out) const;

  /// Tokens [begin, end) of the source. They lie in `sentences` sentences with tokens, of which the first is number
  /// `first_sentence`.
  struct Cut {
    Index document = 0, first_sentence = 0, sentences = 0;
    Index begin = 0, end = 0;
    bool operator==(const Cut&) const = default;
  };
  Cut cut_of(Index sample) const;

 private:
  class Walk;
  class Draws;
  /// Where a walk through a long document stands before a sample, which is found from there.
  struct Anchor {
    Index sample = 0;            ///< of all documents
    Index sentence = 0, at = 0;  ///< a token
    std::uint32_t number = 0;    ///< of the cut in its document
  };
  static constexpr Index kSamplesOfAnchor = 64;
  struct Range {
    Index begin = 0, end = 0;
    Index size() const { return end - begin; }
  };
  bool is_pair() const { return config_.is_pair(); }
  bool begins_word(std::int32_t id) const;
  std::vector<std::int32_t> read(Range range) const;
  Index cut_at_word(Index begin, Index limit) const;
  std::vector<Index> places_to_split(const Cut& cut) const;
  Range other_text(Draws& draws, Index document, Index room) const;
  void mask(Draws& draws, BertSample& out) const;

  SentenceSourcePtr source_;
  Documents documents_;
  BertVocabulary vocabulary_;
  BertSampleConfig config_;
  std::uint64_t seed_;
  std::vector<std::int32_t> ordinary_;  // ids that are not special
  std::vector<Index> before_;           // by document: the samples of those before it
  std::vector<Anchor> anchors_;         // ascending; after every kSamplesOfAnchor samples of a document
};

/// Divides documents into train, valid and test, in this order. Parts end with the document that holds the token at
/// which the weights cut.
std::array<BertSamples::Documents, 3> split_documents(const Split& split, const SentenceSource& source);

/// The words of a span, 1 <= n <= max_ngram with P(n) ~ 1/n, for a uniform random word.
Index ngram_of(std::uint32_t word, Index max_ngram);

}  // namespace megalith::data
