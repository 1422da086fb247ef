#include "apps/eval/example_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/checksum.h"

namespace megalith::apps {
namespace {

constexpr std::string_view kChecksum = ",\"checksum\":\"", kEnd = "\"}";
constexpr std::size_t kDigits = 32, kTailBytes = kChecksum.size() + kDigits + kEnd.size();

std::string checksum_of(const std::string& identity, std::string_view object) {
  const std::string text = str(identity, '\n', object);
  return io::checksum(std::as_bytes(std::span(text.data(), text.size()))).hex();
}

/// An object with the checksum as its last member, and a line end.
std::string sealed(const std::string& identity, const nlohmann::ordered_json& object) {
  const std::string text = object.dump();
  return str(std::string_view(text).substr(0, text.size() - 1), kChecksum, checksum_of(identity, text), kEnd, '\n');
}

/// Reverses sealed(); nothing if sealed() did not make the line.
std::optional<nlohmann::json> unsealed(const std::string& identity, std::string_view line) {
  if (line.size() < kTailBytes) return std::nullopt;
  const std::string_view tail = line.substr(line.size() - kTailBytes);
  const std::string object = str(line.substr(0, line.size() - kTailBytes), '}');
  if (tail != str(kChecksum, checksum_of(identity, object), kEnd)) return std::nullopt;
  return nlohmann::json::parse(object, nullptr, false);
}

constexpr const char* kOrder = "order_log_probability";

std::string line_of(const std::string& identity, eval::SamplesHaveOrder order, Index example,
                    const eval::ExampleResult& result) {
  nlohmann::ordered_json line = {{"example", example},
                                 {"log_probability", result.log_probability},
                                 {"targets", result.targets},
                                 {"correct", result.correct}};
  if (order == eval::SamplesHaveOrder::yes) line[kOrder] = result.order_log_probability;
  return sealed(identity, line);
}

std::string first_line(const std::string& identity) {
  return sealed(identity, nlohmann::ordered_json{{"evaluation", identity}});
}

/// The end of a chain of symbolic links, which need not exist.
io::Path target_of(io::Path file) {
  constexpr int kMaxSymlinks = 40;  // as in Linux
  std::error_code failed;
  for (int followed = 0; followed < kMaxSymlinks && std::filesystem::is_symlink(file, failed); ++followed) {
    const io::Path next = std::filesystem::read_symlink(file, failed);
    if (failed) break;
    file = file.parent_path() / next;  // an absolute path replaces the folder
  }
  return file;
}

[[noreturn]] void refuse(const io::Path& file, std::string_view rule) {
  throw InputError(
      str("[", file.string(), "] line 1: ", rule, "; name another file with --per-example, or remove this one"));
}

enum class FirstLine { of_this, of_another, changed, of_no_evaluation };

FirstLine first_line_is(const std::string& identity, std::string_view line) {
  if (str(line, '\n') == first_line(identity)) return FirstLine::of_this;
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  if (object.is_discarded() && line.starts_with(R"({"evaluation":")")) return FirstLine::changed;  // cut
  if (!object.is_object() || !object.contains("evaluation") || !object["evaluation"].is_string())
    return FirstLine::of_no_evaluation;
  const auto evaluation = object["evaluation"].get<std::string>();
  const bool was_changed =
      object.contains("checksum") ? str(line, '\n') != first_line(evaluation) : evaluation == identity;
  return was_changed ? FirstLine::changed : FirstLine::of_another;
}

/// The result of an example; nothing for a changed line.
std::optional<ExampleFile::Numbered> parse(const std::string& identity, std::string_view text,
                                           const eval::Samples& samples, eval::SamplesHaveOrder order) {
  const std::optional<nlohmann::json> line = unsealed(identity, text);
  if (!line || !line->is_object()) return std::nullopt;
  const auto is_count = [&](const char* key) { return line->contains(key) && (*line)[key].is_number_unsigned(); };
  const auto is_number = [&](const char* key) { return line->contains(key) && (*line)[key].is_number(); };
  const bool has_order = order == eval::SamplesHaveOrder::yes;
  const bool is_whole = is_count("example") && is_count("targets") && is_number("log_probability") &&
                        line->contains("correct") && (*line)["correct"].is_boolean() &&
                        (!has_order || is_number(kOrder));
  if (!is_whole) return std::nullopt;
  const auto example = (*line)["example"].get<Index>();
  const auto targets = (*line)["targets"].get<Index>();
  if (example >= samples.count() || targets != samples.rows(example)) return std::nullopt;
  return ExampleFile::Numbered{example,
                               {.log_probability = (*line)["log_probability"].get<double>(),
                                .targets = targets,
                                .correct = (*line)["correct"].get<bool>(),
                                .order_log_probability = has_order ? (*line)[kOrder].get<double>() : 0}};
}

}  // namespace

ExampleFile::Found ExampleFile::read(io::Fs& fs, const io::Path& file, const std::string& identity,
                                     const eval::Samples& samples, eval::SamplesHaveOrder order) {
  Found found;
  if (!fs.exists(file) || fs.file_size(file) == 0) return found;
  const io::MappedFile mapped = fs.map(file);
  std::string_view rest = mapped.text();
  const auto next_line = [&] {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    return line;
  };
  const std::string_view first = next_line();
  std::vector<bool> is_done(static_cast<std::size_t>(samples.count()));
  while (!rest.empty()) {
    const std::optional<Numbered> line = parse(identity, next_line(), samples, order);
    if (!line) {
      ++found.changed_lines;
    } else if (!is_done[static_cast<std::size_t>(line->first)]) {
      is_done[static_cast<std::size_t>(line->first)] = true;
      found.done.push_back(*line);
    }
  }
  const FirstLine is = first_line_is(identity, first);
  found.changed_lines += is == FirstLine::of_this ? 0 : 1;
  if (!found.done.empty() || is == FirstLine::of_this || is == FirstLine::changed) return found;
  std::string expected = first_line(identity);
  expected.pop_back();
  refuse(file, str(is == FirstLine::of_another ? "is of another evaluation: must be " : "is of no evaluation: must be ",
                   expected));
}

std::string_view ExampleFile::problem(const io::Path& file) {
  std::error_code ignored;  // errors come up when the file is opened
  if (std::filesystem::is_directory(file, ignored)) return "is a folder; name a file in it";
  if (std::filesystem::exists(file, ignored) && !std::filesystem::is_regular_file(file, ignored))
    return "is a device or a pipe, which no file may replace; name another";
  return "";
}

ExampleFile::ExampleFile(io::Fs& fs, const io::Path& file, std::string identity, eval::SamplesHaveOrder order,
                         const std::vector<Numbered>& done)
    : identity_(std::move(identity)), order_(order) {
  if (const std::string_view wrong = problem(file); !wrong.empty())
    throw ConfigError(str("--per-example = ", file.string(), ": ", wrong));
  std::string text = first_line(identity_);
  for (const auto& [example, result] : done) text += line_of(identity_, order_, example, result);
  const io::Path target = target_of(file);
  io::publish_file(fs, target, text);
  file_ = fs.append(target);
}

void ExampleFile::add(Index example, const eval::ExampleResult& result) {
  file_->write(line_of(identity_, order_, example, result));
}

}  // namespace megalith::apps
