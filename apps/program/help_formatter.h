#pragma once
#include <string>

#include <CLI/CLI.hpp>

namespace megalith::apps {

/// Help of at most 80 columns. A line that is longer goes on below its last column ("  --name   what it is" below
/// "what"), with the lines of its paragraph; that of an example ("  megalith ...") goes on after a backslash.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  /// Without the "{}" of an option that is a flag and takes a value.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
};

}  // namespace megalith::apps
