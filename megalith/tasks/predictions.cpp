#include "megalith/tasks/predictions.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/json_reader.h"
#include "megalith/tasks/task_file.h"

namespace megalith::tasks {
namespace {

/// Reads one object of strings or of numbers, in its order.
class FlatObject final : public io::JsonVisitor {
 public:
  enum class Values : std::uint8_t { texts, numbers };
  FlatObject(std::string_view file, Values values, io::FileProblems& problems)
      : file_(file), values_(values), problems_(problems) {}

  void start_object() override { enter("an object"); }
  void end_object() override { --depth_; }
  void start_array() override { enter("an array"); }
  void end_array() override { --depth_; }
  void key(std::string& name) override {
    if (depth_ == 1) key_ = std::move(name);
  }
  void text(std::string& value) override {
    if (values_ == Values::texts && depth_ == 1)
      texts.emplace(key_, std::move(value));
    else
      refuse(shown(value));
  }
  void count(std::uint64_t value) override { number(std::to_string(value)); }
  void other(std::string_view value) override { number(value); }

  TextPredictions texts;
  NoAnswerScores numbers;

 private:
  void enter(std::string_view what) {
    if (depth_ == 0 && what != "an object") refuse(what);
    if (depth_ == 1) refuse(what);
    ++depth_;
  }
  void number(std::string_view value) {
    double read = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), read);
    const bool is_number = error == std::errc() && end == value.data() + value.size() && std::isfinite(read);
    if (values_ == Values::numbers && depth_ == 1 && is_number)
      numbers.emplace_back(key_, read);
    else
      refuse(value);
  }
  void refuse(std::string_view value) {
    if (depth_ > 1) return;  // what holds it is refused
    if (depth_ == 0) {
      problems_.add(str(at_line(file_, static_cast<Index>(place.line)), "is ", value, ": must be ",
                        values_ == Values::texts ? "an object {\"ID\": \"TEXT\"}" : "an object {\"ID\": NUMBER}"));
      return;
    }
    problems_.add(str(at_line(file_, static_cast<Index>(place.line)), shown(key_), " = ", value, ": must be ",
                      values_ == Values::texts ? "a string, \"\" for no answer" : "a finite number"));
  }

  std::string_view file_;
  Values values_;
  io::FileProblems& problems_;
  int depth_ = 0;
  std::string key_;
};

FlatObject read_flat(io::Fs& fs, const io::Path& file, FlatObject::Values values, std::string_view what) {
  const std::string text = read_whole_file(fs, file, what);
  const std::string name = file.string();
  io::FileProblems problems;
  FlatObject object(name, values, problems);
  io::visit_json(text, {.name = name}, object);
  problems.throw_if_any(name);
  return object;
}

std::string listed(std::span<const std::string_view> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

}  // namespace

TextPredictions read_text_predictions(io::Fs& fs, const io::Path& file) {
  return std::move(read_flat(fs, file, FlatObject::Values::texts, "--score").texts);
}

NoAnswerScores read_no_answer_scores(io::Fs& fs, const io::Path& file) {
  return std::move(read_flat(fs, file, FlatObject::Values::numbers, "--na-probs").numbers);
}

ClassPredictions read_class_predictions(io::Fs& fs, const io::Path& file, Task task, std::size_t max_line) {
  const std::string name = file.string();
  const std::span<const std::string_view> classes = classes_of(task);
  ClassPredictions predictions;
  io::FileProblems problems;
  bool is_first = true;
  for_each_line(fs, file, "--score", max_line, [&](const FileLine& line) {
    const std::vector<std::string_view> parts = split_tabs(line.text);
    const bool may_be_header = std::exchange(is_first, false);
    if (may_be_header && parts.size() == 2 && parts[0] == "index" && parts[1] == "prediction") return;
    const std::string at = at_line(name, line.number);
    if (!is_utf8(line.text)) {
      problems.add(str(at, "byte ", valid_utf8_prefix(line.text) + 1, " of the line: must be UTF-8"));
    } else if (parts.size() != 2) {
      problems.add(str(at, "has ", parts.size(), " columns: must be index, a tab and prediction"));
    } else if (const auto found = std::ranges::find(classes, parts[1]); found == classes.end()) {
      problems.add(str(at, "prediction = ", shown(parts[1]), ": must be ", listed(classes)));
    } else if (!predictions.emplace(parts[0], static_cast<int>(found - classes.begin())).second) {
      problems.add(str(at, "index = ", shown(parts[0]), ": must be unique; an earlier line has it, too"));
    }
  });
  problems.throw_if_any(name);
  return predictions;
}

std::string lacking_ids(std::string_view file, std::string_view data_file, std::span<const std::string> lacking,
                        std::size_t all, std::string_view what) {
  constexpr std::size_t kFirstIds = 3;
  std::string ids;
  for (std::size_t i = 0; i < std::min(lacking.size(), kFirstIds); ++i)
    ids += str(i == 0 ? "" : ", ", shown(lacking[i]));
  return str("[", file, "] ", what, " of ", lacking.size(), " of ", all, " ids = missing (", ids,
             lacking.size() > kFirstIds ? ", ..." : "", "): must be there for every id of ", data_file);
}

}  // namespace megalith::tasks
