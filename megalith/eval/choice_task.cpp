#include "megalith/eval/choice_task.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "megalith/base/str.h"
#include "megalith/eval/detokenize.h"
#include "megalith/io/fs.h"

namespace megalith::eval {
namespace {

constexpr std::string_view kOptionMark = " --";

/// Sets one option, "shots 5" or "shots=5". Returns the rule that it breaks, or nothing.
std::string set_option(std::string_view text, std::set<std::string, std::less<>>& given, ChoiceOptions& options) {
  const std::size_t end = std::min(text.find_first_of(" ="), text.size());
  const std::string name(text.substr(0, end)), value(strip(text.substr(std::min(end + 1, text.size()))));
  const bool is_shots = name == "shots";
  std::string* const file = name == "shots-data" ? &options.shots_data : name == "labels" ? &options.labels : nullptr;
  if (!is_shots && file == nullptr)
    return str("--", name, ": is no option of a task: must be --shots N, --shots-data FILE or --labels FILE");
  if (!given.insert(name).second) return str("--", name, ": must be given once");
  if (value.empty()) return str("--", name, ": needs a value after it");
  if (file != nullptr) {
    *file = value;
    return {};
  }
  const auto [rest, error] = std::from_chars(value.data(), value.data() + value.size(), options.shots);
  const bool is_number = error == std::errc() && rest == value.data() + value.size();
  if (is_number && options.shots >= 0 && options.shots <= kMaxShots) return {};
  options.shots = 0;
  return str("--shots ", value, ": must be a whole number from 0 to ", kMaxShots);
}

}  // namespace

void check(const ChoiceOptions& options, std::string_view data, Problems& out) {
  out.require(options.labels.empty() || options.form == ChoiceForm::piqa, "--labels", options.labels,
              "is for questions of piqa; leave it away");
  out.require(options.shots == 0 || !options.shots_data.empty(), "--shots", options.shots,
              "needs --shots-data FILE with the examples");
  out.require(options.shots > 0 || options.shots_data.empty(), "--shots-data", options.shots_data,
              "needs --shots N, the number of examples");
  out.require(options.shots_data.empty() || options.shots_data != data, "--shots-data", options.shots_data,
              "is the file of the questions: must be another file, or a question would be its own example");
}

std::string ChoiceTaskName::series() const {
  const std::string shots = options.shots > 0 ? str('/', options.shots, "-shot") : "";
  return str(kChoiceForms[static_cast<std::size_t>(options.form)], '/', io::Path(file).stem().string(), shots);
}

std::optional<ChoiceTaskName> choice_task_named(std::string_view key, std::string_view text, Problems& out) {
  const std::string_view named = text.substr(0, text.find(kOptionMark));
  const std::size_t colon = named.find(':');
  const auto form = choice_form_named(named.substr(0, colon));
  ChoiceTaskName task;
  if (colon != std::string_view::npos) task.file = strip(named.substr(colon + 1));
  Problems broken;
  const auto refuse = [&](std::string_view rule) { broken.add(key, text, rule); };
  if (!form || task.file.empty())
    refuse("must be FORM:FILE, and FORM one of choice, hellaswag, arc, piqa and mmlu");
  else
    task.options.form = *form;
  std::set<std::string, std::less<>> given;
  for (std::string_view rest = text.substr(named.size()); !rest.empty();) {
    rest.remove_prefix(kOptionMark.size());
    const std::string_view option = rest.substr(0, rest.find(kOptionMark));
    rest.remove_prefix(option.size());
    if (const std::string rule = set_option(option, given, task.options); !rule.empty()) refuse(rule);
  }
  if (broken.empty()) {
    Problems rules;
    check(task.options, task.file, rules);
    for (const std::string& rule : rules.lines()) refuse(rule);
  }
  for (const std::string& line : broken.lines()) out.add_line(line);
  if (!broken.empty()) return std::nullopt;
  return task;
}

}  // namespace megalith::eval
