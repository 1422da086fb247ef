#pragma once
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "megalith/config/run_plan.h"

namespace megalith::apps {

/// Options of every command that takes a recipe: RECIPE [--set section.key=value]... [--ranks N].
struct RecipeOptions {
  std::string file;
  std::vector<std::string> settings;
  int ranks = 0;  ///< 0: the recipe's

  /// Adds them to a command. They must outlive the parsing.
  void add_to(CLI::App& command);
  /// The recipe from config::read_recipe(). Throws ConfigError for a missing file, and the errors of that function.
  config::RunConfig parse() const;
};

}  // namespace megalith::apps
