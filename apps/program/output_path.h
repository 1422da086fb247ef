#pragma once
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/problem_text.h"

namespace megalith::apps {

/// Refuses a file or folder to write if a link on the way to it leads nowhere.
inline void require_links(std::string_view setting, const io::Path& path) {
  if (const std::string link = io::broken_link(path); !link.empty())
    throw ConfigError(str(setting, " = ", path.string(), ": ", link, "; remove the link, or name another path"));
}

/// Adds an option that must be given and names such a file or folder.
inline void add_output(CLI::App& command, const std::string& name, std::string& path, const std::string& help) {
  const auto check = [name](const std::string& text) {
    require_links(name, text);
    return std::string();
  };
  command.add_option(name, path, help)->required()->check(CLI::Validator(check, ""));
}

}  // namespace megalith::apps
