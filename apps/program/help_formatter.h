#pragma once
#include <string>

#include <CLI/CLI.hpp>

namespace megalith::apps {

/// Help of at most 80 columns. A longer line continues below its last column ("  --name   what it is" below "what"),
/// with the lines of its paragraph. An example ("  megalith ...") continues after a backslash.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  /// Without the "{}" of a flag that takes a value.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  /// Without REQUIRED where an option may be given by position or by name: neither form is.
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_usage(const CLI::Option* option) const override;
};

}  // namespace megalith::apps
