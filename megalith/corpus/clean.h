#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megalith/corpus/packer.h"
#include "megalith/corpus/titles.h"
#include "megalith/data/document_reader.h"
#include "megalith/io/fs.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::corpus {

enum class BadLines {
  fail,  ///< the first one is an error
  skip   ///< left out and counted by reason
};

struct CleanOptions {
  std::vector<io::Path> inputs;
  data::DocumentReader::Options reading{};
  std::string key = "text";
  std::string version{};    ///< the program's version, for report.json
  std::string vocab_dir{};  ///< folder of the tokenizer, and the files of the titles, for report.json
  std::vector<std::string> title_files{}, wikitext_files{};
  io::Path output;  ///< folder, absent or empty
  enum class Lines { as_they_are, joined } lines = Lines::as_they_are;
  Titles titles{};                                          ///< titles of articles to remove
  std::uint64_t min_tokens = 0;                             ///< shorter documents are removed; 0: no filter
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer{};  ///< counts them; needed with min_tokens
  BadLines bad_lines = BadLines::fail;
  Compression compression = Compression::none;  ///< compression of the output files
  int threads = 1;
  enum class Write { documents, report_only } write = Write::documents;
  /// Bytes of input files read and of all of them; called by one thread at a time.
  std::function<void(std::uint64_t, std::uint64_t)> progress{};
};

/// Counts of one input file, or of all of them.
struct CleanCounts {
  std::string file{}, output{};
  std::uint64_t stored_bytes = 0;
  std::uint64_t documents = 0, text_bytes = 0;  ///< in, without bad lines
  std::uint64_t repaired = 0;                   ///< documents in which lines were joined
  std::uint64_t titled = 0, titled_bytes = 0;   ///< removed because the title is listed
  std::uint64_t brief = 0, brief_bytes = 0;     ///< removed because they have fewer than min_tokens
  std::uint64_t documents_out = 0, text_bytes_out = 0, bytes_written = 0;
  std::array<std::uint64_t, data::kNumBadDocuments> bad{};  ///< by BadDocument
  double seconds = 0;
  void add(const CleanCounts& that);
};

struct CleanReport {
  std::vector<CleanCounts> files{};
  CleanCounts total{};
  std::vector<std::string> bad_lines{};       ///< the errors of the first ten
  std::vector<std::string> titles_missed{};   ///< listed and in no document
  std::vector<std::string> titles_unknown{};  ///< listed with "<unk>": in no document
  double seconds = 0;
};

/// Repairs lines, removes articles by title, then removes documents with fewer tokens than required, in this order. The
/// rest goes to the output folder: a file NNNNN-NAME.jsonl per input file, in order, and report.json. Each line keeps
/// all its members, except for a text whose lines were repaired (a text file is a line {"text": ...}). A document's
/// title is its member "title" where that is a string, else its first line. Files appear whole or not at all, and are
/// the same for any number of threads. Memory: a block of text per thread. Throws ConfigError, InputError (file and
/// line), IoError. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 4.1.
CleanReport clean(io::Fs& fs, const CleanOptions& options);

}  // namespace megalith::corpus
