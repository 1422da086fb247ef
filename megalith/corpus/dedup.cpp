#include "megalith/corpus/dedup.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/clock.h"
#include "megalith/base/problems.h"
#include "megalith/base/text.h"
#include "megalith/corpus/dedup_stages.h"
#include "megalith/corpus/output_folder.h"
#include "megalith/corpus/output_names.h"
#include "megalith/corpus/report.h"
#include "megalith/corpus/staged_file.h"
#include "megalith/data/corpus_reader.h"
#include "megalith/data/ordered_work.h"
#include "megalith/io/remove_if_there.h"

namespace megalith::corpus {
namespace {

/// Memory that the stages need whatever the inputs, and per input file.
constexpr std::size_t kMinMemory = std::size_t{8} << 20, kMemoryOfFile = std::size_t{16} << 10;

/// The files that the stages write into the output folder.
std::vector<io::Path> outputs_of(const DedupOptions& options) {
  std::vector<io::Path> outputs{options.output / "removed.tsv"};
  for (std::size_t file = 0; file < options.inputs.size(); ++file)
    outputs.push_back(options.output / output_name(file, options.inputs[file]));
  return outputs;
}

/// Refuses an output folder with foreign files. Outputs of a run whose work folder was removed do not count.
void check_output(io::Fs& fs, const DedupOptions& options) {
  if (WorkFolder::is_one(fs, options.work)) return;
  std::set<io::Path> known{options.work};
  for (const io::Path& output : outputs_of(options)) known.insert(unpublished(output));
  for (const std::string& name : fs.list(options.output))
    if (!known.contains(options.output / name) && !(name == kReport && is_dry_run(fs, options.output / name)))
      throw ConfigError(
          str("--output ", options.output.string(), " has files (", name, "): name a folder that is empty or absent"));
}

/// Whether the requested run was complete before, and its work folder is gone.
bool is_complete(io::Fs& fs, const DedupOptions& options, const nlohmann::json& settings) {
  return report_settings(fs, options.output / kReport) == settings && !WorkFolder::is_one(fs, options.work);
}
void remove_if_empty(io::Fs& fs, const io::Path& folder) {
  if (fs.is_dir(folder) && fs.list(folder).empty()) fs.remove_dir(folder);
}

/// Makes this process's units of a stage, several at a time where the stage allows it.
void make_units(const DedupStages::Stage& stage, const DedupOptions& options, std::size_t units) {
  const auto share = static_cast<std::size_t>(options.share.rank),
             count = static_cast<std::size_t>(options.share.count);
  std::size_t unit = share;
  const auto next = [&]() -> std::optional<std::size_t> {
    if (unit >= units) return std::nullopt;
    return std::exchange(unit, unit + count);
  };
  const auto make_worker = [&] {
    return [&](std::size_t one, std::size_t& made) {
      if (!stage.is_done(one)) stage.make(one);
      made = one + 1;
    };
  };
  data::work_in_order<std::size_t>(stage.at_a_time, next, make_worker, [&](std::size_t made) {
    if (options.progress) options.progress(stage.name, made, units);
  });
}

/// Makes this process's units of a stage. False when units of others are missing and need not be waited for.
bool run_stage(const DedupStages::Stage& stage, const DedupOptions& options, const std::function<bool()>& is_over) {
  const std::size_t units = stage.units();
  make_units(stage, options, units);
  for (std::size_t unit = 0; unit < units; ++unit) {
    while (!stage.is_done(unit)) {
      if (is_over()) return true;
      if (options.share.others == Share::Others::leave) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  return true;
}

/// Renames the stages' files to their final names, the report last. After an error none has its final name, so that
/// this can be repeated.
void publish_outputs(io::Fs& fs, const DedupOptions& options, StagedFile& report) {
  report.finish();
  std::vector<io::Path> renamed;
  try {
    for (const io::Path& output : outputs_of(options)) {
      if (!fs.exists(unpublished(output))) continue;  // a run without outputs, or an earlier attempt that was killed
      fs.rename(unpublished(output), output);
      renamed.push_back(output);
    }
    report.publish();
  } catch (const Error&) {
    report.withdraw();
    for (const io::Path& output : renamed) {
      try {
        fs.rename(output, unpublished(output));
      } catch (const Error&) {  // the error that led here is the one to report
      }
    }
    throw;
  }
}

}  // namespace

Decimal parse_similarity(std::string_view text) {
  const auto fail = [&] {
    throw ConfigError(str("--jaccard ", text, ": must be a decimal number between 0 and 1, both excluded, as 0.7"));
  };
  Decimal decimal{0, 1};
  const std::size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  if (point == text.npos || whole.find_first_not_of('0') != whole.npos || text.size() - point > 10) fail();
  std::string_view digits = text.substr(point + 1);
  digits = digits.substr(0, std::max<std::size_t>(1, digits.find_last_not_of('0') + 1));  // 0.70 is 0.7
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), decimal.numerator);
  if (error != std::errc() || end != digits.data() + digits.size() || decimal.numerator == 0) fail();
  for (std::size_t i = 0; i < digits.size(); ++i) decimal.denominator *= 10;
  return decimal;
}

void check(const DedupOptions& o) {
  Problems problems;
  problems.require(!o.inputs.empty(), "--input", "", "must name at least one file");
  problems.require(o.shingle >= 1 && o.shingle <= 1000, "--shingle", o.shingle, "must be 1 to 1000 words");
  problems.require(o.banding.bands >= 1 && o.banding.rows >= 1 && o.banding.hashes() <= kMaxHashes, "--bands x --rows",
                   str(o.banding.bands, " x ", o.banding.rows), str("must be 1 to ", kMaxHashes, " hashes"));
  problems.require(o.max_bucket >= 2, "--max-bucket", o.max_bucket, "must be at least 2");
  problems.require(o.threads >= 1, "--threads", o.threads, "must be at least 1");
  problems.require(o.share.count >= 1 && o.share.rank >= 0 && o.share.rank < o.share.count, "--shard",
                   str(o.share.rank, "/", o.share.count), "must be K/N with K from 0 to N - 1");
  const std::size_t needed = kMinMemory + kMemoryOfFile * o.inputs.size();
  // In whole KiB, rounded up: a size that --memory accepts.
  problems.require(o.memory >= needed, "--memory", human_bytes(static_cast<Index>(o.memory)),
                   str("must be at least ", (needed + 1023) / 1024, "KiB for ", o.inputs.size(), " input files"));
  problems.throw_if_any("data dedup");
}

DedupReport DedupStages::report() {
  DedupReport report{.is_complete = true};
  for (std::size_t file = 0; file < files(); ++file) {
    const ProductNumbers in = work_.open(numbered("documents", file)).numbers;
    const ProductNumbers out = work_.open(numbered("kept", file)).numbers;
    const bool writes = options_.write == DedupOptions::Write::documents;
    report.files.push_back({.file = options_.inputs[file].string(),
                            .bytes = in[1],
                            .documents = in[0],
                            .text_bytes = in[2],
                            .words = in[3],
                            .without_words = in[4],
                            .removed = out[0],
                            .removed_text_bytes = out[1],
                            .bytes_written = out[2],
                            .output = writes ? output_name(file, options_.inputs[file]) : "",
                            .signatures_s = 1e-6 * static_cast<double>(in[5]),
                            .filter_s = 1e-6 * static_cast<double>(out[3])});
    const FileCounts& counts = report.files.back();
    for (auto member : {&FileCounts::bytes, &FileCounts::documents, &FileCounts::text_bytes, &FileCounts::words,
                        &FileCounts::without_words, &FileCounts::removed, &FileCounts::removed_text_bytes,
                        &FileCounts::bytes_written})
      report.total.*member += counts.*member;
    report.total.signatures_s += counts.signatures_s;
    report.total.filter_s += counts.filter_s;
  }
  report.candidates = work_.open("candidates-00000").records<Pair>();
  for (std::size_t unit = 0; unit < num_comparisons(); ++unit) {
    const WorkFolder::Product above = work_.open(numbered("above", unit));
    report.compared += above.numbers[0];
    report.above += above.records<SimilarPair>();
  }
  for (std::size_t band = 0; band < bands(); ++band) {
    if (!is_crowded(band)) continue;
    const WorkFolder::Product above = work_.open(numbered("crowded-above", band));
    report.crowded_buckets += work_.open(numbered("crowded", band)).numbers[0];
    report.compared += above.numbers[0];
    report.above += above.records<SimilarPair>();
    report.not_compared += above.numbers[1] - above.numbers[0];
  }
  for (auto sizes = work_.read<SizeCount>(work_.open("sizes"), 1 << 16); !sizes.at_end(); sizes.next()) {
    report.clusters_by_size[sizes.peek().size] = sizes.peek().clusters;
    report.clusters += sizes.peek().clusters;
  }
  return report;
}

DedupReport dedup(io::Fs& fs, const DedupOptions& asked) {
  check(asked);
  DedupOptions options = asked;
  if (options.work.empty()) options.work = options.output / "work";
  for (const io::Path& input : options.inputs) data::require_file(fs, input, "input");
  const nlohmann::ordered_json settings = settings_of(options, fs);
  const io::Path report_path = options.output / kReport;
  const auto report_complete = [&] {
    remove_if_empty(fs, options.work);
    return DedupReport{.is_complete = true, .stage = "report"};
  };
  if (is_complete(fs, options, settings)) return report_complete();
  check_output(fs, options);
  fs.make_dir(options.output);
  std::optional<ShareLock> lock(std::in_place, fs, options.work, options.share.rank, options.share.count);
  if (is_complete(fs, options, settings)) {  // another share has ended the run in between
    lock.reset();
    return report_complete();
  }
  check_output(fs, options);
  if (!WorkFolder::is_one(fs, options.work)) {
    for (const io::Path& output : outputs_of(options)) io::remove_if_there(fs, unpublished(output));
    // A report means that the run is over.
    if (is_dry_run(fs, report_path)) fs.unlink(report_path);
  }
  WorkFolder work(fs, options.work, settings);
  DedupStages stages(options, work);
  std::vector<std::pair<std::string, double>> seconds;
  const auto is_over = [&] { return fs.exists(report_path); };
  for (const DedupStages::Stage& stage : stages.stages()) {
    if (is_over()) break;
    const double start = monotonic_s();
    try {
      if (!run_stage(stage, options, is_over)) return {.stage = stage.name, .seconds = seconds};
    } catch (const DamagedWork&) {
      if (options.share.rank == 0 || !is_over()) throw;
      break;
    } catch (const InputError&) {
      // A bad document. Once it is mended, its file is another one, so the products of this file are useless.
      if (options.share.count == 1) work.remove_all();
      throw;
    } catch (const Error&) {
      if (options.share.rank == 0 || !is_over()) throw;
      break;  // the first process has ended the run and removed the work
    }
    seconds.emplace_back(stage.name, monotonic_s() - start);
  }
  DedupReport report{.is_complete = true, .stage = "report"};
  if (options.share.rank != 0) return report;  // the first process makes the report
  if (!is_over()) {
    report = stages.report();
    report.stage = "report";
    report.seconds = seconds;
    StagedFile file(fs, report_path);
    file.write(report_of(options, report, settings).dump(1) + "\n");
    publish_outputs(fs, options, file);
  }
  try {
    work.remove_all();
  } catch (const Error& error) {  // the run is complete all the same
    report.work_left = error.what();
  }
  return report;
}

}  // namespace megalith::corpus
