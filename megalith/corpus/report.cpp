#include "megalith/corpus/report.h"

#include <nlohmann/json.hpp>

#include "megalith/corpus/sampled_checksum.h"

namespace megalith::corpus {

using Json = nlohmann::ordered_json;

const char* format_name(data::CorpusFormat format) {
  switch (format) {
    case data::CorpusFormat::json_lines:
      return "jsonl";
    case data::CorpusFormat::text:
      return "text";
    case data::CorpusFormat::parquet:
      return "parquet";
    case data::CorpusFormat::by_name:
      break;
  }
  return "auto";
}

void put_time(Json& json, double seconds, std::uint64_t text_bytes) {
  json["seconds"] = seconds;
  json["text_mb_per_s"] = seconds > 0 ? Json(static_cast<double>(text_bytes) / 1e6 / seconds) : Json(nullptr);
}

namespace {

Json counts_of(const FileCounts& counts) {
  Json json;
  if (!counts.file.empty()) json["file"] = counts.file;
  json["stored_bytes"] = counts.bytes;
  json["documents_in"] = counts.documents;
  json["text_bytes_in"] = counts.text_bytes;
  json["words_in"] = counts.words;
  json["documents_without_words"] = counts.without_words;
  json["documents_removed"] = counts.removed;
  json["text_bytes_removed"] = counts.removed_text_bytes;
  json["documents_out"] = counts.documents - counts.removed;
  json["text_bytes_out"] = counts.text_bytes - counts.removed_text_bytes;
  if (!counts.output.empty()) {
    json["output"] = counts.output;
    json["bytes_written"] = counts.bytes_written;
  }
  put_time(json, counts.signatures_s + counts.filter_s, counts.text_bytes);
  return json;
}

/// One name per folder, whether it exists yet or not.
std::string canonical_name(const io::Path& folder) {
  const io::Path path = std::filesystem::weakly_canonical(std::filesystem::absolute(folder)).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).string();
}

}  // namespace

Json settings_of(const DedupOptions& options, io::Fs& fs) {
  Json inputs = Json::array();
  for (const io::Path& input : options.inputs)
    inputs.push_back({input.string(), fs.file_size(input), sampled_checksum(fs, input).hex()});
  return {{"command", "data dedup"},
          {"work_format", 4},
          {"jaccard_above", {options.jaccard.numerator, options.jaccard.denominator}},
          {"shingle", options.shingle},
          {"bands", options.banding.bands},
          {"rows", options.banding.rows},
          {"seed", options.seed},
          {"keep", options.keep == Keep::first ? "first" : "longest"},
          {"max_bucket", options.max_bucket},
          {"key", options.key},
          {"input_format", format_name(options.reading.format)},
          {"max_line", options.reading.max_document_bytes},
          {"dry_run", options.write == DedupOptions::Write::report_only},
          {"output", canonical_name(options.output)},
          {"inputs", inputs}};
}

Json report_of(const DedupOptions& options, const DedupReport& report, const Json& settings) {
  Json json = {{"version", options.version},
               {"settings", settings},
               {"run", {{"threads", options.threads}, {"memory", options.memory}, {"processes", options.share.count}}}};
  json["total"] = counts_of(report.total);
  Json recall = Json::object();
  for (const char* at : {"0.7", "0.75", "0.8", "0.9"}) recall[at] = options.banding.recall(std::stod(at));
  json["pairs"] = {{"candidates", report.candidates},
                   {"compared", report.compared},
                   {"above", report.above},
                   {"not_compared", report.not_compared},
                   {"crowded_buckets", report.crowded_buckets},
                   {"expected_recall", recall}};
  Json sizes = Json::array();
  for (const auto& [size, count] : report.clusters_by_size) sizes.push_back({{"documents", size}, {"clusters", count}});
  json["clusters"] = {{"count", report.clusters}, {"by_size", sizes}};
  Json stages = Json::array();
  for (const auto& [stage, seconds] : report.seconds) {
    Json one = {{"stage", stage}};
    // Work of other processes, or of this one before it was killed, took no time here. So the work of files counts.
    if (stage == "signatures" || stage == "filter")
      put_time(one, stage == "filter" ? report.total.filter_s : report.total.signatures_s, report.total.text_bytes);
    else
      one["seconds"] = seconds;
    stages.push_back(one);
  }
  json["stages"] = stages;
  Json files = Json::array();
  for (const FileCounts& file : report.files) files.push_back(counts_of(file));
  json["files"] = files;
  return json;
}

}  // namespace megalith::corpus
