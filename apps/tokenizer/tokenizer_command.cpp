#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/base/utf8.h"
#include "megalith/corpus/output_folder.h"
#include "megalith/corpus/report.h"
#include "megalith/corpus/staged_file.h"
#include "megalith/data/corpus_builder.h"
#include "megalith/data/input_files.h"
#include "megalith/data/tokenizer_training.h"
#include "megalith/io/problem_text.h"
#include "megalith/tokenizer/vocabulary_files.h"

#include "apps/program/command.h"
#include "apps/program/corpus_options.h"
#include "apps/program/launch.h"
#include "apps/program/output_path.h"
#include "apps/program/version.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {
namespace {

using TokenizerJsonText = nlohmann::ordered_json;

struct TrainArguments {
  std::string type, output, format = "auto";
  std::vector<std::string> inputs;
  std::uint64_t max_line = data::kDefaultMaxLine;
  bool dry_run = false;
  const CLI::Option* key = nullptr;
  data::TrainingText text;
  tokenizer::TrainerOptions options;
};

TokenizerJsonText report_json(const TrainArguments& arguments, const tokenizer::TrainedTokenizer& trained) {
  const tokenizer::TrainerOptions& options = arguments.options;
  const tokenizer::TrainerReport& report = trained.report;
  TokenizerJsonText written = TokenizerJsonText::array(), files = TokenizerJsonText::array();
  for (const tokenizer::TrainedFile& file : trained.files)
    written.push_back({{"file", file.name}, {"bytes", file.text.size()}});
  for (const tokenizer::TrainerFileCounts& file : report.files) {
    files.push_back({{"file", file.file},
                     {"stored_bytes", file.stored_bytes},
                     {"text_bytes", file.text_bytes},
                     {"documents", file.documents}});
    corpus::put_time(files.back(), file.seconds, file.text_bytes);
  }
  TokenizerJsonText read = {{"stage", "read"}}, learn = {{"stage", "learn"}};
  corpus::put_time(read, report.read_s, report.text_bytes);
  corpus::put_time(learn, report.learn_s, report.text_bytes);
  return {{"version", std::string(version())},
          {"settings",
           {{"command", "tokenizer train"},
            {"type", arguments.type},
            {"vocab_size", options.vocab_size},
            {"min_frequency", options.min_frequency},
            {"special", options.specials},
            {"lowercase", options.lowercase},
            {"memory", options.memory_bytes},
            {"key", arguments.text.key},
            {"input_format", arguments.format},
            {"split_on", arguments.text.reading.split_on},
            {"max_line", arguments.max_line},
            {"dry_run", arguments.dry_run}}},
          {"run", {{"threads", arguments.text.threads}}},
          {"input", {{"files", arguments.text.inputs.size()}, {"stored_bytes", report.stored_bytes}}},
          {"documents", report.documents},
          {"text_bytes", report.text_bytes},
          {"words", {{"different", report.words}, {"all", report.occurrences}}},
          {"dropped_for_memory", {{"words", report.dropped_words}, {"occurrences", report.dropped_occurrences}}},
          {"tokens", report.tokens},
          {"merges", report.merges},
          {"stages", TokenizerJsonText::array({read, learn})},
          {"files", files},
          {"written", written}};
}

void show(const tokenizer::TrainedTokenizer& trained) {
  const tokenizer::TrainerReport& report = trained.report;
  const auto number = [](auto n) { return std::to_string(n); };
  std::vector<std::vector<std::string>> rows = {
      {"", "count", "bytes"},
      {"documents", number(report.documents), human_bytes(static_cast<Index>(report.text_bytes))},
      {"different words", number(report.words), ""},
      {"words", number(report.occurrences), ""},
      {"words left out", number(report.dropped_words), ""},
      {"tokens", number(report.tokens), ""}};
  for (const tokenizer::TrainedFile& file : trained.files)
    rows.push_back({file.name, "", human_bytes(static_cast<Index>(file.text.size()))});
  std::cout << text_table(rows);
}

void run_tokenizer_train(const TrainArguments& arguments) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  tokenizer::TrainerOptions options = arguments.options;
  options.type = tokenizer::tokenizer_type_named(arguments.type);
  data::TrainingText text = arguments.text;
  text.reading.format = data::format_named(arguments.format);
  text.reading.max_line_bytes = static_cast<Index>(arguments.max_line);
  corpus::require_empty(*fs, arguments.output);
  text.inputs = data::input_files(*fs, arguments.inputs);
  require_members(*fs, text.inputs, text.reading.format, *arguments.key);
  if (::isatty(STDERR_FILENO) == 1)
    options.progress = [](std::uint64_t done, std::uint64_t all, std::string_view unit) {
      const bool is_bytes = unit == "bytes";
      const auto shown = [&](std::uint64_t n) {
        return is_bytes ? human_bytes(static_cast<Index>(n)) : std::to_string(n);
      };
      std::fprintf(stderr, "\r%s of %s%s \x1b[K", shown(done).c_str(), shown(all).c_str(), is_bytes ? "" : " tokens");
    };
  const tokenizer::TrainedTokenizer trained = data::train_tokenizer(*fs, text, options);
  if (options.progress) std::fputs("\r\x1b[K", stderr);
  const tokenizer::TrainerReport& report = trained.report;
  const io::Path output = arguments.output;
  fs->make_dir(output);
  TrainArguments asked = arguments;
  asked.options = options;
  asked.text = text;
  std::vector<std::unique_ptr<corpus::StagedFile>> files;
  std::vector<corpus::StagedFile*> all;
  const auto stage = [&](const std::string& name, const std::string& content) {
    files.push_back(std::make_unique<corpus::StagedFile>(*fs, output / name));
    files.back()->write(content);
    all.push_back(files.back().get());
  };
  if (!arguments.dry_run)
    for (const tokenizer::TrainedFile& file : trained.files) stage(file.name, file.text);
  stage("report.json", report_json(asked, trained).dump(1) + "\n");
  corpus::StagedFile::publish_all(all);
  show(trained);
  if (report.dropped_words > 0)
    std::fprintf(stderr, "warning: --memory %s left out %llu rare words (%llu of %llu occurrences)\n",
                 human_bytes(static_cast<Index>(options.memory_bytes)).c_str(),
                 static_cast<unsigned long long>(report.dropped_words),
                 static_cast<unsigned long long>(report.dropped_occurrences),
                 static_cast<unsigned long long>(report.occurrences));
  if (report.tokens < options.vocab_size)
    std::fprintf(stderr, "warning: %lld tokens, not %lld: no other pair occurs %llu times\n",
                 static_cast<long long>(report.tokens), static_cast<long long>(options.vocab_size),
                 static_cast<unsigned long long>(options.min_frequency));
  std::fprintf(
      stderr, "%s: %lld tokens from %llu documents, %s of text, %llu different words; read %.1f s, learnt %.1f s\n",
      arguments.output.c_str(), static_cast<long long>(report.tokens),
      static_cast<unsigned long long>(report.documents), human_bytes(static_cast<Index>(report.text_bytes)).c_str(),
      static_cast<unsigned long long>(report.words), report.read_s, report.learn_s);
}

void add_tokenizer_train(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand("train", "Learn a vocabulary from text");
  const auto arguments = std::make_shared<TrainArguments>();
  tokenizer::TrainerOptions& options = arguments->options;
  command->add_option("--type", arguments->type, "bpe, wordpiece, sentencepiece-unigram or sentencepiece-bpe")
      ->required();
  command->add_option("--vocab-size", options.vocab_size, "Tokens, special ones among them")->required();
  command
      ->add_option("--input", arguments->inputs,
                   "Text, JSON lines or Parquet, compressed or not: files, folders, patterns in quotes")
      ->required();
  add_output(*command, "--output", arguments->output, "Folder of the vocabulary's files and report.json");
  command->add_option("--min-frequency", options.min_frequency, "A rarer pair is not merged")
      ->check(between(1, std::int64_t{1} << 32))
      ->capture_default_str();
  command->add_option("--special", options.specials,
                      "Special tokens besides <|endoftext|> (bpe) or [PAD] [UNK] [CLS] [SEP] [MASK] (wordpiece)");
  command->add_flag("--lowercase", options.lowercase, "Lower case, without accents; not of bpe");
  arguments->key = add_key_and_format(*command, arguments->text.key, arguments->format);
  command->add_option("--split-on", arguments->text.reading.split_on,
                      "Line that stands between the documents of a text file (default: a file is one document)");
  add_threads(*command, arguments->text.threads);
  add_size(*command, "--memory", options.memory_bytes, "Of the table of words; above it the rarest go, and are counted",
           "4GiB");
  add_max_line(*command, arguments->max_line);
  add_dry_run(*command, arguments->dry_run);
  command->footer(
      "  megalith tokenizer train --type bpe --vocab-size 32000 --input 'corpus/*.jsonl.zst' --output out/bpe");
  command->callback([arguments] { run_tokenizer_train(*arguments); });
}

struct TokenizerInfoArguments {
  std::string folder, tokenizer, format = "text", key = "text", input_format = "auto";
  std::vector<std::string> texts;
  const CLI::Option* key_option = nullptr;
  std::uint64_t max_line = data::kDefaultMaxLine;
};

/// {"id": ..., "token": ...} of each added token. BERT's vocab.txt does not mark them; a tokenizer.json in the same
/// folder does.
TokenizerJsonText added_tokens(io::Fs& fs, const io::Path& folder, const tokenizer::Tokenizer& tokenizer) {
  TokenizerJsonText list = TokenizerJsonText::array();
  const auto add = [&](std::int32_t id, std::string_view token) {
    list.push_back({{"id", id}, {"token", repair_utf8(token)}});
  };
  for (const std::int32_t id : tokenizer.added_tokens()) add(id, tokenizer.token_bytes(id));
  const io::Path file = folder / "tokenizer.json";
  if (!tokenizer.name().starts_with("bert-") || !fs.exists(file)) return list;
  const auto tree = nlohmann::json::parse(std::string(fs.map(file).text()), nullptr, false);
  if (!tree.is_object() || !tree.contains("added_tokens") || !tree["added_tokens"].is_array()) return list;
  for (const auto& token : tree["added_tokens"]) {
    if (!token.is_object() || !token.contains("id") || !token.contains("content")) continue;
    if (token["id"].is_number_unsigned() && token["content"].is_string())
      add(token["id"].get<std::int32_t>(), token["content"].get<std::string>());
  }
  return list;
}

/// Counts the ids of texts without keeping them.
class CountingSink final : public data::TokenSink {
 public:
  void add(std::span<const std::int32_t> ids) override { tokens += static_cast<Index>(ids.size()); }
  void end_document() override {}
  Index tokens = 0;
};

/// Reads the texts as `data build` reads its inputs.
void count_texts(io::Fs& fs, const TokenizerInfoArguments& arguments, const tokenizer::Tokenizer& tokenizer,
                 TokenizerJsonText& info) {
  data::CorpusOptions options{.key = arguments.key,
                              .end_of_document = data::EndOfDocument::omit,
                              .invalid_utf8 = data::InvalidUtf8::replace,
                              .threads = usable_cores()};
  options.reading.format = data::format_named(arguments.input_format);
  options.reading.max_line_bytes = static_cast<Index>(arguments.max_line);
  CountingSink sink;
  const std::vector<io::Path> files = data::input_files(fs, arguments.texts);
  require_members(fs, files, options.reading.format, *arguments.key_option);
  const data::CorpusCounts counts = data::tokenize_corpus(fs, files, tokenizer, options, sink);
  Index bytes = 0;
  for (const data::CorpusFileCounts& file : counts.files) bytes += file.text_bytes;
  info["text_documents"] = counts.documents + counts.empty_documents;
  info["text_bytes"] = bytes;
  info["text_tokens"] = sink.tokens;
  info["bytes_per_token"] = sink.tokens == 0
                                ? TokenizerJsonText(nullptr)
                                : TokenizerJsonText(static_cast<double>(bytes) / static_cast<double>(sink.tokens));
}

/// The tokenizer of a folder, by the names of its files and, for tokenizer.json, by the type of the model.
std::string tokenizer_in(io::Fs& fs, const io::Path& folder) {
  if (fs.exists(folder / "tokenizer.json")) {
    const std::string text(fs.map(folder / "tokenizer.json").text());
    const auto tree = nlohmann::json::parse(text, nullptr, false);
    const auto at = [](const nlohmann::json& value, const char* key) {
      return value.is_object() && value.contains(key) ? value[key] : nlohmann::json();
    };
    if (at(at(tree, "model"), "type") != "WordPiece") return "bpe";
    return at(at(tree, "normalizer"), "lowercase") == false ? "bert-cased" : "bert-uncased";
  }
  if (fs.exists(folder / "vocab.txt")) return "bert-uncased";
  if (fs.exists(folder / "encoder.json") || fs.exists(folder / "vocab.json")) return "bpe";
  if (fs.is_dir(folder)) {
    for (const std::string& name : fs.list(folder))
      if (io::Path(name).extension() == ".model") return "sentencepiece";
  }
  throw InputError(str("[tokenizer info] ", folder.string(),
                       ": no vocabulary there; looked for tokenizer.json, vocab.txt, encoder.json, vocab.json, *.model",
                       io::looked_for_in(folder)));
}

void run_tokenizer_info(const TokenizerInfoArguments& arguments) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  const std::string name = arguments.tokenizer.empty() ? tokenizer_in(*fs, arguments.folder) : arguments.tokenizer;
  const auto tokenizer = tokenizer::make_tokenizer(name, arguments.folder, *fs);
  TokenizerJsonText info;
  info["tokenizer"] = name;
  info["tokens"] = tokenizer->vocab_size();
  TokenizerJsonText specials = TokenizerJsonText::object();
  constexpr std::pair<const char*, tokenizer::Special> kRoles[] = {{"cls", tokenizer::Special::cls},
                                                                   {"sep", tokenizer::Special::sep},
                                                                   {"mask", tokenizer::Special::mask},
                                                                   {"pad", tokenizer::Special::pad},
                                                                   {"unk", tokenizer::Special::unk}};
  specials["end_of_document"] = tokenizer->end_of_document();
  for (const auto& [role, which] : kRoles)
    if (const auto id = tokenizer->special(which)) specials[role] = *id;
  info["special_tokens"] = specials;
  info["added_tokens"] = added_tokens(*fs, arguments.folder, *tokenizer);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokenizer->vocab_size()));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  const std::size_t shown = std::min<std::size_t>(10, ids.size());
  std::ranges::partial_sort(ids, ids.begin() + static_cast<std::ptrdiff_t>(shown), [&](std::int32_t a, std::int32_t b) {
    const std::size_t left = tokenizer->token_bytes(a).size(), right = tokenizer->token_bytes(b).size();
    return left != right ? left > right : a < b;
  });
  TokenizerJsonText longest = TokenizerJsonText::array();
  for (std::size_t i = 0; i < shown; ++i)
    longest.push_back({{"id", ids[i]}, {"bytes", repair_utf8(tokenizer->token_bytes(ids[i]))}});
  info["longest_tokens"] = longest;
  if (!arguments.texts.empty()) count_texts(*fs, arguments, *tokenizer, info);
  if (arguments.format == "json") {
    std::cout << info.dump() << '\n';
    return;
  }
  for (const auto& [key, value] : info.items())
    std::cout << key << std::string(20 - key.size(), ' ')
              << (value.is_string() ? value.get<std::string>() : value.dump()) << '\n';
}

void add_tokenizer_info(CLI::App& parent) {
  CLI::App* command = parent.add_subcommand("info", "Check a vocabulary and print what is in it");
  const auto arguments = std::make_shared<TokenizerInfoArguments>();
  command->add_option("DIR", arguments->folder, "Folder of its files")->required();
  command->add_option("--tokenizer", arguments->tokenizer,
                      tokenizer::tokenizer_names_text() + " (default: by the files; vocab.txt is bert-uncased)");
  command->add_option("--text", arguments->texts,
                      "Also print how many bytes of these texts a token stands for: what --input of data build takes");
  arguments->key_option = add_key_and_format(*command, arguments->key, arguments->input_format);
  add_max_line(*command, arguments->max_line);
  command->add_option("--format", arguments->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->footer("  megalith tokenizer info out/bpe --text held-out.txt");
  command->callback([arguments] { run_tokenizer_info(*arguments); });
}

}  // namespace

void add_tokenizer_command(CLI::App& program) {
  CLI::App* command = program.add_subcommand("tokenizer", "Train and inspect vocabularies");
  command->require_subcommand(1);
  add_tokenizer_train(*command);
  add_tokenizer_info(*command);
}

}  // namespace megalith::apps
