#pragma once
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace megalith::apps {

/// CLI11 reads a value "[a,b]" of a repeated option as a list and removes the brackets. To keep such values, they are
/// marked in `arguments`, and the options of the command in `arguments` remove the mark.
inline void keep_brackets(CLI::App& program, std::vector<std::string>& arguments) {
  constexpr char kMark = '\x1f';
  const auto mark = [](std::string& argument, std::size_t begin) {
    if (begin < argument.size() && argument[begin] == '[' && argument.back() == ']') argument.insert(begin, 1, kMark);
  };
  CLI::App* command = &program;
  bool in_list = false;
  for (std::string& argument : arguments) {
    if (argument.starts_with('-')) {
      const std::size_t end = argument.find('=');
      CLI::Option* const option = command->get_option_no_throw(argument.substr(0, end));
      in_list = option != nullptr && option->get_allow_extra_args();
      if (!in_list) continue;
      option->transform([](const std::string& value) { return value.find(kMark) == 0 ? value.substr(1) : value; });
      if (end != std::string::npos) mark(argument, end + 1);
    } else if (in_list) {
      mark(argument, 0);
    } else {
      const auto is_it = [&](const CLI::App* inner) { return inner->get_name() == argument; };
      if (const auto inner = command->get_subcommands(is_it); !inner.empty()) command = inner.front();
    }
  }
}

}  // namespace megalith::apps
