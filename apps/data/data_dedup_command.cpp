#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/corpus/dedup.h"
#include "megalith/data/input_files.h"

#include "apps/program/command.h"
#include "apps/program/corpus_options.h"
#include "apps/program/launch.h"
#include "apps/program/output_path.h"
#include "apps/program/version.h"

namespace megalith::apps {
namespace {

struct DedupArguments {
  std::vector<std::string> inputs;
  std::string output, work, jaccard = "0.7", keep = "first", format = "auto", shard;
  int bands = 0, rows = 0;
  double recall = 0.95;
  std::uint64_t memory = std::uint64_t{1} << 30, max_line = data::kDefaultMaxLine;
  bool dry_run = false;
  const CLI::Option* key = nullptr;
  corpus::DedupOptions options;
};

std::string text_of(const corpus::Banding& banding) { return str(banding.bands, " x ", banding.rows); }

/// Bands and rows from the arguments, or from the recall. Refuses those that miss the recall.
corpus::Banding banding_of(const DedupArguments& arguments, double jaccard) {
  if ((arguments.bands == 0) != (arguments.rows == 0)) throw ConfigError("--bands and --rows must be given together");
  const corpus::Banding best = corpus::choose_banding(arguments.recall, jaccard);
  if (best.bands == 0)
    throw ConfigError(str("--recall ", arguments.recall, ": no bands x rows with at most ", corpus::kMaxHashes,
                          " hashes reach it at --jaccard ", jaccard));
  if (arguments.bands == 0) return best;
  const corpus::Banding banding{arguments.bands, arguments.rows};
  if (const double recall = banding.recall(jaccard); recall < arguments.recall) {
    const corpus::Banding nearest = corpus::nearest_banding(banding, arguments.recall, jaccard);
    char text[160];
    std::snprintf(text, sizeof text, ": finds %.3f of the pairs at Jaccard %g, under --recall %g; %s finds %.3f",
                  recall, jaccard, arguments.recall, text_of(nearest).c_str(), nearest.recall(jaccard));
    throw ConfigError(str("--bands x --rows = ", text_of(banding), text));
  }
  return banding;
}

constexpr const char* kShardRule = "K counts from 0 or from 1; N/N is the same part as 0/N";

/// "K/N", by kShardRule.
corpus::Share share_of(const std::string& shard) {
  const Launcher launcher = detect_launcher();
  if (shard.empty() && launcher.processes > 1) return {.rank = launcher.process, .count = launcher.processes};
  if (shard.empty()) return {};
  int rank = -1, count = 0, used = 0;
  if (std::sscanf(shard.c_str(), "%d/%d%n", &rank, &count, &used) != 2 || used != static_cast<int>(shard.size()) ||
      count < 1 || rank < 0 || rank > count)
    throw ConfigError(str("--shard ", shard, ": must be K/N, the K-th of N parts: ", kShardRule));
  return {.rank = rank % count, .count = count, .others = corpus::Share::Others::leave};
}

void show(const corpus::DedupReport& report, const std::string& output) {
  const corpus::FileCounts& total = report.total;
  std::cout << "documents in        " << total.documents << '\n'
            << "documents removed   " << total.removed << '\n'
            << "documents out       " << total.documents - total.removed << '\n'
            << "text in             " << human_bytes(static_cast<Index>(total.text_bytes)) << '\n'
            << "text out            " << human_bytes(static_cast<Index>(total.text_bytes - total.removed_text_bytes))
            << '\n'
            << "pairs compared      " << report.compared << '\n'
            << "pairs above         " << report.above << '\n'
            << "pairs not compared  " << report.not_compared << '\n'
            << "clusters            " << report.clusters << '\n';
  double all = 0;
  for (const auto& [stage, seconds] : report.seconds) all += seconds;
  // No rate: work of other processes, or of this one before it was killed, took no time here.
  std::fprintf(stderr, "%s: %llu of %llu documents stay, %.1f s in this process\n", output.c_str(),
               static_cast<unsigned long long>(total.documents - total.removed),
               static_cast<unsigned long long>(total.documents), all);
}

void run_dedup(const DedupArguments& arguments) {
  corpus::DedupOptions options = arguments.options;
  options.share = share_of(arguments.shard);
  const std::shared_ptr<io::Fs> fs = rank_fs(options.share.rank);
  options.jaccard = corpus::parse_similarity(arguments.jaccard);
  options.banding = banding_of(arguments, options.jaccard.value());
  options.keep = arguments.keep == "first" ? corpus::Keep::first : corpus::Keep::longest;
  options.reading = {
      .format = data::format_named(arguments.format), .max_document_bytes = arguments.max_line, .key = options.key};
  options.memory = arguments.memory;
  options.version = version();
  options.inputs = data::input_files(*fs, arguments.inputs);
  require_members(*fs, options.inputs, options.reading.format, *arguments.key);
  options.output = arguments.output;
  options.work = arguments.work;
  if (arguments.dry_run) options.write = corpus::DedupOptions::Write::report_only;
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  if (is_terminal && options.share.rank == 0)
    options.progress = [start = monotonic_s(), last = std::string()](std::string_view stage, std::size_t done,
                                                                     std::size_t all) mutable {
      if (last != stage) start = monotonic_s();  // of the stage; the time of its first unit is not known
      last = stage;
      const double left = (monotonic_s() - start) / static_cast<double>(std::max<std::size_t>(done, 2) - 1) *
                          static_cast<double>(all - done);
      std::fprintf(stderr, "\r%.*s  %zu of %zu  %.0f s left in this stage \x1b[K", static_cast<int>(stage.size()),
                   stage.data(), done, all, left);
    };
  const corpus::DedupReport report = corpus::dedup(*fs, options);
  if (options.progress) std::fputs("\r\x1b[K", stderr);
  if (!report.is_complete) {
    std::fprintf(stderr,
                 "shard %s: its part of stage %s is done, others' is missing: run the same command again when "
                 "they have ended\n",
                 arguments.shard.c_str(), report.stage.c_str());
  } else if (report.files.empty()) {
    if (options.share.rank == 0) std::fprintf(stderr, "%s: was complete already\n", arguments.output.c_str());
  } else {
    show(report, arguments.output);
  }
  if (!report.work_left.empty())
    std::fprintf(stderr, "warning: the work folder is left, and not needed any more: %s\n", report.work_left.c_str());
}

}  // namespace

void add_data_dedup(CLI::App& data_command) {
  CLI::App* command = data_command.add_subcommand(
      "dedup", "Remove documents whose Jaccard similarity with another one is above a threshold");
  const auto arguments = std::make_shared<DedupArguments>();
  corpus::DedupOptions& options = arguments->options;
  command->add_option("--input", arguments->inputs, "Text, JSON lines or Parquet: files, folders, patterns in quotes")
      ->required();
  add_output(*command, "--output", arguments->output, "Folder of what stays, removed.tsv and report.json");
  arguments->key = add_key_and_format(*command, options.key, arguments->format);
  command->add_option("--jaccard", arguments->jaccard, "A pair above it repeats; decided in whole numbers")
      ->capture_default_str();
  command->add_option("--shingle", options.shingle, "Words per shingle")->capture_default_str();
  command->add_option("--recall", arguments->recall, "Share of the pairs at --jaccard that must be found")
      ->check(number_that([](double value) { return value > 0 && value < 1; }, "between 0 and 1"))
      ->capture_default_str();
  command->add_option("--bands", arguments->bands, "Bands of the signatures (default: by --recall)")
      ->check(between(1, corpus::kMaxHashes));
  command->add_option("--rows", arguments->rows, "Rows per band (default: by --recall)")
      ->check(between(1, corpus::kMaxHashes));
  add_size(*command, "--memory", arguments->memory,
           "For sorting; 16 bytes per document and the text being read come on top", "1GiB");
  add_threads(*command, options.threads);
  command->add_option("--keep", arguments->keep, "Which document of a cluster stays: first or longest")
      ->check(CLI::IsMember({"first", "longest"}))
      ->capture_default_str();
  command->add_option("--work", arguments->work,
                      "Folder of what a run that is killed goes on from (default: OUTPUT/work)");
  command
      ->add_option("--max-bucket", options.max_bucket,
                   "Documents of larger buckets are compared with the first of each cluster only")
      ->capture_default_str();
  command->add_option(
      "--shard", arguments->shard,
      str("K/N: do the K-th of N parts of each stage, and end where parts of others are missing. ", kShardRule));
  command->add_option("--seed", options.seed, "Of the hashes")
      ->check(between(0, std::int64_t{1} << 53))
      ->capture_default_str();
  add_max_line(*command, arguments->max_line);
  add_dry_run(*command, arguments->dry_run);
  command->footer("  megalith data dedup --input 'corpus/*.jsonl' --output out/dedup");
  command->callback([arguments] { run_dedup(*arguments); });
}

}  // namespace megalith::apps
