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
    std::vector<std::string> others;  // members of other names
    io::visit_json_object(line.text, file_, static_cast<std::size_t>(line.number), [&](io::JsonMember& member) {
      bool is_known = false;
      for (std::size_t field = 0; field < kNumFields; ++field) {
        const auto found = std::ranges::find(names_[field], member.key);
        if (found == names_[field].end()) continue;
        is_known = true;
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
      if (!is_known) others.emplace_back(member.key);
    });
    const bool is_read = is_whole;
    for (std::size_t field = kFirst; field < kNumFields; ++field) {
      if (row.values[field] || !is_read || (field == kLabel && labels_ == Labels::optional)) continue;
      is_whole = false;
      problems_.add(str(at_line(file_, line.number), missing_text(field, row, others)));
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
    if (problems_.empty() && set_.examples.empty()) {
      const Index left_out = set_.left_out, undecided = set_.undecided;
      std::string why;
      if (undecided > 0)
        why = left_out == undecided
                  ? str(": no row has a label, all ", undecided, " have \"-\"")
                  : str(": no row has a label, ", undecided, " have \"-\" and ", left_out - undecided, " are broken");
      else if (left_out > 0)
        why = str(": all ", left_out, " rows are broken");
      problems_.add(str("[", file_, "] has no example", why, "; is it the right file?"));
    }
    problems_.throw_if_any(file_);
    return std::move(set_);
  }

 private:
  /// "sentence2: is missing (as "sentense2"?); a line is ...", by the names of the sentence that is there.
  std::string missing_text(std::size_t field, const Row& row, const std::vector<std::string>& others) const {
    std::size_t form = 0;
    bool has_form = false;
    for (const std::size_t sentence : {kFirst, kSecond}) {
      if (row.names[sentence].empty()) continue;
      form =
          static_cast<std::size_t>(std::ranges::find(names_[sentence], row.names[sentence]) - names_[sentence].begin());
      has_form = true;
    }
    const std::vector<std::string_view> keys(others.begin(), others.end());
    std::string_view near;
    const auto is_near = [&](std::string_view name) { return !(near = nearest(name, keys)).empty(); };
    std::string_view name = field == kLabel ? names_[kLabel].back() : names_[field][form];
    if (!is_near(name) && (field == kLabel || !has_form)) {
      const auto found = std::ranges::find_if(names_[field], is_near);
      if (found != names_[field].end()) name = *found;
      if (field != kLabel && found != names_[field].end())
        form = static_cast<std::size_t>(found - names_[field].begin());
    }
    return str(name, ": is missing", near.empty() ? "" : str(" (as ", shown(near), "?)"), "; a line is {\"",
               names_[kFirst][form], "\": ..., \"", names_[kSecond][form], "\": ..., \"",
               field == kLabel ? name : names_[kLabel].back(), "\": ...}");
  }

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
        ++set_.undecided;
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

std::string PairSet::left_out_text() const {
  if (left_out == 0) return {};
  const Index broken = left_out - undecided;
  return str(left_out, " of ", std::ssize(examples) + left_out, left_out == 1 ? " rows is" : " rows are",
             " left out: ", broken > 0 ? str(broken, " with another number of columns than the first line") : "",
             broken > 0 && undecided > 0 ? ", " : "",
             undecided > 0 ? str(undecided, " with the label \"-\", on which annotators did not agree") : "");
}

PairSet read_pairs(io::Fs& fs, const io::Path& file, Task task, Labels labels, std::size_t max_line,
                   std::string_view setting) {
  if (task != Task::mnli && task != Task::qqp) throw InternalError("[read_pairs] task: must be mnli or qqp");
  PairReader reader(file.string(), task, labels);
  const bool is_json = data::names_json_lines(file);
  for_each_line(fs, file, setting, max_line, [&](const FileLine& line) {
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
