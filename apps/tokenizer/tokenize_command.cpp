#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/names.h"
#include "megalith/base/str.h"
#include "megalith/data/chat_file.h"
#include "megalith/data/chat_template.h"
#include "megalith/data/corpus_reader.h"
#include "megalith/data/input_files.h"
#include "megalith/data/json_text.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"
#include "megalith/io/retrying_fs.h"
#include "megalith/tokenizer/tokenizer.h"

#include "apps/program/command.h"
#include "apps/program/corpus_options.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {
namespace {

struct TokenizeOptions {
  std::string tokenizer = "gpt2";
  std::string vocab_dir;
  std::string file = "-";
  std::string format = "auto", key = "text";
  std::vector<std::string> texts;
  const CLI::Option* key_option = nullptr;
  std::uint64_t max_line = data::kDefaultMaxLine;
  bool decode = false;
  std::string chat;  ///< a template
  const CLI::Option* format_option = nullptr;
};

/// A line of input with its source and number.
struct Line {
  std::string_view text, source;
  std::uint64_t number = 1;
};

/// [1, 2, 3] or {"ids": [1, 2, 3]}, as this command prints them.
std::vector<std::int32_t> parse_ids(const Line& line) {
  nlohmann::json value = io::read_json(line.text, {.name = line.source, .first_line = line.number});
  if (value.is_object() && value.contains("ids")) value = nlohmann::json(value["ids"]);
  const auto is_id = [](const nlohmann::json& id) {
    return id.is_number_integer() && id >= 0 && id <= std::numeric_limits<std::int32_t>::max();
  };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_id))
    throw InputError(str("[", line.source, "] line ", line.number, ": \"", io::printable(line.text),
                         "\": must be a list of token ids, as [15496, 995]"));
  return value.get<std::vector<std::int32_t>>();
}

/// Returns f(). Adds file and line to its errors.
template <class F>
auto in_line(const Line& line, F&& f) {
  try {
    return f();
  } catch (const InputError& error) {
    throw InputError(str("[", line.source, "] line ", line.number, ": ", error.what()));
  }
}

/// One line of input to one line of output, so that a pipe streams.
class Converter {
 public:
  Converter(const TokenizeOptions& options, const tokenizer::Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer), json_(options.key) {}

  void convert(const Line& line, data::CorpusFormat format) {
    if (options_.decode) {
      const std::vector<std::int32_t> ids = parse_ids(line);
      print({{"ids", ids}, {"text", in_line(line, [&] { return tokenizer_.decode(ids); })}});
    } else if (format == data::CorpusFormat::text) {
      encode(line, line.text);
    } else if (line.text.find_first_not_of(" \t\r") != std::string_view::npos) {  // as in data build
      encode(line, json_.read(line.text, {.file = line.source, .number = line.number, .readable = line.text}));
    }
  }

 private:
  /// Written number by number: a JSON tree of a long line would take many times its bytes.
  void encode(const Line& line, std::string_view text) {
    ids_.clear();
    in_line(line, [&] { tokenizer_.encode(text, ids_); });
    constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
    std::cout << "{\"text\":" << nlohmann::json(text).dump(-1, ' ', false, kReplace) << ",\"ids\":[";
    for (std::size_t i = 0; i < ids_.size(); ++i) std::cout << (i == 0 ? "" : ",") << ids_[i];
    std::cout << "]}\n";
  }
  static void print(const nlohmann::ordered_json& value) {
    // Tokens may end within characters: bytes that are not UTF-8 are shown as U+FFFD.
    std::cout << value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
  }

  const TokenizeOptions& options_;
  const tokenizer::Tokenizer& tokenizer_;
  data::JsonText json_;
  std::vector<std::int32_t> ids_;
};

[[noreturn]] void refuse_line(std::string_view source, std::uint64_t number, std::uint64_t max_bytes) {
  throw InputError(str("[", source, "] line ", number, " has over ", max_bytes,
                       " bytes, the most that a line may have; --max-line raises that"));
}

/// The next line without its end. False at the end of the input.
bool read_line(std::streambuf& in, std::uint64_t number, std::uint64_t max_bytes, std::string& line) {
  line.clear();
  const auto next = [&] {
    try {
      return in.sbumpc();
    } catch (const std::ios_base::failure&) {  // from the system's read()
      throw IoError("[standard input] read failed");
    }
  };
  int c = next();
  if (c == std::char_traits<char>::eof()) return false;
  for (; c != std::char_traits<char>::eof() && c != '\n'; c = next()) {
    if (line.size() == max_bytes) refuse_line("standard input", number, max_bytes);
    line.push_back(static_cast<char>(c));
  }
  return true;
}

void convert_file(Converter& converter, io::Fs& fs, const TokenizeOptions& options, data::CorpusFormat format) {
  data::require_file(fs, options.file, "tokenize");
  if (options.format == "auto" && !options.decode) data::refuse_table(options.file);
  const io::MappedFile mapped = fs.map(options.file);
  io::Reader lines(mapped.bytes(), options.file);
  while (const auto line = lines.next_line()) {
    if (line->size() > options.max_line) refuse_line(options.file, lines.line(), options.max_line);
    converter.convert({*line, options.file, lines.line()}, format);
  }
}

void convert_standard_input(Converter& converter, std::uint64_t max_line, data::CorpusFormat format) {
  std::ios::sync_with_stdio(false);
  std::string line;
  for (std::uint64_t number = 1; read_line(*std::cin.rdbuf(), number, max_line, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    converter.convert({line, "standard input", number}, format);
    // The reader of a pipe gets each answer at once; only lines that are there already are answered together.
    if (std::cin.rdbuf()->in_avail() <= 0) std::cout.flush();
  }
}

/// As JSON writes a list of numbers.
void append_list(std::string& out, const auto& numbers) {
  out += '[';
  for (std::size_t i = 0; i < numbers.size(); ++i) out += str(i == 0 ? "" : ",", static_cast<int>(numbers[i]));
  out += ']';
}

/// The tokens of conversations. Prints nothing if a line is bad.
void tokenize_chat(io::Fs& fs, const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.decode || options.key_option->count() > 0 || options.format_option->count() > 0 || !options.texts.empty())
    throw ConfigError(str("--chat = ", options.chat,
                          ": reads lines of conversations: leave out --decode, --key, --input-format and --text"));
  const data::ChatEncoder encoder(*enumerator_of<data::ChatTemplate>(data::kChatTemplateNames, options.chat),
                                  tokenizer);
  std::string out;
  const auto use = [&](const data::Conversation& conversation) {
    const data::ChatTokens tokens = encoder.encode(conversation);
    out += "{\"ids\":";
    append_list(out, tokens.ids);
    out += ",\"loss\":";
    append_list(out, tokens.loss);
    out += "}\n";
  };
  io::FileProblems problems;
  if (options.file != "-") {
    data::require_file(fs, options.file, "tokenize");
    data::for_each_conversation(fs, options.file, options.max_line, problems, use);
  } else {
    std::string line;
    for (std::uint64_t number = 1; read_line(*std::cin.rdbuf(), number, options.max_line, line); ++number)
      data::use_conversation({.json = line, .file = "standard input", .number = number}, problems, use);
  }
  problems.throw_if_any(options.file == "-" ? "standard input" : options.file);
  std::cout << out;
}

void flush_output() {
  std::cout.flush();
  if (!std::cout) throw IoError("[standard output] write failed");
}

void run_tokenize(const TokenizeOptions& options) {
  const std::shared_ptr<io::Fs> fs = io::retrying_fs(io::posix_fs());
  const auto tokenizer = open_tokenizer(*fs, options.tokenizer, options.vocab_dir);
  if (!options.chat.empty()) {
    tokenize_chat(*fs, *tokenizer, options);
    return flush_output();
  }
  Converter converter(options, *tokenizer);
  const bool by_name = options.format == "auto";
  const data::CorpusFormat format =
      options.format == "jsonl" || (by_name && options.texts.empty() && data::names_json_lines(options.file))
          ? data::CorpusFormat::json_lines
          : data::CorpusFormat::text;
  if (options.key_option->count() > 0 && (options.decode || format == data::CorpusFormat::text))
    throw ConfigError(str("--key = ", options.key, ": ", options.decode ? "lists of ids have" : "a text has",
                          " no members; leave it out", options.decode ? "" : ", or give --input-format jsonl"));
  if (!options.texts.empty()) {
    for (const std::string& text : options.texts) converter.convert({text, "--text"}, format);
  } else if (options.file == "-") {
    convert_standard_input(converter, options.max_line, format);
  } else {
    convert_file(converter, *fs, options, format);
  }
  flush_output();
}

}  // namespace

void add_tokenize(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("tokenize", "Turn text into token ids, or ids into text: one JSON line each");
  const auto options = std::make_shared<TokenizeOptions>();
  command
      ->add_option("FILE", options->file,
                   "Lines of text or JSON lines (with --decode: lists of ids); - is standard input")
      ->capture_default_str();
  add_tokenizer(*command, options->tokenizer, options->vocab_dir, "");
  options->format_option = command->add_option("--input-format", options->format, "auto (by file name), jsonl or text")
                               ->check(CLI::IsMember({"auto", "jsonl", "text"}))
                               ->capture_default_str();
  options->key_option =
      command->add_option("--key", options->key, "Member of a JSON line that holds the text, which may hold line ends")
          ->capture_default_str();
  add_size(*command, "--max-line", options->max_line, "Most bytes of a line",
           str(data::kDefaultMaxLine >> 20, "MiB").c_str());
  command->add_option("--text", options->texts, "Convert this instead of a file; may be given several times")
      ->excludes("FILE")
      ->allow_extra_args(false);
  command->add_flag("--decode", options->decode, "Ids to text");
  command
      ->add_option("--chat", options->chat,
                   "FILE has conversations (docs/chat.md), written by this template: chatml, llama3 or plain")
      ->check(CLI::IsMember({"chatml", "llama3", "plain"}));
  command->footer(
      "Prints {\"text\": ..., \"ids\": [...]} for each line, with --decode {\"ids\": [...], \"text\": ...}, with\n"
      "--chat {\"ids\": [...], \"loss\": [0, 1, ...]}.\n"
      "  echo '{\"text\": \"two\\\\nlines\"}' | megalith tokenize --input-format jsonl\n"
      "  echo '[15496, 995]' | megalith tokenize --decode\n"
      "  megalith tokenize --text 'Hello world'\n"
      "  megalith tokenize --chat plain dialogues.jsonl");
  command->callback([options] { run_tokenize(*options); });
}

}  // namespace megalith::apps
