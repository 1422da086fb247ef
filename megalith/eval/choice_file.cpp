#include "megalith/eval/choice_file.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text_lines.h"
#include "megalith/eval/detokenize.h"
#include "megalith/io/fs.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"
#include "megalith/tokenizer/python_text.h"

namespace megalith::eval {
namespace {

using ChoiceJson = nlohmann::json;
using tokenizer::python_strip;

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string choice_value(const ChoiceJson& json) { return io::printable(json.dump()); }

/// The members of one line. A broken rule is added to the set, with the line.
class ChoiceLine {
 public:
  ChoiceLine(std::string_view text, std::string_view file, Index number, EvalSet& set)
      : file_(file), number_(number), set_(set) {
    try {
      json_ = io::read_json(text, {.name = file, .first_line = static_cast<std::size_t>(number)});
    } catch (const InputError& error) {
      set_.refuse(error.what());
      is_good_ = false;
      return;
    }
    if (!json_.is_object()) refuse("must be a JSON object");
  }
  bool is_good() const { return is_good_; }
  Index number() const { return number_; }
  const ChoiceJson& json() const { return json_; }
  void refuse(std::string_view problem) {
    set_.refuse(str("[", file_, "] line ", number_, ": ", problem));
    is_good_ = false;
  }

  /// A member; null where there is none.
  const ChoiceJson* find(const ChoiceJson& object, const char* key) const {
    const auto found = object.find(key);
    return found == object.end() ? nullptr : &*found;
  }
  std::string text(const ChoiceJson& object, const char* key) {
    const ChoiceJson* const json = find(object, key);
    if (json == nullptr) return refuse(str(key, ": is missing; ", fix_)), std::string();
    if (json->is_string()) return json->get<std::string>();
    return refuse(str(key, " = ", choice_value(*json), ": must be a string")), std::string();
  }
  std::string text(const char* key) { return is_good_ ? text(json_, key) : std::string(); }
  /// "" where there is none.
  std::string optional_text(const char* key) { return find(json_, key) == nullptr ? std::string() : text(key); }
  std::vector<std::string> texts(const ChoiceJson& object, const char* key) {
    std::vector<std::string> all;
    const ChoiceJson* const json = find(object, key);
    if (json == nullptr) return refuse(str(key, ": is missing; ", fix_)), all;
    if (!json->is_array() || !std::ranges::all_of(*json, [](const ChoiceJson& one) { return one.is_string(); }))
      return refuse(str(key, " = ", choice_value(*json), ": must be a list of strings")), all;
    for (const ChoiceJson& one : *json) all.push_back(one.get<std::string>());
    return all;
  }
  std::vector<std::string> texts(const char* key) { return is_good_ ? texts(json_, key) : std::vector<std::string>(); }
  /// What a line must be, for members that are missing.
  void set_fix(std::string_view fix) { fix_ = fix; }

  /// The number of an answer: a whole number or, with `letters`, a letter from A; below `choices`.
  enum class Letters : std::uint8_t { no, yes };
  std::size_t answer(const char* key, std::size_t choices, Letters letters) {
    const ChoiceJson* const json = is_good_ ? find(json_, key) : nullptr;
    if (!is_good_) return 0;
    if (json == nullptr || (json->is_string() && json->get_ref<const std::string&>().empty()))
      return refuse(str(key, ": is missing: is it a test set without answers? Give one that has them")), 0;
    std::size_t number = choices;
    if (json->is_number_unsigned()) {
      number = std::min(json->get<std::size_t>(), choices);
    } else if (json->is_string()) {
      const std::string value = json->get<std::string>();
      if (letters == Letters::yes && value.size() == 1 && value[0] >= 'A' && value[0] <= 'Z')
        number = static_cast<std::size_t>(value[0] - 'A');
      else if (value.size() == 1 && value[0] >= '0' && value[0] <= '9')
        number = static_cast<std::size_t>(value[0] - '0');
    }
    if (number < choices) return number;
    refuse(str(key, " = ", choice_value(*json), ": must be the number of one of the ", choices, " choices, from 0",
               letters == Letters::yes ? ", or its letter, from A" : ""));
    return 0;
  }

 private:
  std::string_view file_;
  Index number_ = 1;
  EvalSet& set_;
  ChoiceJson json_;
  std::string_view fix_;
  bool is_good_ = true;
};

ChoiceQuestion own_question(ChoiceLine& line) {
  line.set_fix("a line is {\"question\": \"...\", \"choices\": [\"...\", \"...\"], \"answer\": 0}");
  ChoiceQuestion question{.prompt = line.text("question"), .choices = line.texts("choices")};
  question.answer = line.answer("answer", question.choices.size(), ChoiceLine::Letters::yes);
  return question;
}

ChoiceQuestion hellaswag_question(ChoiceLine& line) {
  line.set_fix("a line of HellaSwag has activity_label, ctx_a, ctx_b, endings and label");
  const std::string label = line.text("activity_label"), a = line.optional_text("ctx_a"),
                    b = line.optional_text("ctx_b");
  ChoiceQuestion question{.prompt = clean_hellaswag(str(label, ": ", a, ' ', tokenizer::python_capitalize(b))),
                          .choices = line.texts("endings")};
  for (std::string& ending : question.choices) ending = clean_hellaswag(ending);
  question.answer = line.answer("label", question.choices.size(), ChoiceLine::Letters::no);
  return question;
}

/// The form of the Allen Institute's files, where the question is an object, or that of the data set in Hugging Face's
/// library.
ChoiceQuestion arc_question(ChoiceLine& line) {
  line.set_fix("a line of ARC has question with stem and choices, and answerKey");
  ChoiceQuestion question;
  std::vector<std::string> labels;
  const ChoiceJson* const asked = line.find(line.json(), "question");
  if (asked != nullptr && asked->is_object()) {
    question.prompt = line.text(*asked, "stem");
    const ChoiceJson* const choices = line.find(*asked, "choices");
    if (choices == nullptr || !choices->is_array()) return line.refuse("question.choices: must be a list"), question;
    for (const ChoiceJson& choice : *choices) {
      if (!choice.is_object())
        return line.refuse("question.choices: must be a list of objects with text and label"), question;
      question.choices.push_back(line.text(choice, "text"));
      labels.push_back(line.text(choice, "label"));
    }
  } else {
    question.prompt = line.text("question");
    const ChoiceJson* const choices = line.find(line.json(), "choices");
    if (choices == nullptr || !choices->is_object())
      return line.refuse("choices: must be an object with lists text and label"), question;
    question.choices = line.texts(*choices, "text");
    labels = line.texts(*choices, "label");
  }
  question.prompt = str("Question: ", question.prompt, "\nAnswer:");
  const std::string key = line.text("answerKey");
  if (!line.is_good()) return question;
  if (labels.size() != question.choices.size())
    return line.refuse(
               str(question.choices.size(), " texts of choices, ", labels.size(), " labels: must be equally many")),
           question;
  question.answer = static_cast<std::size_t>(std::ranges::find(labels, key) - labels.begin());
  if (question.answer == labels.size()) {
    std::string all;
    for (const std::string& label : labels) all += str(all.empty() ? "" : ", ", label);
    line.refuse(key.empty() ? "answerKey: is empty: is it a test set without answers? Give one that has them"
                            : str("answerKey = ", io::printable(key), ": must be one of the labels ", all));
  }
  return question;
}

/// Lines of the second file, without white space.
std::vector<std::string> piqa_labels(const SourceText& source, EvalSet& set) {
  std::vector<std::string> labels;
  for_each_line(source.text, [&](std::string_view line, std::size_t number) {
    const std::string_view label = strip(line);
    if (label.empty()) return;
    if (label != "0" && label != "1")
      set.refuse(str("[", source.file, "] line ", number, " = ", io::printable(label),
                     ": must be 0 or 1, the number of the right solution"));
    labels.emplace_back(label);
  });
  return labels;
}

ChoiceQuestion piqa_question(ChoiceLine& line, const SourceText& source, const std::vector<std::string>& labels,
                             std::size_t number) {
  line.set_fix("a line of PIQA has goal, sol1 and sol2");
  ChoiceQuestion question{.prompt = str("Question: ", line.text("goal"), "\nAnswer:"),
                          .choices = {line.text("sol1"), line.text("sol2")}};
  if (!source.file.empty()) {
    question.answer = number < labels.size() && labels[number] == "1" ? 1 : 0;
  } else if (line.is_good() && line.find(line.json(), "label") == nullptr) {
    line.refuse("label: is missing: PIQA's labels lie in a second file: put NAME-labels.lst beside this one");
  } else {
    question.answer = line.answer("label", 2, ChoiceLine::Letters::no);
  }
  return question;
}

void add_mmlu_questions(const SourceText& source, EvalSet& set, std::vector<ChoiceQuestion>& questions) {
  std::string subject = mmlu_subject(source.file);
  std::ranges::replace(subject, '_', ' ');
  const std::string before = str("The following are multiple choice questions (with answers) about ", subject, ".\n\n");
  for (const CsvRow& row : csv_rows(source.text)) {
    const auto refuse = [&](std::string_view rule) {
      set.refuse(str("[", source.file, "] line ", row.line, ": ", rule));
    };
    if (row.fields.size() != 6) {
      refuse(str("has ", row.fields.size(), " columns: must have 6, as MMLU's: question, four choices, answer"));
      continue;
    }
    const std::string& letter = row.fields[5];
    if (letter.size() != 1 || letter[0] < 'A' || letter[0] > 'D') {
      refuse(str("answer = ", io::printable(letter), ": must be A, B, C or D"));
      continue;
    }
    ChoiceQuestion question{.before = before,
                            .prompt = std::string(python_strip(row.fields[0])),
                            .choices = {"A", "B", "C", "D"},
                            .answer = static_cast<std::size_t>(letter[0] - 'A'),
                            .line = row.line};
    for (std::size_t i = 0; i < 4; ++i) question.prompt += str('\n', question.choices[i], ". ", row.fields[i + 1]);
    question.prompt += "\nAnswer:";
    questions.push_back(std::move(question));
  }
}

/// A row of csv that grows character by character. Source: Python, Modules/_csv.c, parse_process_char().
class CsvReader {
 public:
  void take(char c) {
    switch (state_) {
      case State::row_start:
        if (c == '\n') break;
        row_.line = line_;
        state_ = State::field_start;
        [[fallthrough]];
      case State::field_start:
        if (c == '"') {
          state_ = State::quoted;
          break;
        }
        state_ = State::plain;
        [[fallthrough]];
      case State::plain:
        plain(c);
        break;
      case State::quoted:
        if (c == '"')
          state_ = State::quote_in_quoted;
        else
          field_ += c;
        break;
      case State::quote_in_quoted:
        if (c == '"') {
          field_ += c;
          state_ = State::quoted;
        } else {
          state_ = State::plain;
          plain(c);
        }
        break;
    }
    if (c == '\n') ++line_;
  }
  std::vector<CsvRow> finish() {
    if (state_ != State::row_start) end_row();
    return std::move(rows_);
  }

 private:
  enum class State : std::uint8_t { row_start, field_start, plain, quoted, quote_in_quoted };

  void plain(char c) {
    if (c == '\n') return end_row();
    if (c != ',') {
      field_ += c;
      return;
    }
    end_field();
    state_ = State::field_start;
  }
  void end_field() {
    row_.fields.push_back(std::move(field_));
    field_.clear();
  }
  void end_row() {
    end_field();
    rows_.push_back(std::move(row_));
    row_ = {};
    state_ = State::row_start;
  }

  State state_ = State::row_start;
  Index line_ = 1;
  std::string field_;
  CsvRow row_;
  std::vector<CsvRow> rows_;
};

}  // namespace

std::optional<ChoiceForm> choice_form_named(std::string_view name) {
  const auto found = std::ranges::find(kChoiceForms, name);
  if (found == kChoiceForms.end()) return std::nullopt;
  return static_cast<ChoiceForm>(found - kChoiceForms.begin());
}

std::string mmlu_subject(std::string_view file) {
  std::string name = io::Path(file).filename().string();
  name = name.substr(0, name.find('.'));
  for (const std::string_view split : {"_test", "_val", "_dev"})
    if (name.ends_with(split)) name.resize(name.size() - split.size());
  return name;
}

std::vector<CsvRow> csv_rows(std::string_view text) {
  CsvReader reader;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r')
      reader.take(text[i]);
    else if (i + 1 == text.size() || text[i + 1] != '\n')
      reader.take('\n');
  }
  return reader.finish();
}

std::string clean_hellaswag(std::string_view text) {
  const std::string titled = replace_all(std::string(python_strip(text)), " [title]", ". ");
  std::string clean;
  for (std::size_t at = 0; at < titled.size();) {
    if (titled[at] == '[') {  // re.sub("\\[.*?\\]", ""), whose dot matches no line end
      const std::size_t end = titled.find_first_of("]\n", at);
      if (end != std::string::npos && titled[end] == ']') {
        at = end + 1;
        continue;
      }
    }
    clean += titled[at++];
  }
  return replace_all(std::move(clean), "  ", " ");
}

std::vector<ChoiceQuestion> read_choice_questions(ChoiceForm form, const ChoiceSource& source, EvalSet& set) {
  std::vector<ChoiceQuestion> questions;
  std::string_view text = source.data.text;
  if (constexpr std::string_view kMark = "\xEF\xBB\xBF"; text.starts_with(kMark)) text.remove_prefix(kMark.size());
  if (form == ChoiceForm::mmlu) {
    add_mmlu_questions({text, source.data.file}, set, questions);
    return questions;
  }
  const std::vector<std::string> labels = piqa_labels(source.labels, set);
  std::size_t lines = 0;
  for_each_line(text, [&](std::string_view written, std::size_t number) {
    if (strip(written).empty()) return;
    ChoiceLine line(written, source.data.file, static_cast<Index>(number), set);
    const std::size_t at = lines++;
    if (!line.is_good()) return;
    ChoiceQuestion question = form == ChoiceForm::choice      ? own_question(line)
                              : form == ChoiceForm::hellaswag ? hellaswag_question(line)
                              : form == ChoiceForm::arc       ? arc_question(line)
                                                              : piqa_question(line, source.labels, labels, at);
    if (line.is_good() && question.choices.size() < 2)
      line.refuse(str("has ", question.choices.size(), " choices: must have 2 or more"));
    if (!line.is_good()) return;
    question.line = line.number();
    questions.push_back(std::move(question));
  });
  if (!source.labels.file.empty() && labels.size() != lines)
    set.refuse(str("[", source.labels.file, "] has ", labels.size(), " labels, and ", source.data.file, " has ", lines,
                   " questions: must be equally many; are they of the same split?"));
  return questions;
}

}  // namespace megalith::eval
