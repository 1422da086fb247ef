#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/tokenizer.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

#include "apps/command.h"
#include "apps/vocabulary.h"

namespace megalith::apps {
namespace {

struct TokenizeOptions {
  std::string tokenizer = "gpt2";
  std::string vocab_dir;
  std::string file = "-";
  std::vector<std::string> texts;
  bool decode = false;
};

enum class Direction { encode, decode };

std::string json_line(const nlohmann::ordered_json& value) {
  // Tokens cut anywhere need not be whole characters: what is not UTF-8 is shown as U+FFFD.
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// [1, 2, 3] or {"ids": [1, 2, 3]}, as this command prints them.
std::vector<std::int32_t> parse_ids(std::string_view line) {
  nlohmann::json value = io::read_json(line, {.name = "ids"});
  if (value.is_object() && value.contains("ids")) value = nlohmann::json(value["ids"]);
  const auto is_id = [](const nlohmann::json& id) {
    return id.is_number_integer() && id >= 0 && id <= std::numeric_limits<std::int32_t>::max();
  };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_id))
    throw InputError(str("\"", io::printable(line), "\": must be a list of token ids, as [15496, 995]"));
  return value.get<std::vector<std::int32_t>>();
}

/// One line of input to one line of output, so that a pipe streams.
void convert_line(const data::Tokenizer& tokenizer, Direction direction, const std::string& line) {
  nlohmann::ordered_json out;
  if (direction == Direction::decode) {
    const std::vector<std::int32_t> ids = parse_ids(line);
    out["ids"] = ids;
    out["text"] = tokenizer.decode(ids);
  } else {
    out["text"] = line;
    out["ids"] = tokenizer.encode(line);
  }
  std::cout << json_line(out) << '\n';
}

/// The same, with file and line added to what is wrong with it.
void convert_line_of(const data::Tokenizer& tokenizer, Direction direction, const std::string& line,
                     std::string_view source, std::uint64_t number) {
  try {
    convert_line(tokenizer, direction, line);
  } catch (const InputError& error) {
    throw InputError(str("[", source, "] line ", number, ": ", error.what()));
  }
}

void convert_file(const data::Tokenizer& tokenizer, Direction direction, io::Fs& fs, const std::string& file) {
  const io::MappedFile mapped = fs.map(file);
  io::Reader lines(mapped.bytes(), file);
  while (const auto line = lines.next_line())
    convert_line_of(tokenizer, direction, std::string(*line), file, lines.line());
}

void convert_standard_input(const data::Tokenizer& tokenizer, Direction direction) {
  std::ios::sync_with_stdio(false);
  std::string line;
  for (std::uint64_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    convert_line_of(tokenizer, direction, line, "standard input", number);
    // A reader at the other end of a pipe gets its answer at once; only lines already there are answered together.
    if (std::cin.rdbuf()->in_avail() <= 0) std::cout.flush();
  }
  if (std::cin.bad()) throw IoError("[standard input] read failed");
}

void run_tokenize(const TokenizeOptions& options) {
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const auto tokenizer = open_tokenizer(*fs, options.tokenizer, options.vocab_dir);
  const Direction direction = options.decode ? Direction::decode : Direction::encode;
  if (!options.texts.empty()) {
    for (const std::string& text : options.texts) convert_line(*tokenizer, direction, text);
  } else if (options.file == "-") {
    convert_standard_input(*tokenizer, direction);
  } else {
    convert_file(*tokenizer, direction, *fs, options.file);
  }
  std::cout.flush();
  if (!std::cout) throw IoError("[standard output] write failed");
}

}  // namespace

void add_tokenize(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("tokenize", "Turn text into token ids, or ids into text: one JSON line each");
  const auto options = std::make_shared<TokenizeOptions>();
  command->add_option("FILE", options->file, "Lines of text (with --decode: lists of ids); - is standard input")
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "gpt2 or byte")->capture_default_str();
  command->add_option("--vocab-dir", options->vocab_dir,
                      "Folder of gpt2's encoder.json and vocab.bpe, or tokenizer.json (default: GPT-2's own)");
  command->add_option("--text", options->texts, "Convert this instead of a file; may be given several times")
      ->excludes("FILE")
      ->allow_extra_args(false);
  command->add_flag("--decode", options->decode, "Ids to text");
  command->footer(
      "Prints {\"text\": ..., \"ids\": [...]} for each line, with --decode {\"ids\": [...], \"text\": ...}.\n"
      "  megalith tokenize --text 'Hello world'\n"
      "  echo '[15496, 995]' | megalith tokenize --decode");
  command->callback([options] { run_tokenize(*options); });
}

}  // namespace megalith::apps
