#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megalith/data/document_reader.h"
#include "megalith/io/fs.h"

namespace megalith::corpus {

struct OverlapOptions {
  std::vector<io::Path> train, test;
  data::DocumentReader::Options reading{};
  std::string key = "text";
  std::string version{};  ///< the program's version, for report.json
  int ngram = 8;          ///< words
  io::Path output;        ///< folder of report.json and per_document.jsonl; absent or empty
  int threads = 1;
  enum class Write { documents, report_only } write = Write::documents;
  /// Bytes of training files read and of all of them; called by one thread at a time.
  std::function<void(std::uint64_t, std::uint64_t)> progress{};
};

/// Counts of one test file. An n-gram of the test set is found when it occurs in the training text.
struct TestFileCounts {
  std::string file{};
  std::uint64_t stored_bytes = 0, text_bytes = 0;
  std::uint64_t documents = 0, short_documents = 0;  ///< short: with fewer words than an n-gram has
  std::uint64_t words = 0;
  std::uint64_t ngrams = 0, found = 0;                    ///< occurrences
  std::uint64_t distinct_ngrams = 0, distinct_found = 0;  ///< those of the file
  double seconds = 0;                                     ///< time to read it
};

/// Counts of one training file.
struct TrainingFileCounts {
  std::string file{};
  std::uint64_t stored_bytes = 0, documents = 0, words = 0, text_bytes = 0;
  double seconds = 0;
};

struct OverlapReport {
  std::vector<TestFileCounts> test{};
  std::vector<TrainingFileCounts> train_files{};
  std::uint64_t train_documents = 0, train_words = 0, train_text_bytes = 0, train_stored_bytes = 0;
  double seconds = 0, test_seconds = 0;  ///< in all, and for reading the test sets
};

/// The share of the n-grams of test sets that also occurs in training text. Words are those of NormalWords, joined by
/// single spaces; no n-gram crosses documents. It is exact: a hash only gives the place, the words decide. Memory grows
/// with the test set (about its text and 50 bytes per word). The training text is streamed past it once, whatever the
/// number of test files. The result is the same for any number of threads. Throws ConfigError, InputError (file and
/// line), IoError; then nothing is left under its final name. Source: Shoeybi et al. 2019, arXiv:1909.08053, appendix
/// E; Radford et al. 2019, section 4.
OverlapReport measure_overlap(io::Fs& fs, const OverlapOptions& options);

}  // namespace megalith::corpus
