#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/base/text.h"
#include "megalith/data/corpus_reader.h"
#include "megalith/data/input_files.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::apps {

// Options that several commands on corpora have.

/// Returns the option --key, for require_members().
inline const CLI::Option* add_key_and_format(CLI::App& command, std::string& key, std::string& format) {
  const CLI::Option* const option =
      command.add_option("--key", key, "Member of a JSON line, or column, that holds the text")->capture_default_str();
  command.add_option("--input-format", format, "auto (by name and first bytes), jsonl, text or parquet")
      ->check(CLI::IsMember({"auto", "jsonl", "text", "parquet"}))
      ->capture_default_str();
  return option;
}

/// Refuses tables, and a --key that no input file uses.
inline void require_members(io::Fs& fs, const std::vector<io::Path>& files, data::CorpusFormat format,
                            const CLI::Option& key) {
  if (format == data::CorpusFormat::by_name) std::ranges::for_each(files, data::refuse_table);
  if (key.count() > 0 && !data::any_has_members(fs, files, format))
    throw ConfigError(str("--key = ", key.as<std::string>(),
                          ": no input is JSON lines or Parquet, and a text has no members; leave it out, or name the "
                          "format by --input-format"));
}

/// `use` begins the option's help: "Counts the tokens".
inline void add_tokenizer(CLI::App& command, std::string& tokenizer, std::string& vocab_dir, const std::string& use) {
  command.add_option("--tokenizer", tokenizer, use + tokenizer::tokenizer_names_text())->capture_default_str();
  command.add_option("--vocab-dir", vocab_dir,
                     "Folder of its files: tokenizer.json, or encoder.json and vocab.bpe; vocab.txt of bert-* "
                     "(default: those of GPT-2 and BERT)");
}

/// By default one per core that the process may use.
inline void add_threads(CLI::App& command, int& threads) {
  threads = usable_cores();
  command.add_option("--threads", threads, "Same result for any number")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

/// Prints the rate and the remaining time on standard error, if that is a terminal.
inline std::function<void(std::uint64_t, std::uint64_t)> byte_progress() {
  if (::isatty(STDERR_FILENO) != 1) return {};
  return [start = monotonic_s()](std::uint64_t done, std::uint64_t all) {
    const double seconds = std::max(monotonic_s() - start, 1e-9), bytes = std::max(static_cast<double>(done), 1.0);
    std::fprintf(stderr, "\r%s of %s  %.1f MB/s  %.0f s left \x1b[K", human_bytes(static_cast<Index>(done)).c_str(),
                 human_bytes(static_cast<Index>(all)).c_str(), bytes / 1e6 / seconds,
                 seconds * (static_cast<double>(all) - bytes) / bytes);
  };
}

/// A number of bytes, as 1000, 256MiB or 1GB; not 0.
inline void add_size(CLI::App& command, const char* name, std::uint64_t& bytes, const std::string& use,
                     const char* by_default) {
  const auto to_bytes = [](std::string& text) -> std::string {
    if (text.starts_with('-') || text.find_first_of("123456789") == std::string::npos)
      return "must be a size above 0, not " + text;
    return CLI::AsSizeValue(true)(text);
  };
  command.add_option(name, bytes, use)->transform(CLI::Validator(to_bytes, "SIZE"))->default_str(by_default);
}

inline void add_max_line(CLI::App& command, std::uint64_t& bytes) {
  add_size(command, "--max-line", bytes, "Most bytes of a line, a row, or a text that is read as a whole",
           str(data::kDefaultMaxLine >> 20, "MiB").c_str());
}

inline void add_dry_run(CLI::App& command, bool& dry_run) {
  command.add_flag("--dry-run", dry_run, "Write report.json only");
}

}  // namespace megalith::apps
