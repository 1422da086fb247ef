#include "megalith/corpus/overlap.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/corpus/ngram_table.h"
#include "megalith/corpus/output_folder.h"
#include "megalith/corpus/report.h"
#include "megalith/corpus/staged_file.h"
#include "megalith/data/ordered_work.h"

namespace megalith::corpus {
namespace {

using Json = nlohmann::ordered_json;

struct TestDocument {
  std::uint64_t words = 0;
  std::size_t first = 0, ngrams = 0;  // place in the numbers of its file
};
struct TestFile {
  std::string name;
  std::uint64_t stored_bytes = 0, text_bytes = 0;
  double seconds = 0;
  std::vector<TestDocument> documents{};
  std::vector<std::uint32_t> ngrams{};
};

TestFile read_test_file(io::Fs& fs, const io::Path& path, const OverlapOptions& options, NgramTable& table) {
  const double start = monotonic_s();
  TestFile file{.name = path.string()};
  data::DocumentReader reader(fs, path, options.reading);
  file.stored_bytes = fs.file_size(path);
  data::DocumentText text(options.key);
  NormalWords words;
  while (const auto block = reader.next()) {
    for (const data::RawDocument& document : block->documents) {
      const std::string_view bytes = text.of(*block, document);
      words.read(bytes);
      file.text_bytes += bytes.size();
      const std::size_t first = file.ngrams.size();
      table.add(words, file.ngrams);
      file.documents.push_back({words.size(), first, file.ngrams.size() - first});
    }
  }
  file.seconds = monotonic_s() - start;
  return file;
}

/// A thread's results for a block, in addition to its marks.
struct Streamed {
  std::uint64_t documents = 0, words = 0, text_bytes = 0;
  // For a piece of a text that is cut: its first and last words, for the n-grams across the cuts.
  bool is_piece = false, ends_document = true;
  std::string first{}, last{};
};

/// Streams a training file past the table.
class TrainingFile {
 public:
  TrainingFile(io::Fs& fs, const io::Path& path, const OverlapOptions& options, NgramTable& table)
      : options_(options), table_(table), reader_(fs, path, options.reading) {}

  void stream(TrainingFileCounts& counts, std::uint64_t stored_before, std::uint64_t stored_all) {
    const double start = monotonic_s();
    data::work_in_order<Streamed>(
        options_.threads,
        [&] {
          auto block = reader_.next();
          if (block) read_ = reader_.stored_bytes();
          return block;
        },
        [&] {
          return [this, text = data::DocumentText(options_.key), words = NormalWords(),
                  hashes = std::vector<std::uint64_t>()](const data::DocumentBlock& block, Streamed& out) mutable {
            mark(block, text, words, hashes, out);
          };
        },
        [&](const Streamed& out) {
          counts.documents += out.documents;
          counts.words += out.words;
          counts.text_bytes += out.text_bytes;
          if (out.is_piece) join(out);
          if (options_.progress) options_.progress(stored_before + read_, stored_all);
        });
    counts.seconds = monotonic_s() - start;
  }

 private:
  void mark(const data::DocumentBlock& block, data::DocumentText& text, NormalWords& words,
            std::vector<std::uint64_t>& hashes, Streamed& out) {
    out = {};
    for (const data::RawDocument& document : block.documents) {
      const std::string_view bytes = text.of(block, document);
      words.read(bytes);
      table_.mark(words, hashes);
      out.documents += document.ends_document ? 1 : 0;
      out.words += words.size();
      out.text_bytes += bytes.size();
    }
    if (block.documents.size() != 1 || block.format != data::CorpusFormat::text) return;
    // The maximal number of words of an n-gram on one side of a cut, or all words if there are fewer.
    const std::size_t side = std::min(words.size(), static_cast<std::size_t>(options_.ngram) - 1);
    out.is_piece = true;
    out.ends_document = block.documents[0].ends_document;
    if (side == 0) return;
    out.first = words.joined(0, side);
    out.last = words.joined(words.size() - side, side);
    if (words.size() == side) out.last.clear();  // first holds all words
  }

  /// Marks the n-grams across the cut before this piece.
  void join(const Streamed& piece) {
    NormalWords words;
    std::vector<std::uint64_t> hashes;
    const std::string across = carried_ + " " + piece.first;
    words.read(across);
    table_.mark(words, hashes);
    const auto side = static_cast<std::size_t>(options_.ngram) - 1;
    if (piece.ends_document || side == 0) {
      carried_.clear();
    } else if (!piece.last.empty()) {
      carried_ = piece.last;
    } else if (words.size() > 0) {
      const std::size_t kept = std::min(side, words.size());
      carried_ = words.joined(words.size() - kept, kept);
    }
  }

  const OverlapOptions& options_;
  NgramTable& table_;
  data::DocumentReader reader_;
  std::atomic<std::uint64_t> read_ = 0;
  std::string carried_;  // last words of the text before the cut
};

TestFileCounts counts_of(const TestFile& file, const NgramTable& table, std::size_t ngram) {
  TestFileCounts counts{.file = file.name,
                        .stored_bytes = file.stored_bytes,
                        .text_bytes = file.text_bytes,
                        .documents = file.documents.size(),
                        .ngrams = file.ngrams.size(),
                        .seconds = file.seconds};
  for (const TestDocument& document : file.documents) {
    counts.words += document.words;
    counts.short_documents += document.words < ngram ? 1 : 0;
  }
  std::vector<std::uint32_t> numbers = file.ngrams;
  for (const std::uint32_t number : numbers) counts.found += table.is_found(number) ? 1 : 0;
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  counts.distinct_ngrams = numbers.size();
  for (const std::uint32_t number : numbers) counts.distinct_found += table.is_found(number) ? 1 : 0;
  return counts;
}

/// null where there is nothing to divide by.
Json share(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? Json(nullptr) : Json(static_cast<double>(part) / static_cast<double>(all));
}

void write_documents(StagedFile& out, const std::vector<TestFile>& files, const NgramTable& table) {
  for (const TestFile& file : files) {
    for (std::size_t i = 0; i < file.documents.size(); ++i) {
      const TestDocument& document = file.documents[i];
      std::uint64_t found = 0;
      for (std::size_t n = 0; n < document.ngrams; ++n)
        found += table.is_found(file.ngrams[document.first + n]) ? 1 : 0;
      const Json json = {{"file", file.name},         {"document", i + 1}, {"words", document.words},
                         {"ngrams", document.ngrams}, {"found", found},    {"share", share(found, document.ngrams)}};
      out.write(json.dump() + "\n");
    }
  }
}

Json json_of(const OverlapOptions& options, const OverlapReport& report) {
  const Json settings = {{"command", "data overlap"},
                         {"ngram", options.ngram},
                         {"key", options.key},
                         {"input_format", format_name(options.reading.format)},
                         {"max_line", options.reading.max_document_bytes},
                         {"dry_run", options.write == OverlapOptions::Write::report_only}};
  Json test = Json::array(), train = Json::array();
  std::uint64_t test_text_bytes = 0;
  for (const TrainingFileCounts& counts : report.train_files) {
    train.push_back({{"file", counts.file},
                     {"stored_bytes", counts.stored_bytes},
                     {"text_bytes", counts.text_bytes},
                     {"documents", counts.documents},
                     {"words", counts.words}});
    put_time(train.back(), counts.seconds, counts.text_bytes);
  }
  for (const TestFileCounts& counts : report.test) {
    test.push_back({{"file", counts.file},
                    {"stored_bytes", counts.stored_bytes},
                    {"text_bytes", counts.text_bytes},
                    {"documents", counts.documents},
                    {"documents_shorter_than_an_ngram", counts.short_documents},
                    {"words", counts.words},
                    {"ngrams", counts.ngrams},
                    {"found", counts.found},
                    {"share", share(counts.found, counts.ngrams)},
                    {"distinct_ngrams", counts.distinct_ngrams},
                    {"distinct_found", counts.distinct_found},
                    {"distinct_share", share(counts.distinct_found, counts.distinct_ngrams)}});
    put_time(test.back(), counts.seconds, counts.text_bytes);
    test_text_bytes += counts.text_bytes;
  }
  Json test_stage = {{"stage", "test"}}, train_stage = {{"stage", "train"}};
  put_time(test_stage, report.test_seconds, test_text_bytes);
  put_time(train_stage, report.seconds - report.test_seconds, report.train_text_bytes);
  return {{"version", options.version},
          {"settings", settings},
          {"run", {{"threads", options.threads}}},
          {"test", test},
          {"train",
           {{"documents", report.train_documents},
            {"words", report.train_words},
            {"text_bytes", report.train_text_bytes},
            {"stored_bytes", report.train_stored_bytes},
            {"files", train}}},
          {"stages", Json::array({test_stage, train_stage})}};
}

void check(io::Fs& fs, const OverlapOptions& options) {
  Problems problems;
  problems.require(!options.train.empty(), "--train", "", "must name at least one file");
  problems.require(!options.test.empty(), "--test", "", "must name at least one file");
  problems.require(options.ngram >= 1 && options.ngram <= 1000, "--ngram", options.ngram, "must be 1 to 1000 words");
  problems.require(options.threads >= 1, "--threads", options.threads, "must be at least 1");
  problems.throw_if_any("data overlap");
  require_empty(fs, options.output);
}

}  // namespace

OverlapReport measure_overlap(io::Fs& fs, const OverlapOptions& asked) {
  OverlapOptions options = asked;
  options.reading.cut = data::DocumentReader::Cut::texts;
  check(fs, options);
  OverlapReport report;
  const double start = monotonic_s();
  for (const io::Path& path : options.train) {
    data::require_file(fs, path, "train");
    report.train_stored_bytes += fs.file_size(path);
  }
  NgramTable table(static_cast<std::size_t>(options.ngram));
  std::vector<TestFile> files;
  OverlapOptions whole = options;
  whole.reading.cut = data::DocumentReader::Cut::documents;
  for (const io::Path& path : options.test) files.push_back(read_test_file(fs, path, whole, table));
  table.finish();
  report.test_seconds = monotonic_s() - start;
  std::uint64_t before = 0;
  for (const io::Path& path : options.train) {
    TrainingFileCounts& counts = report.train_files.emplace_back();
    counts.file = path.string();
    counts.stored_bytes = fs.file_size(path);
    TrainingFile(fs, path, options, table).stream(counts, before, report.train_stored_bytes);
    before += counts.stored_bytes;
    report.train_documents += counts.documents;
    report.train_words += counts.words;
    report.train_text_bytes += counts.text_bytes;
  }
  for (const TestFile& file : files)
    report.test.push_back(counts_of(file, table, static_cast<std::size_t>(options.ngram)));
  report.seconds = monotonic_s() - start;
  fs.make_dir(options.output);
  StagedFile report_file(fs, options.output / "report.json");
  report_file.write(json_of(options, report).dump(1) + "\n");
  if (options.write == OverlapOptions::Write::report_only) {
    report_file.publish();
    return report;
  }
  StagedFile documents(fs, options.output / "per_document.jsonl");
  write_documents(documents, files, table);
  StagedFile::publish_all({&documents, &report_file});
  return report;
}

}  // namespace megalith::corpus
