#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megalith/base/problems.h"
#include "megalith/tokenizer/pair_merger.h"
#include "megalith/tokenizer/word_counts.h"

namespace megalith::tokenizer {

enum class TokenizerType { bpe, wordpiece, sentencepiece_unigram, sentencepiece_bpe };
/// "bpe", "wordpiece", "sentencepiece-unigram", "sentencepiece-bpe"; throws ConfigError for another.
TokenizerType tokenizer_type_named(std::string_view name);

struct TrainerOptions {
  TokenizerType type = TokenizerType::bpe;
  std::int64_t vocab_size = 0;
  std::uint64_t min_frequency = 2;      ///< a rarer pair is not merged
  std::vector<std::string> specials{};  ///< in addition to those that the type needs
  bool lowercase = false;               ///< not for bpe
  std::uint64_t memory_bytes = std::uint64_t{4}
                               << 30;  ///< of the table of words; above it the rarest words are dropped
  /// Called by one thread at a time: bytes read of all, then tokens made of all.
  std::function<void(std::uint64_t done, std::uint64_t all, std::string_view unit)> progress{};
};

/// Reports every setting that breaks a rule.
void check(const TrainerOptions& options, Problems& out);

struct TrainerFileCounts {
  std::string file;
  std::uint64_t documents = 0, stored_bytes = 0, text_bytes = 0;
  double seconds = 0;  ///< from the last block of the previous file to its own last block
};
struct TrainerReport {
  std::uint64_t documents = 0, stored_bytes = 0, text_bytes = 0;
  std::uint64_t words = 0, occurrences = 0;                  ///< different words that were learned from; all words
  std::uint64_t dropped_words = 0, dropped_occurrences = 0;  ///< for lack of memory
  std::int64_t tokens = 0;
  std::uint64_t merges = 0;
  double read_s = 0, learn_s = 0;
  std::vector<TrainerFileCounts> files{};
};

/// A file of a tokenizer.
struct TrainedFile {
  std::string name, text;
};
struct TrainedTokenizer {
  std::vector<TrainedFile> files;  ///< for make_tokenizer() and for other programs
  TrainerReport report;
};

/// Cuts a text into words and counts them; one per thread.
using WordCutter = std::function<void(std::string_view text, WordCounts& words)>;

/// How texts are cut into words.
struct WordCutting {
  /// The smallest place p >= from, p > 0, where a text can be cut into two, else its size.
  std::function<std::size_t(std::string_view text, std::size_t from)> next_cut;
  std::function<WordCutter()> make_cutter;
  std::uint64_t memory_bytes;  ///< of the table of words
};
/// Reads all text and counts its words. Fills the documents, bytes and files of the report.
using CountWords = std::function<WordCounts(const WordCutting& cutting, TrainerReport& report)>;

/// Calls `count` and fills the words of the report. Throws InputError if there are none.
WordCounts count_words(const CountWords& count, const WordCutting& cutting, TrainerReport& report);

/// Learns a vocabulary from text, with settings that check() passes.
///   bpe        vocab.json, merges.txt, tokenizer.json: GPT-2's way of cutting. The special tokens come first, then the
///              256 bytes, then the merges. The merges are those of tokenizers 0.23.3 with the same settings.
///   wordpiece  vocab.txt, tokenizer.json: BERT's way of cutting, [PAD] [UNK] [CLS] [SEP] [MASK] first, then the
///              characters (the 1000 most frequent, and fewer where the vocabulary is small), then the merges.
///   sentencepiece-*  tokenizer.model, by the library.
/// Throws ConfigError, and InputError where there is no text.
TrainedTokenizer train_tokenizer(const TrainerOptions& options, const CountWords& count);

/// Learns from counted words.
struct LearnedBpe {
  std::vector<std::string> tokens;  ///< by id, in the characters of byte-level BPE
  std::vector<PairMerger::Merge> merges;
};
LearnedBpe learn_bpe(const WordCounts& words, const std::vector<std::string>& specials,
                     const PairMerger::Options& options);
/// Tokens by id.
std::vector<std::string> learn_wordpiece(const WordCounts& words, const std::vector<std::string>& specials,
                                         const PairMerger::Options& options);

}  // namespace megalith::tokenizer
