#pragma once
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "megalith/config/run_plan.h"

namespace megalith::apps {

/// What every command that takes a recipe asks for: RECIPE [--set section.key=value]... [--ranks N].
struct RecipeOptions {
  std::string file;
  std::vector<std::string> settings;
  int ranks = 0;  ///< 0: the recipe's

  /// Adds them to a command. They must outlive the parsing.
  void add_to(CLI::App& command);
  /// The recipe as config::read_recipe() has it. Throws ConfigError: no such file, or what that throws.
  config::RunConfig parse() const;
  /// The same, resolved. Throws as config::resolve() does, which reads the tokenizer's files.
  config::RunPlan plan() const;
};

}  // namespace megalith::apps
