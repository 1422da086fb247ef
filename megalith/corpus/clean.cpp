#include "megalith/corpus/clean.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/corpus/line_repair.h"
#include "megalith/corpus/output_folder.h"
#include "megalith/corpus/output_names.h"
#include "megalith/corpus/report.h"
#include "megalith/corpus/staged_file.h"
#include "megalith/data/ordered_work.h"
#include "megalith/io/run_lock.h"

namespace megalith::corpus {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kListed = 10;

/// The result of cleaning a block.
struct Cleaned {
  std::string lines{};
  CleanCounts counts{};
  std::vector<std::string> bad_lines{};
  std::vector<std::size_t> titles{};  // numbers of the titles that were seen
};

/// Cleans blocks; one per thread.
class Cleaner {
 public:
  explicit Cleaner(const CleanOptions& options) : options_(options), text_(options.key, "title") {}

  void clean(const data::DocumentBlock& block, Cleaned& out) {
    out.lines.clear();
    out.counts = {};
    out.bad_lines.clear();
    out.titles.clear();
    for (const data::RawDocument& document : block.documents) {
      try {
        clean(block, document, text_.of(block, document), out);
      } catch (const data::DocumentError& error) {
        if (options_.bad_lines == BadLines::fail) throw;
        ++out.counts.bad[static_cast<std::size_t>(error.reason())];
        if (out.bad_lines.size() < kListed) out.bad_lines.emplace_back(error.what());
      }
    }
  }

 private:
  void clean(const data::DocumentBlock& block, const data::RawDocument& document, std::string_view text, Cleaned& out) {
    CleanCounts& counts = out.counts;
    ++counts.documents;
    counts.text_bytes += text.size();
    std::string_view repaired = text;
    if (options_.lines == CleanOptions::Lines::joined) {
      repaired_.clear();
      repair_lines(text, repaired_);
      repaired = repaired_;
    }
    const bool is_changed = repaired != text;
    counts.repaired += is_changed ? 1 : 0;
    const bool is_json = block.format == data::CorpusFormat::json_lines;
    if (options_.titles.size() > 0) {
      const std::size_t title = is_json && text_.json().other() ? options_.titles.index(*text_.json().other())
                                                                : options_.titles.index(first_line(text));
      if (title != Titles::kNone) {
        ++counts.titled;
        counts.titled_bytes += repaired.size();
        out.titles.push_back(title);
        return;
      }
    }
    if (options_.min_tokens > 0 && is_brief(repaired)) {
      ++counts.brief;
      counts.brief_bytes += repaired.size();
      return;
    }
    ++counts.documents_out;
    counts.text_bytes_out += repaired.size();
    if (!is_json) {
      out.lines += "{\"text\": ";
      data::append_json_string(out.lines, repaired);
      out.lines += '}';
    } else if (is_changed) {
      data::append_with_member(out.lines, document.bytes, text_.json().members_before(), repaired);
    } else {
      out.lines += document.bytes;
    }
    out.lines += '\n';
  }

  /// Whether the text has fewer tokens than required. Its first tokens decide, so a long text is not encoded to its
  /// end.
  bool is_brief(std::string_view text) {
    std::uint64_t tokens = 0;
    while (!text.empty() && tokens < options_.min_tokens) {
      const std::size_t cut = options_.tokenizer->next_cut(text, std::size_t{8} * options_.min_tokens);
      ids_.clear();
      options_.tokenizer->encode(text.substr(0, cut), ids_);
      tokens += ids_.size();
      text.remove_prefix(cut);
    }
    return tokens < options_.min_tokens;
  }

  const CleanOptions& options_;
  data::DocumentText text_;
  std::string repaired_;
  std::vector<std::int32_t> ids_;
};

void check(io::Fs& fs, const CleanOptions& options) {
  Problems problems;
  problems.require(!options.inputs.empty(), "--input", "", "must name at least one file");
  problems.require(options.min_tokens == 0 || options.tokenizer != nullptr, "--min-tokens", options.min_tokens,
                   "needs --tokenizer, which counts them");
  problems.require(options.threads >= 1, "--threads", options.threads, "must be at least 1");
  problems.throw_if_any("data clean");
  require_empty(fs, options.output);
  for (const io::Path& input : options.inputs) data::require_file(fs, input, "input");
}

Json json_of(const CleanCounts& counts) {
  Json json;
  if (!counts.file.empty()) json["file"] = counts.file;
  json["stored_bytes"] = counts.stored_bytes;
  json["documents_in"] = counts.documents;
  json["text_bytes_in"] = counts.text_bytes;
  json["documents_repaired"] = counts.repaired;
  json["removed"] = {{"title", {{"documents", counts.titled}, {"text_bytes", counts.titled_bytes}}},
                     {"min_tokens", {{"documents", counts.brief}, {"text_bytes", counts.brief_bytes}}}};
  json["documents_out"] = counts.documents_out;
  json["text_bytes_out"] = counts.text_bytes_out;
  Json bad = Json::object();
  for (std::size_t reason = 0; reason < counts.bad.size(); ++reason)
    if (counts.bad[reason] > 0) bad[std::string(name_of(static_cast<data::BadDocument>(reason)))] = counts.bad[reason];
  json["bad_lines"] = bad;
  if (!counts.output.empty()) {
    json["output"] = counts.output;
    json["bytes_written"] = counts.bytes_written;
  }
  put_time(json, counts.seconds, counts.text_bytes);
  return json;
}

Json json_of(const CleanOptions& options, const CleanReport& report) {
  Json settings = {
      {"command", "data clean"},
      {"key", options.key},
      {"input_format", format_name(options.reading.format)},
      {"max_line", options.reading.max_document_bytes},
      {"join_lines", options.lines == CleanOptions::Lines::joined},
      {"drop_titles", options.title_files},
      {"drop_wikitext", options.wikitext_files},
      {"titles", options.titles.size()},
      {"min_tokens", options.min_tokens},
      {"tokenizer", options.tokenizer ? Json(options.tokenizer->name()) : Json(nullptr)},
      {"vocab_dir", options.vocab_dir},
      {"bad_lines", options.bad_lines == BadLines::fail ? "fail" : "skip"},
      {"compress", options.compression == Compression::none ? "none" : extension_of(options.compression).substr(1)},
      {"dry_run", options.write == CleanOptions::Write::report_only}};
  Json files = Json::array();
  for (const CleanCounts& counts : report.files) files.push_back(json_of(counts));
  Json stage = {{"stage", "clean"}};
  put_time(stage, report.total.seconds, report.total.text_bytes);
  return {{"version", options.version},
          {"settings", settings},
          {"run", {{"threads", options.threads}}},
          {"total", json_of(report.total)},
          {"first_bad_lines", report.bad_lines},
          {"titles_in_no_document", report.titles_missed},
          {"titles_with_unknown_words", report.titles_unknown},
          {"stages", Json::array({stage})},
          {"files", files}};
}

}  // namespace

void CleanCounts::add(const CleanCounts& that) {
  for (auto member :
       {&CleanCounts::stored_bytes, &CleanCounts::documents, &CleanCounts::text_bytes, &CleanCounts::repaired,
        &CleanCounts::titled, &CleanCounts::titled_bytes, &CleanCounts::brief, &CleanCounts::brief_bytes,
        &CleanCounts::documents_out, &CleanCounts::text_bytes_out, &CleanCounts::bytes_written})
    this->*member += that.*member;
  for (std::size_t reason = 0; reason < bad.size(); ++reason) bad[reason] += that.bad[reason];
}

CleanReport clean(io::Fs& fs, const CleanOptions& options) {
  check(fs, options);
  const io::OutputLock lock(options.output, kOutputLock);
  require_empty(fs, options.output);  // a second check: another job may have ended in between
  const double start = monotonic_s();
  std::uint64_t stored_all = 0, stored_before = 0;
  for (const io::Path& input : options.inputs) stored_all += fs.file_size(input);
  CleanReport report;
  std::vector<bool> seen(options.titles.size());
  fs.make_dir(options.output);
  std::vector<std::unique_ptr<StagedFile>> outputs;  // files of all inputs: none appears when one of them fails
  for (std::size_t file = 0; file < options.inputs.size(); ++file) {
    const double file_start = monotonic_s();
    const io::Path& input = options.inputs[file];
    CleanCounts counts{.file = input.string(), .stored_bytes = fs.file_size(input)};
    data::DocumentReader::Options reading = options.reading;
    if (options.bad_lines == BadLines::skip) reading.too_long = data::DocumentReader::TooLong::mark;
    data::DocumentReader reader(fs, input, reading);
    std::atomic<std::uint64_t> read = 0;
    StagedFile* output = nullptr;
    const std::unique_ptr<Packer> packer = make_packer(options.compression);
    std::string packed;
    const auto write = [&] {
      if (output != nullptr) output->write(packed);
      counts.bytes_written += output != nullptr ? packed.size() : 0;
      packed.clear();
    };
    if (options.write == CleanOptions::Write::documents) {
      counts.output = output_name(file, input).append(extension_of(options.compression));
      output = outputs.emplace_back(std::make_unique<StagedFile>(fs, options.output / counts.output)).get();
    }
    data::work_in_order<Cleaned>(
        options.threads,
        [&] {
          auto block = reader.next();
          read = reader.stored_bytes();
          return block;
        },
        [&] {
          return [cleaner = Cleaner(options)](const data::DocumentBlock& block, Cleaned& out) mutable {
            cleaner.clean(block, out);
          };
        },
        [&](Cleaned& out) {
          if (output != nullptr) packer->add(out.lines, packed);
          write();
          counts.add(out.counts);
          for (std::string& bad : out.bad_lines)
            if (report.bad_lines.size() < kListed) report.bad_lines.push_back(std::move(bad));
          for (const std::size_t title : out.titles) seen[title] = true;
          if (options.progress) options.progress(stored_before + read, stored_all);
        });
    packer->finish(packed);
    write();
    if (output != nullptr) output->finish();
    counts.seconds = monotonic_s() - file_start;
    report.total.add(counts);
    report.files.push_back(std::move(counts));
    stored_before += fs.file_size(input);
  }
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (const std::string& title = options.titles.title(i); !seen[i] && title.find("<unk>") == std::string::npos)
      report.titles_missed.push_back(title);
  report.titles_unknown = options.titles.with_unknown_words();
  report.seconds = report.total.seconds = monotonic_s() - start;
  outputs.emplace_back(std::make_unique<StagedFile>(fs, options.output / "report.json"));
  outputs.back()->write(json_of(options, report).dump(1) + "\n");
  std::vector<StagedFile*> files;
  for (const auto& output : outputs) files.push_back(output.get());
  StagedFile::publish_all(files);
  return report;
}

}  // namespace megalith::corpus
