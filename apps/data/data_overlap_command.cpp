#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/corpus/overlap.h"
#include "megalith/data/input_files.h"

#include "apps/program/command.h"
#include "apps/program/corpus_options.h"
#include "apps/program/launch.h"
#include "apps/program/output_path.h"
#include "apps/program/version.h"

namespace megalith::apps {
namespace {

struct OverlapArguments {
  std::vector<std::string> train, test;
  std::string output, format = "auto";
  std::uint64_t max_line = data::kDefaultMaxLine;
  bool dry_run = false;
  const CLI::Option* key = nullptr;
  corpus::OverlapOptions options;
};

std::string percent(std::uint64_t part, std::uint64_t all) {
  if (all == 0) return "none";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100.0 * static_cast<double>(part) / static_cast<double>(all));
  return text;
}

void run_overlap(const OverlapArguments& arguments) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  corpus::OverlapOptions options = arguments.options;
  options.reading = {
      .format = data::format_named(arguments.format), .max_document_bytes = arguments.max_line, .key = options.key};
  options.train = data::input_files(*fs, arguments.train);
  options.test = data::input_files(*fs, arguments.test);
  std::vector<io::Path> all = options.train;
  all.insert(all.end(), options.test.begin(), options.test.end());
  require_members(*fs, all, options.reading.format, *arguments.key);
  options.output = arguments.output;
  if (arguments.dry_run) options.write = corpus::OverlapOptions::Write::report_only;
  options.version = version();
  options.progress = byte_progress();
  const corpus::OverlapReport report = corpus::measure_overlap(*fs, options);
  if (options.progress) std::fputs("\r\x1b[K", stderr);
  std::vector<std::vector<std::string>> rows{
      {"test file", "documents", "shorter", "words", "n-grams", "found", "share", "distinct", "found", "share"}};
  for (const corpus::TestFileCounts& counts : report.test)
    rows.push_back({counts.file, std::to_string(counts.documents), std::to_string(counts.short_documents),
                    std::to_string(counts.words), std::to_string(counts.ngrams), std::to_string(counts.found),
                    percent(counts.found, counts.ngrams), std::to_string(counts.distinct_ngrams),
                    std::to_string(counts.distinct_found), percent(counts.distinct_found, counts.distinct_ngrams)});
  std::cout << text_table(rows);
  std::fprintf(stderr, "%s: %llu training documents, %llu words, %.1f s, %.1f MB/s\n", arguments.output.c_str(),
               static_cast<unsigned long long>(report.train_documents),
               static_cast<unsigned long long>(report.train_words), report.seconds,
               static_cast<double>(report.train_text_bytes) / 1e6 / std::max(report.seconds, 1e-9));
}

}  // namespace

void add_data_overlap(CLI::App& data_command) {
  CLI::App* command =
      data_command.add_subcommand("overlap", "Measure which n-grams of test sets also occur in training text");
  const auto arguments = std::make_shared<OverlapArguments>();
  corpus::OverlapOptions& options = arguments->options;
  command->add_option("--train", arguments->train, "Training text: files, folders, patterns in quotes")->required();
  command->add_option("--test", arguments->test, "Test sets, each counted apart")->required();
  add_output(*command, "--output", arguments->output, "Folder of report.json and per_document.jsonl");
  command->add_option("--ngram", options.ngram, "Words per n-gram")->capture_default_str();
  arguments->key = add_key_and_format(*command, options.key, arguments->format);
  add_threads(*command, options.threads);
  add_max_line(*command, arguments->max_line);
  add_dry_run(*command, arguments->dry_run);
  command->footer("  megalith data overlap --train 'corpus/*.jsonl' --test wiki.test.txt --output out/overlap");
  command->callback([arguments] { run_overlap(*arguments); });
}

}  // namespace megalith::apps
