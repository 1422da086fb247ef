#pragma once
#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "megalith/base/team.h"
#include "megalith/data/tokenizer.h"

namespace megalith::apps {

// Options that the commands on corpora have in common.

inline void add_key_and_format(CLI::App& command, std::string& key, std::string& format) {
  command.add_option("--key", key, "Member of a JSON line, or column, that holds the text")->capture_default_str();
  command.add_option("--input-format", format, "auto (by name and first bytes), jsonl, text or parquet")
      ->check(CLI::IsMember({"auto", "jsonl", "text", "parquet"}))
      ->capture_default_str();
}

/// `use` begins the option's help: "Counts the tokens".
inline void add_tokenizer(CLI::App& command, std::string& tokenizer, std::string& vocab_dir, const std::string& use) {
  command.add_option("--tokenizer", tokenizer, use + data::tokenizer_names_text())->capture_default_str();
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

inline void add_max_line_and_dry_run(CLI::App& command, std::uint64_t& max_line, bool& dry_run) {
  command.add_option("--max-line", max_line, "Most bytes of a document")
      ->transform(CLI::AsSizeValue(true))
      ->default_str("256MiB");
  command.add_flag("--dry-run", dry_run, "Write report.json only");
}

}  // namespace megalith::apps
