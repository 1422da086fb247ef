#include "apps/program/help_formatter.h"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace megalith::apps {
namespace {

constexpr std::size_t kWidth = 80, kMaxIndent = 44;

std::size_t leading_spaces(std::string_view line) { return std::min(line.find_first_not_of(' '), line.size()); }

/// Where the last column of a line begins: after the first gap of two spaces, else at its first letter. There is only
/// one space if the name of an option fills its column.
std::size_t last_column(std::string_view line) {
  constexpr std::size_t kOfOptions = 30;
  const std::size_t begin = leading_spaces(line), gap = line.find("  ", begin);
  const bool fills = line.substr(begin).starts_with('-') && line.size() > kOfOptions && line[kOfOptions - 1] == ' ' &&
                     line[kOfOptions] != ' ';
  if (fills) return kOfOptions;
  if (gap == std::string_view::npos) return begin;
  const std::size_t column = line.find_first_not_of(' ', gap);
  return column <= kMaxIndent ? column : begin;
}

bool has_two_forms(const CLI::Option& option) { return option.get_positional() && option.nonpositional(); }

bool is_example(std::string_view line) { return line.starts_with("  megalith "); }

/// Where a text is cut: at the last space of its first `width` letters, else after their last comma, else after them.
std::size_t cut_of(std::string_view text, std::size_t min_place, std::size_t width) {
  const std::size_t space = text.rfind(' ', width), comma = text.rfind(',', width - 1);
  if (space != std::string_view::npos && space > min_place) return space;
  return comma != std::string_view::npos && comma > min_place ? comma + 1 : width;
}

/// One paragraph, whose first line keeps its place.
std::string wrapped(std::string line, std::size_t indent, std::string_view end_of_line) {
  std::string text;
  std::size_t first = last_column(line);
  const std::size_t width = kWidth - end_of_line.size();
  while (line.size() > (line.size() <= kWidth ? kWidth : width)) {
    const std::size_t cut = cut_of(line, std::max(first, leading_spaces(line)), width);
    text.append(line, 0, cut).append(end_of_line).append("\n");
    line.erase(0, std::min(line.find_first_not_of(' ', cut), line.size()));
    line.insert(0, indent, ' ');
    first = indent;
  }
  return text + line + '\n';
}

std::string wrapped_lines(const std::string& help) {
  std::istringstream lines(help);
  std::string text, line, next;
  bool has_next = static_cast<bool>(std::getline(lines, next));
  while (has_next) {
    line = next;
    has_next = static_cast<bool>(std::getline(lines, next));
    if (line.size() <= kWidth) {
      text += line + '\n';
      continue;
    }
    if (is_example(line)) {
      text += wrapped(line, leading_spaces(line) + 4, " \\");
      continue;
    }
    const std::size_t indent = last_column(line);
    while (has_next && indent > 0 && leading_spaces(next) == indent && last_column(next) == indent && !next.empty()) {
      line += ' ' + next.substr(indent);
      has_next = static_cast<bool>(std::getline(lines, next));
    }
    text += wrapped(line, indent, "");
  }
  return text;
}

}  // namespace

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  return wrapped_lines(CLI::Formatter::make_help(app, std::move(name), mode));
}

std::string HelpFormatter::make_option_name(const CLI::Option* option, bool is_positional) const {
  std::string name = CLI::Formatter::make_option_name(option, is_positional);
  if (const std::size_t braces = name.find("{}"); braces != std::string::npos) name.erase(braces, 2);
  return name;
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string text = CLI::Formatter::make_option_opts(option);
  constexpr std::string_view kRequired = " REQUIRED";
  if (const std::size_t place = text.find(kRequired); has_two_forms(*option) && place != std::string::npos)
    text.erase(place, kRequired.size());
  return text;
}

std::string HelpFormatter::make_option_usage(const CLI::Option* option) const {
  const std::string text = CLI::Formatter::make_option_usage(option);
  return has_two_forms(*option) && option->get_required() ? "[" + text + "]" : text;
}

}  // namespace megalith::apps
