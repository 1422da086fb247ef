#include "apps/example_file.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"

namespace megalith::apps {
namespace {

std::string line_of(Index example, const eval::ExampleResult& result) {
  const nlohmann::ordered_json line = {{"example", example},
                                       {"log_probability", result.log_probability},
                                       {"targets", result.targets},
                                       {"correct", result.correct}};
  return line.dump() + '\n';
}

std::string first_line(const std::string& identity) { return nlohmann::ordered_json{{"evaluation", identity}}.dump(); }

/// Where a chain of symbolic links ends, which need not exist.
io::Path target_of(io::Path file) {
  constexpr int kMaxSymlinks = 40;  // as Linux has it
  std::error_code failed;
  for (int followed = 0; followed < kMaxSymlinks && std::filesystem::is_symlink(file, failed); ++followed) {
    const io::Path next = std::filesystem::read_symlink(file, failed);
    if (failed) break;
    file = file.parent_path() / next;  // an absolute one replaces the folder
  }
  return file;
}

[[noreturn]] void refuse(const io::Path& file, std::size_t line, std::string_view rule) {
  throw InputError(str("[", file.string(), "] line ", line, ": ", rule,
                       "; name another file with --per-example, or remove this one"));
}

ExampleFile::Numbered parse(const io::Path& file, std::size_t number, std::string_view text, const eval::EvalSet& set) {
  const std::string name = file.string();
  const nlohmann::json line = io::read_json(text, {.name = name, .first_line = number});
  const auto is_count = [&](const char* key) { return line.contains(key) && line[key].is_number_unsigned(); };
  const bool is_whole = line.is_object() && is_count("example") && is_count("targets") &&
                        line.contains("log_probability") && line["log_probability"].is_number() &&
                        line.contains("correct") && line["correct"].is_boolean();
  if (!is_whole) refuse(file, number, "must have example, log_probability, targets and correct");
  const auto example = line["example"].get<std::size_t>();
  if (example >= set.passages.size() || line["targets"].get<Index>() != set.passages[example].targets())
    refuse(file, number, str("example = ", example, ": the evaluation has none of that number and length"));
  return {static_cast<Index>(example),
          {line["log_probability"].get<double>(), line["targets"].get<Index>(), line["correct"].get<bool>()}};
}

}  // namespace

std::vector<ExampleFile::Numbered> ExampleFile::read(io::Fs& fs, const io::Path& file, const std::string& identity,
                                                     const eval::EvalSet& set) {
  std::vector<Numbered> done;
  if (!fs.exists(file) || fs.file_size(file) == 0) return done;
  const io::MappedFile mapped = fs.map(file);
  std::string_view rest = mapped.text();
  for (std::size_t number = 1; rest.find('\n') != std::string_view::npos; ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    if (number > 1)
      done.push_back(parse(file, number, line, set));
    else if (line != first_line(identity))
      refuse(file, 1, str("is of another evaluation: must be ", first_line(identity)));
  }
  return done;
}

std::string_view ExampleFile::problem(const io::Path& file) {
  std::error_code ignored;  // what cannot be looked at fails when it is opened
  if (std::filesystem::is_directory(file, ignored)) return "is a folder; name a file in it";
  if (std::filesystem::exists(file, ignored) && !std::filesystem::is_regular_file(file, ignored))
    return "is a device or a pipe, which no file may replace; name another";
  return "";
}

ExampleFile::ExampleFile(io::Fs& fs, const io::Path& file, const std::string& identity,
                         const std::vector<Numbered>& done) {
  if (const std::string_view wrong = problem(file); !wrong.empty())
    throw ConfigError(str("--per-example = ", file.string(), ": ", wrong));
  std::string text = first_line(identity) + '\n';
  for (const auto& [example, result] : done) text += line_of(example, result);
  const io::Path target = target_of(file);
  io::publish_file(fs, target, text);
  file_ = fs.append(target);
}

void ExampleFile::add(Index example, const eval::ExampleResult& result) { file_->write(line_of(example, result)); }

}  // namespace megalith::apps
