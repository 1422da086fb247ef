#include "megalith/tasks/glue.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/utf8.h"
#include "megalith/data/corpus_reader.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/json_object.h"
#include "megalith/tasks/task_file.h"

namespace megalith::tasks {
namespace {

enum Field : std::uint8_t { kId, kFirst, kSecond, kLabel };
constexpr int kNumFields = 4;
using Names = std::vector<std::string_view>;

/// The names of each field; the first is that of GLUE's .tsv.
std::array<Names, kNumFields> field_names(Task task) {
  if (task == Task::mnli)
    return {{{"index", "id", "idx"}, {"sentence1", "premise"}, {"sentence2", "hypothesis"}, {"gold_label", "label"}}};
  return {{{"id", "index", "idx"}, {"question1", "sentence1"}, {"question2", "sentence2"}, {"is_duplicate", "label"}}};
}

/// The classes as an error lists them.
std::string classes_text(Task task) { return task == Task::mnli ? "entailment, neutral or contradiction" : "0 or 1"; }

/// One row, whatever its file: what each field has, and by which name.
struct Row {
  std::array<std::optional<std::string>, kNumFields> values;
  std::array<std::string_view, kNumFields> names;
  Index line = 1;
};

class PairReader {
 public:
  PairReader(std::string file, Task task, Labels labels)
      : file_(std::move(file)), task_(task), labels_(labels), names_(field_names(task)) {}

  void add_tsv(const FileLine& line) {
    const std::vector<std::string_view> parts = split_tabs(line.text);
    if (columns_ == 0) return read_header(line, parts);
    if (!problems_.empty() && !has_columns_) return;  // no row can be read
    if (parts.size() != columns_) {
      leave_out();
      return;
    }
    if (!require_utf8(line)) return;
    Row row{.values = {}, .names = {}, .line = line.number};
    for (int field = 0; field < kNumFields; ++field) {
      const std::size_t column = column_[static_cast<std::size_t>(field)];
      if (column == columns_) continue;
      row.values[static_cast<std::size_t>(field)] = parts[column];
      row.names[static_cast<std::size_t>(field)] = header_names_[static_cast<std::size_t>(field)];
    }
    add(row);
  }

  void add_json(const FileLine& line) {
    Row row{.values = {}, .names = {}, .line = line.number};
    bool is_whole = true;
    io::visit_json_object(line.text, file_, static_cast<std::size_t>(line.number), [&](io::JsonMember& member) {
      for (std::size_t field = 0; field < kNumFields; ++field) {
        const auto found = std::ranges::find(names_[field], member.key);
        if (found == names_[field].end()) continue;
        const bool takes_number = field == kId || (field == kLabel && task_ == Task::qqp);
        if (member.kind == io::JsonMember::Kind::text) {
          row.values[field] = std::move(*member.text);
        } else if (takes_number && member.kind == io::JsonMember::Kind::count) {
          row.values[field] = std::to_string(member.count);
        } else {
          is_whole = false;
          problems_.add(str(at_line(file_, line.number), member.key, ": must be a string",
                            takes_number ? " or a whole number" : "",
                            field == kLabel && !takes_number ? ", a class by its name" : ""));
        }
        row.names[field] = *found;
      }
    });
    for (std::size_t field = kFirst; field < kNumFields; ++field) {
      if (row.values[field] || !is_whole || (field == kLabel && labels_ == Labels::optional)) continue;
      is_whole = false;
      problems_.add(str(at_line(file_, line.number), names_[field].back(), ": is missing; a line is {\"",
                        names_[kFirst].front(), "\": ..., \"", names_[kSecond].front(), "\": ..., \"",
                        names_[kLabel].back(), "\": ...}"));
    }
    if (is_whole)
      add(row);
    else
      ++number_;
  }

  /// A line that is no JSON object.
  void refuse(const InputError& error) {
    problems_.add(error.what());
    ++number_;
  }

  PairSet finish() {
    if (problems_.empty() && set_.examples.empty())
      problems_.add(str("[", file_, "] has no example",
                        set_.left_out > 0 ? str(": all ", set_.left_out, " rows are broken") : "",
                        "; is it the right file?"));
    problems_.throw_if_any(file_);
    return std::move(set_);
  }

 private:
  void leave_out() {
    ++set_.left_out;
    ++number_;
  }

  bool require_utf8(const FileLine& line) {
    if (is_utf8(line.text)) return true;
    problems_.add(str(at_line(file_, line.number), "byte ", valid_utf8_prefix(line.text) + 1,
                      " of the line: must be UTF-8; convert the file, as by iconv"));
    ++number_;
    return false;
  }

  void read_header(const FileLine& line, const std::vector<std::string_view>& parts) {
    columns_ = parts.size();
    std::string missing;
    for (std::size_t field = 0; field < kNumFields; ++field) {
      column_[field] = columns_;
      for (const std::string_view name : names_[field]) {
        const auto found = std::ranges::find(parts, name);
        if (found == parts.end()) continue;
        column_[field] = static_cast<std::size_t>(found - parts.begin());
        header_names_[field] = name;
        break;
      }
      if (column_[field] < columns_ || field == kId || (field == kLabel && labels_ == Labels::optional)) continue;
      const std::string_view near = nearest(names_[field].front(), parts);
      missing +=
          str(missing.empty() ? "" : ", ", names_[field].front(), near.empty() ? "" : str(" (as ", shown(near), "?)"));
    }
    has_columns_ = missing.empty();
    if (!has_columns_)
      problems_.add(str(at_line(file_, line.number), "columns = ", columns_, ": must name ", missing,
                        ", as the first line of GLUE's ", title_of(task_), " does; JSON lines must end with .jsonl"));
  }

  void add(Row& row) {
    const Index number = number_++;
    PairExample example{.id = row.values[kId] ? std::move(*row.values[kId]) : std::to_string(number),
                        .first = std::move(*row.values[kFirst]),
                        .second = std::move(*row.values[kSecond])};
    if (row.values[kLabel]) {
      const std::string& label = *row.values[kLabel];
      if (task_ == Task::mnli && label == "-") {
        ++set_.left_out;
        return;
      }
      const std::span<const std::string_view> classes = classes_of(task_);
      const auto found = std::ranges::find(classes, label);
      if (found == classes.end()) {
        problems_.add(
            str(at_line(file_, row.line), row.names[kLabel], " = ", shown(label), ": must be ", classes_text(task_)));
        return;
      }
      example.label = static_cast<int>(found - classes.begin());
    }
    if (const auto [first, is_first] = lines_.emplace(example.id, row.line); !is_first) {
      problems_.add(str(at_line(file_, row.line), row.names[kId].empty() ? "row" : row.names[kId], " = ",
                        shown(example.id), ": must be unique; line ", first->second, " has it, too"));
      return;
    }
    set_.examples.push_back(std::move(example));
  }

  std::string file_;
  Task task_;
  Labels labels_;
  std::array<Names, kNumFields> names_;
  PairSet set_;
  io::FileProblems problems_;
  std::unordered_map<std::string, Index> lines_;  // of the examples, by id
  Index number_ = 0;                              // of the next row
  // Of a .tsv: the number of its columns (0 before the first line), the column of each field (columns_: none), its
  // name.
  std::size_t columns_ = 0;
  std::array<std::size_t, kNumFields> column_{};
  std::array<std::string_view, kNumFields> header_names_;
  bool has_columns_ = false;
};

}  // namespace

PairSet read_pairs(io::Fs& fs, const io::Path& file, Task task, Labels labels, std::size_t max_line) {
  if (task != Task::mnli && task != Task::qqp) throw InternalError("[read_pairs] task: must be mnli or qqp");
  PairReader reader(file.string(), task, labels);
  const bool is_json = data::names_json_lines(file);
  for_each_line(fs, file, "--data", max_line, [&](const FileLine& line) {
    if (!is_json) return reader.add_tsv(line);
    try {
      reader.add_json(line);
    } catch (const InputError& error) {
      reader.refuse(error);
    }
  });
  return reader.finish();
}

}  // namespace megalith::tasks
