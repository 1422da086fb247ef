#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/corpus/minhash.h"
#include "megalith/data/document_reader.h"
#include "megalith/io/fs.h"

namespace megalith::corpus {

/// A decimal number as it was written, so that "above 0.7" is decided with integers.
struct Decimal {
  std::uint64_t numerator = 7, denominator = 10;
  double value() const { return static_cast<double>(numerator) / static_cast<double>(denominator); }
  /// Whether shared / either > this.
  bool is_below(std::uint64_t shared, std::uint64_t either) const {
    __extension__ using Wide = unsigned __int128;
    return Wide{shared} * denominator > Wide{either} * numerator;
  }
};
/// "0.7", the same as "0.70"; at most 9 digits after the point. Throws ConfigError unless the number lies between 0 and
/// 1, both excluded.
Decimal parse_similarity(std::string_view text);

enum class Keep {
  first,   ///< the first document of a cluster stays, in the order of the inputs
  longest  ///< the one with the most bytes of text stays; the first among equal ones
};

/// The part of a run's work for this process. The processes take a stage's units in turn.
struct Share {
  int rank = 0, count = 1;
  /// When units of other processes are missing at the end of a stage. leave: returns; wait: waits for them.
  enum class Others { leave, wait } others = Others::wait;
};

struct DedupOptions {
  std::vector<io::Path> inputs;
  data::DocumentReader::Options reading{};
  std::string key = "text";
  std::string version{};  ///< the program's version, for report.json
  io::Path output;        ///< folder, made when absent
  io::Path work;          ///< folder; empty: output/work
  Decimal jaccard{};
  int shingle = 5;  ///< words
  Banding banding{20, 5};
  Keep keep = Keep::first;
  std::uint64_t max_bucket = 10000;
  std::uint64_t seed = 1;
  std::size_t memory = std::size_t{1} << 30;  ///< bytes; 8 per document and the text being read come in addition
  int threads = 1;
  Share share{};
  enum class Write { documents, report_only } write = Write::documents;
  /// stage, units done of how many; called by one thread at a time.
  std::function<void(std::string_view, std::size_t, std::size_t)> progress{};
};

/// Reports every option that breaks a rule in one ConfigError.
void check(const DedupOptions& options);

/// Counts of one input file, or of all of them.
struct FileCounts {
  std::string file{};
  std::uint64_t bytes = 0;                      ///< size of the file as it is stored
  std::uint64_t documents = 0, text_bytes = 0;  ///< input
  std::uint64_t words = 0, without_words = 0;   ///< documents without a word count as one shingle
  std::uint64_t removed = 0, removed_text_bytes = 0;
  std::uint64_t bytes_written = 0;
  std::string output{};                   ///< name in the output folder
  double signatures_s = 0, filter_s = 0;  ///< time of these stages, whichever processes ran them
};

struct DedupReport {
  bool is_complete = false;  ///< false: others' units of `stage` are missing (Share::Others::leave)
  std::string stage{};
  std::vector<FileCounts> files{};
  FileCounts total{};
  std::uint64_t candidates = 0;  ///< pairs that share a band
  std::uint64_t compared = 0, above = 0;
  std::uint64_t crowded_buckets = 0, not_compared = 0;  ///< pairs of crowded buckets that were not compared
  std::uint64_t clusters = 0;
  std::map<std::uint64_t, std::uint64_t> clusters_by_size{};
  std::vector<std::pair<std::string, double>> seconds{};  ///< time of this process per stage
  std::string work_left{};                                ///< why the work folder could not be removed
};

/// Writes the documents of the inputs, without repetitions, to the output folder. There is a file NNNNN-NAME.jsonl per
/// input file, in which each line is unchanged (a text is a line {"text": ...}). It also writes removed.tsv and
/// report.json.
///
/// A pair is a repetition when the Jaccard similarity of the sets of its shingles, exactly, is above options.jaccard.
/// Min-hash bands find the candidates. Connected pairs are a cluster, of which one document stays.
///
/// The files are the same for any threads, memory and shares. A call with the same options resumes a run that was
/// killed. Throws ConfigError, InputError (file and line), CheckpointError (the work folder belongs to another run),
/// IoError. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 4.1 (Jaccard above 0.7); Broder 1997 (min-hash).
DedupReport dedup(io::Fs& fs, const DedupOptions& options);

}  // namespace megalith::corpus
