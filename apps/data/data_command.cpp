#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/corpus/report.h"
#include "megalith/corpus/staged_file.h"
#include "megalith/data/corpus_builder.h"
#include "megalith/data/indexed_dataset.h"
#include "megalith/data/input_files.h"
#include "megalith/io/remove_if_there.h"
#include "megalith/io/run_lock.h"

#include "apps/program/command.h"
#include "apps/program/corpus_options.h"
#include "apps/program/launch.h"
#include "apps/program/output_path.h"
#include "apps/program/version.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {
namespace {

struct BuildOptions {
  std::vector<std::string> inputs;
  std::string output;
  std::string tokenizer = "gpt2";
  std::string vocab_dir;
  std::string format = "auto";
  data::CorpusOptions corpus;
  const CLI::Option* key = nullptr;
  std::uint64_t max_line = data::kDefaultMaxLine;
  bool append_eod = true, sentences = false;
  bool overwrite = false;
  bool replace_invalid = false;
  bool dry_run = false;
};

/// A progress bar on standard error, if that is a terminal, and the figures of a build.
class BuildProgress {
 public:
  void show(const data::CorpusCounts& counts) {
    const double now = monotonic_s();
    if (!is_terminal_ || now - shown_s_ < 0.1) return;
    shown_s_ = now;
    const double done =
        counts.total_bytes == 0 ? 1.0 : static_cast<double>(counts.bytes) / static_cast<double>(counts.total_bytes);
    const double left_s = (now - start_s_) * (1.0 - done) / std::max(done, 1e-9);
    std::string bar(kBarWidth, '.');
    std::fill_n(bar.begin(), static_cast<std::ptrdiff_t>(done * kBarWidth), '#');
    std::fprintf(stderr, "\r[%s] %3.0f %%  %s of %s  %lld tokens  %.1f MB/s  %.0f s left \x1b[K", bar.c_str(),
                 100 * done, human_bytes(counts.bytes).c_str(), human_bytes(counts.total_bytes).c_str(),
                 static_cast<long long>(counts.tokens), megabytes_per_second(counts), left_s);
  }
  /// Removes the bar, so that the next output has its own line.
  void end() const {
    if (is_terminal_) std::fputs("\r\x1b[K", stderr);
  }
  double megabytes_per_second(const data::CorpusCounts& counts) const {
    return static_cast<double>(counts.bytes) / 1e6 / std::max(seconds(), 1e-9);
  }
  double seconds() const { return monotonic_s() - start_s_; }

 private:
  static constexpr int kBarWidth = 30;
  bool is_terminal_ = ::isatty(STDERR_FILENO) == 1;
  double start_s_ = monotonic_s();
  double shown_s_ = 0;
};

Index text_bytes_of(const data::CorpusCounts& counts) {
  Index bytes = 0;
  for (const data::CorpusFileCounts& file : counts.files) bytes += file.text_bytes;
  return bytes;
}

/// PREFIX.report.json.
nlohmann::ordered_json build_report(const BuildOptions& options, const data::CorpusCounts& counts, double seconds) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const data::CorpusFileCounts& file : counts.files) {
    files.push_back({{"file", file.file},
                     {"stored_bytes", file.stored_bytes},
                     {"text_bytes", file.text_bytes},
                     {"documents_in", file.documents + file.empty_documents},
                     {"removed", {{"empty", file.empty_documents}}},
                     {"documents_out", file.documents},
                     {"tokens", file.tokens}});
    corpus::put_time(files.back(), file.seconds, static_cast<std::uint64_t>(file.text_bytes));
  }
  nlohmann::ordered_json stage = {{"stage", "build"}};
  corpus::put_time(stage, seconds, static_cast<std::uint64_t>(text_bytes_of(counts)));
  return {{"version", version()},
          {"settings",
           {{"command", "data build"},
            {"output", options.output},
            {"tokenizer", options.tokenizer},
            {"vocab_dir", options.vocab_dir},
            {"key", options.corpus.key},
            {"input_format", options.format},
            {"split_on", options.corpus.reading.split_on},
            {"sentences", options.sentences},
            {"append_eod", options.append_eod},
            {"replace_invalid_utf8", options.replace_invalid},
            {"max_line", options.max_line},
            {"overwrite", options.overwrite},
            {"dry_run", options.dry_run}}},
          {"run", {{"threads", options.corpus.threads}}},
          {"total",
           {{"stored_bytes", counts.bytes},
            {"text_bytes", text_bytes_of(counts)},
            {"documents_in", counts.documents + counts.empty_documents},
            {"removed", {{"empty", counts.empty_documents}}},
            {"documents_out", counts.documents},
            {"sequences", counts.sequences},
            {"tokens", counts.tokens}}},
          {"stages", nlohmann::ordered_json::array({stage})},
          {"files", files}};
}

void show(const data::CorpusCounts& counts) {
  const auto number = [](Index n) { return std::to_string(n); };
  std::cout << text_table(
      {{"", "documents", "text", "tokens"},
       {"in", number(counts.documents + counts.empty_documents), human_bytes(text_bytes_of(counts)), ""},
       {"empty", number(counts.empty_documents), "", ""},
       {"out", number(counts.documents), "", number(counts.tokens)}});
}

/// Without its report the files of a prefix are removed, so that existing files are complete.
void publish_build_report(io::Fs& fs, const BuildOptions& options, const std::string& text) {
  const std::string& prefix = options.output;
  try {
    corpus::StagedFile report(fs, prefix + ".report.json");
    report.write(text);
    corpus::StagedFile::publish_all({&report});
  } catch (const Error&) {
    if (!options.dry_run) {
      for (const io::Path& file : {data::bin_path(prefix), data::idx_path(prefix)}) io::remove_if_there(fs, file);
    }
    throw;
  }
}

void run_build(const BuildOptions& asked) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  const auto tokenizer = open_tokenizer(*fs, asked.tokenizer, asked.vocab_dir);
  BuildProgress progress;
  data::CorpusOptions options = asked.corpus;
  options.reading.format = data::format_named(asked.format);
  options.reading.max_line_bytes = static_cast<Index>(asked.max_line);
  options.sequences = asked.sentences ? data::Sequences::sentences : data::Sequences::documents;
  options.end_of_document = asked.append_eod ? data::EndOfDocument::append : data::EndOfDocument::omit;
  options.invalid_utf8 = asked.replace_invalid ? data::InvalidUtf8::replace : data::InvalidUtf8::fail;
  options.progress = [&progress](const data::CorpusCounts& counts) { progress.show(counts); };

  const std::vector<io::Path> inputs = data::input_files(*fs, asked.inputs);
  require_members(*fs, inputs, options.reading.format, *asked.key);
  data::CorpusCounts counts;
  const io::Path prefix = asked.output;
  std::optional<io::OutputLock> lock;  // of this prefix only: others may be built in the same folder
  if (!asked.dry_run) {
    lock.emplace(prefix.parent_path(), "." + prefix.filename().string() + ".lock");
    data::remove_unpublished(*fs, prefix);
  }
  try {
    using Existing = data::IndexedDatasetBuilder::Existing;
    data::IndexedDatasetBuilder builder(*fs, asked.output,
                                        {.vocab_size = tokenizer->vocab_size(),
                                         .existing = asked.overwrite ? Existing::replace : Existing::refuse,
                                         .writes = asked.dry_run ? data::IndexedDatasetBuilder::Writes::nothing
                                                                 : data::IndexedDatasetBuilder::Writes::files});
    counts = data::build_corpus(*fs, inputs, *tokenizer, options, builder);
  } catch (...) {
    progress.end();
    throw;
  }
  progress.end();
  publish_build_report(*fs, asked, build_report(asked, counts, progress.seconds()).dump(1) + "\n");
  show(counts);
  const std::string skipped =
      counts.empty_documents == 0 ? "" : str(" (", counts.empty_documents, " empty ones left out)");
  std::fprintf(stderr, "%s: %lld documents%s, %lld tokens, %s in %.1f s, %.1f MB/s\n", asked.output.c_str(),
               static_cast<long long>(counts.documents), skipped.c_str(), static_cast<long long>(counts.tokens),
               human_bytes(counts.bytes).c_str(), progress.seconds(), progress.megabytes_per_second(counts));
}

void add_build(CLI::App& data_command) {
  CLI::App* command =
      data_command.add_subcommand("build", "Tokenise text or JSON lines into PREFIX.bin and PREFIX.idx");
  const auto options = std::make_shared<BuildOptions>();
  command
      ->add_option("--input", options->inputs,
                   "Text, JSON lines or Parquet, compressed or not: files, folders, patterns in quotes, in this order")
      ->required();
  add_output(*command, "--output", options->output, "PREFIX of the two files");
  add_tokenizer(*command, options->tokenizer, options->vocab_dir, "");
  options->key = add_key_and_format(*command, options->corpus.key, options->format);
  command->add_option("--split-on", options->corpus.reading.split_on,
                      "Line that stands between the documents of a text file (default: a file is one document)");
  add_threads(*command, options->corpus.threads);
  add_max_line(*command, options->max_line);
  command->add_flag("--sentences", options->sentences,
                    "Each sentence is a sequence, a document a run of them; no end-of-document token (BERT)");
  command
      ->add_flag("--append-eod,!--no-append-eod", options->append_eod,
                 "End each document with the end-of-document token")
      ->default_str("true");
  command->add_flag("--replace-invalid-utf8", options->replace_invalid, "Bad bytes become U+FFFD instead of an error");
  add_dry_run(*command, options->dry_run);
  command->add_flag("--overwrite", options->overwrite, "Replace PREFIX.bin and PREFIX.idx if they exist");
  command->footer("  megalith data build --input books.jsonl --output out/books");
  command->callback([options, command] {
    if (options->sentences && command->get_option("--append-eod")->count() > 0 && options->append_eod)
      throw ConfigError(
          "--append-eod with --sentences: a document's end stands in the .idx, no token marks it; leave one out");
    if (options->sentences) options->append_eod = false;
    run_build(*options);
  });
}

struct InfoOptions {
  std::string prefix;
  std::string format = "text";
};

void run_info(const InfoOptions& options) {
  io::Path prefix = options.prefix;
  if (prefix.extension() == ".bin" || prefix.extension() == ".idx") prefix.replace_extension();
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  data::require_file(*fs, data::idx_path(prefix), "data info");
  const data::IndexedDataset dataset(*fs, prefix);
  Index shortest = 0, longest = 0;
  for (Index document = 0; document < dataset.num_documents(); ++document) {
    Index length = 0;
    for (Index s = dataset.document_begin(document); s < dataset.document_begin(document + 1); ++s)
      length += dataset.sequence_length(s);
    shortest = document == 0 ? length : std::min(shortest, length);
    longest = std::max(longest, length);
  }
  const double mean =
      static_cast<double>(dataset.num_tokens()) / static_cast<double>(std::max<Index>(1, dataset.num_documents()));
  nlohmann::ordered_json info;
  info["prefix"] = prefix.string();
  info["documents"] = dataset.num_documents();
  info["sequences"] = dataset.num_sequences();
  info["tokens"] = dataset.num_tokens();
  info["dtype"] = data::id_type_name(dataset.type());
  info["bin_bytes"] = fs->file_size(data::bin_path(prefix));
  info["idx_bytes"] = fs->file_size(data::idx_path(prefix));
  const double per_document =
      static_cast<double>(dataset.num_sequences()) / static_cast<double>(std::max<Index>(1, dataset.num_documents()));
  info["sequences_per_document"] = per_document;
  info["shortest_document"] = shortest;
  info["longest_document"] = longest;
  info["mean_document"] = mean;
  if (options.format == "json") {
    std::cout << info.dump() << '\n';
  } else {
    for (const auto& [key, value] : info.items())
      std::cout << key << std::string(24 - key.size(), ' ')
                << (value.is_string() ? value.get<std::string>() : value.dump()) << '\n';
  }
}

void add_info(CLI::App& data_command) {
  CLI::App* command = data_command.add_subcommand("info", "Check a .bin/.idx pair and print what is in it");
  const auto options = std::make_shared<InfoOptions>();
  command->add_option("PREFIX", options->prefix, "As given to build, or one of the two files")->required();
  command->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->footer("  megalith data info out/books");
  command->callback([options] { run_info(*options); });
}

}  // namespace

void add_data(CLI::App& program) {
  CLI::App* command = program.add_subcommand("data", "Build and inspect token files");
  command->require_subcommand(1);
  add_build(*command);
  add_info(*command);
  add_data_clean(*command);
  add_data_dedup(*command);
  add_data_overlap(*command);
}

}  // namespace megalith::apps
