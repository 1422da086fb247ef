#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/corpus/clean.h"
#include "megalith/data/input_files.h"

#include "apps/program/command.h"
#include "apps/program/corpus_options.h"
#include "apps/program/launch.h"
#include "apps/program/output_path.h"
#include "apps/program/version.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {
namespace {

struct CleanArguments {
  std::vector<std::string> inputs, titles, wikitext;
  std::string output, format = "auto", tokenizer, vocab_dir, bad_lines = "fail", compress = "none";
  std::uint64_t max_line = data::kDefaultMaxLine;
  bool join_lines = false, dry_run = false;
  const CLI::Option* key = nullptr;
  corpus::CleanOptions options;
};

void show(const corpus::CleanReport& report, const corpus::CleanOptions& options) {
  const corpus::CleanCounts& total = report.total;
  const auto row = [](std::string what, std::uint64_t documents, std::uint64_t bytes) {
    return std::vector<std::string>{std::move(what), std::to_string(documents), human_bytes(static_cast<Index>(bytes))};
  };
  std::vector<std::vector<std::string>> rows{{"", "documents", "text"}, row("in", total.documents, total.text_bytes)};
  if (options.titles.size() > 0) rows.push_back(row("of a listed title", total.titled, total.titled_bytes));
  if (options.min_tokens > 0)
    rows.push_back(row("under " + std::to_string(options.min_tokens) + " tokens", total.brief, total.brief_bytes));
  rows.push_back(row("out", total.documents_out, total.text_bytes_out));
  std::cout << text_table(rows);
  if (options.lines == corpus::CleanOptions::Lines::joined)
    std::cout << total.repaired << " documents had lines joined\n";
  for (std::size_t reason = 0; reason < total.bad.size(); ++reason)
    if (total.bad[reason] > 0)
      std::cout << total.bad[reason] << " bad lines: " << name_of(static_cast<data::BadDocument>(reason)) << '\n';
  for (const std::string& bad : report.bad_lines) std::cout << "  " << bad << '\n';
  if (!report.titles_unknown.empty()) {
    std::cout << report.titles_unknown.size()
              << " titles have words that were replaced, so no document has them; give the "
              << "file before words were replaced (wiki.test.raw):\n";
    for (const std::string& title : report.titles_unknown) std::cout << "  " << title << '\n';
  }
  if (!report.titles_missed.empty())
    std::cout << report.titles_missed.size() << " listed titles are in no document (report.json names them)\n";
}

/// Only one column of Parquet is read, so titles of another column are not compared.
void warn_of_parquet(io::Fs& fs, const corpus::CleanOptions& options) {
  if (options.titles.size() == 0) return;
  for (const io::Path& input : options.inputs) {
    if (!fs.exists(input) || fs.is_dir(input)) continue;  // refused below
    if (data::format_of(fs, input, options.reading.format) != data::CorpusFormat::parquet) continue;
    std::fprintf(stderr,
                 "warning: %s: of Parquet only the column --key = %s is read, and the first line of a text is its "
                 "title; to use a column of titles, write the rows as JSON lines first\n",
                 input.c_str(), options.key.c_str());
    return;
  }
}

void run_clean(const CleanArguments& arguments) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  corpus::CleanOptions options = arguments.options;
  options.reading = {
      .format = data::format_named(arguments.format), .max_document_bytes = arguments.max_line, .key = options.key};
  options.output = arguments.output;
  if (arguments.join_lines) options.lines = corpus::CleanOptions::Lines::joined;
  if (arguments.bad_lines == "skip") options.bad_lines = corpus::BadLines::skip;
  options.compression = corpus::compression_named(arguments.compress);
  if (arguments.dry_run) options.write = corpus::CleanOptions::Write::report_only;
  if (!arguments.tokenizer.empty()) options.tokenizer = open_tokenizer(*fs, arguments.tokenizer, arguments.vocab_dir);
  for (const std::string& file : arguments.titles) options.titles.add_list(*fs, file);
  for (const std::string& file : arguments.wikitext) options.titles.add_wikitext(*fs, file);
  options.inputs = data::input_files(*fs, arguments.inputs);
  require_members(*fs, options.inputs, options.reading.format, *arguments.key);
  options.version = version();
  options.vocab_dir = arguments.vocab_dir;
  options.title_files = arguments.titles;
  options.wikitext_files = arguments.wikitext;
  warn_of_parquet(*fs, options);
  options.progress = byte_progress();
  const corpus::CleanReport report = corpus::clean(*fs, options);
  if (options.progress) std::fputs("\r\x1b[K", stderr);
  show(report, options);
  std::fprintf(stderr, "%s: %llu of %llu documents stay, %.1f s, %.1f MB/s\n", arguments.output.c_str(),
               static_cast<unsigned long long>(report.total.documents_out),
               static_cast<unsigned long long>(report.total.documents), report.seconds,
               static_cast<double>(report.total.text_bytes) / 1e6 / std::max(report.seconds, 1e-9));
}

}  // namespace

void add_data_clean(CLI::App& data_command) {
  CLI::App* command = data_command.add_subcommand("clean", "Repair lines, remove listed articles and short documents");
  const auto arguments = std::make_shared<CleanArguments>();
  corpus::CleanOptions& options = arguments->options;
  command->add_option("--input", arguments->inputs, "Text, JSON lines or Parquet: files, folders, patterns in quotes")
      ->required();
  add_output(*command, "--output", arguments->output, "Folder of what stays and report.json");
  arguments->key = add_key_and_format(*command, options.key, arguments->format);
  command->add_flag("--join-lines", arguments->join_lines,
                    "A newline between two lines of a paragraph becomes a space");
  command->add_option("--drop-titles", arguments->titles, "File of titles, one per line, whose articles go");
  command->add_option("--drop-wikitext", arguments->wikitext, "WikiText file (wiki.test.raw) whose articles go");
  command->add_option("--min-tokens", options.min_tokens, "Documents with fewer tokens go")
      ->check(between(1, std::int64_t{1} << 32));
  add_tokenizer(*command, arguments->tokenizer, arguments->vocab_dir, "Counts the tokens: ");
  command->add_option("--bad-lines", arguments->bad_lines, "fail at the first, or skip and count them")
      ->check(CLI::IsMember({"fail", "skip"}))
      ->capture_default_str();
  command->add_option("--compress", arguments->compress, "Of the output files: none, gz or zst")
      ->check(CLI::IsMember({"none", "gz", "zst"}))
      ->capture_default_str();
  add_threads(*command, options.threads);
  add_max_line(*command, arguments->max_line);
  add_dry_run(*command, arguments->dry_run);
  command->footer(
      "  megalith data clean --input 'corpus/*.jsonl' --output out/clean --join-lines --min-tokens 128 --tokenizer "
      "gpt2");
  command->callback([arguments] { run_clean(*arguments); });
}

}  // namespace megalith::apps
