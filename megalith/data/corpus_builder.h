#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "megalith/data/corpus_reader.h"
#include "megalith/data/indexed_dataset.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::data {

enum class EndOfDocument {
  append,  ///< each document ends with Tokenizer::end_of_document()
  omit
};

/// What to do with text that is not UTF-8.
enum class InvalidUtf8 {
  fail,    ///< InputError naming file and byte
  replace  ///< each maximal invalid part becomes U+FFFD
};

/// What becomes a sequence of the token file.
enum class Sequences {
  documents,
  sentences  ///< see sentences.h; BERT's pre-training wants them
};

/// The counts of one input file.
struct CorpusFileCounts {
  std::string file;
  Index documents = 0, empty_documents = 0, tokens = 0, stored_bytes = 0, text_bytes = 0;
  double seconds = 0;  ///< from the last block of the previous file to its own last block
};

struct CorpusCounts {
  Index documents = 0, empty_documents = 0;  ///< documents without a token are left out and counted separately
  Index tokens = 0;
  Index sequences = 0;
  Index bytes = 0, total_bytes = 0;       ///< read so far and in all, of all inputs
  std::vector<CorpusFileCounts> files{};  ///< of each input
};

struct CorpusOptions {
  CorpusReader::Options reading{};
  std::string key = "text";  ///< the member of each JSON line that holds the text
  EndOfDocument end_of_document = EndOfDocument::append;
  Sequences sequences = Sequences::documents;
  InvalidUtf8 invalid_utf8 = InvalidUtf8::fail;
  int threads = 1;  ///< the result is the same for any number
  /// Called after each block, by one thread at a time.
  std::function<void(const CorpusCounts&)> progress{};
};

/// Takes the ids of documents in the order of the inputs.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void add(std::span<const std::int32_t> ids) = 0;
  /// The document goes on with another sequence.
  virtual void end_sequence() {}
  virtual void end_document() = 0;
};

/// Tokenises files with several threads and passes the ids to `sink` in order. Memory: one block of text and its ids
/// per thread, whatever the size of the files.
/// Throws InputError naming file and line (JSON) or byte (text): the first one in the order of the inputs.
CorpusCounts tokenize_corpus(io::Fs& fs, const std::vector<io::Path>& inputs, const tokenizer::Tokenizer& tokenizer,
                             const CorpusOptions& options, TokenSink& sink);

/// The same to prefix.bin and prefix.idx, which appear whole or not at all.
CorpusCounts build_corpus(io::Fs& fs, const std::vector<io::Path>& inputs, const tokenizer::Tokenizer& tokenizer,
                          const CorpusOptions& options, IndexedDatasetBuilder& builder);

}  // namespace megalith::data
