#include <cstdio>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/config/keys.h"

#include "apps/checkpoint/task_init.h"
#include "apps/program/command.h"
#include "apps/program/recipe_options.h"

namespace megalith::apps {
namespace {

struct RecipeCommand {
  RecipeOptions recipe;
  bool keys = false;
};

void run_recipe(const RecipeCommand& options) {
  if (options.keys) {
    for (const std::string_view section : config::key_sections())
      std::printf("## `[%s]`\n\n%s\n", std::string(section).c_str(), config::key_table(section).c_str());
    return;
  }
  if (options.recipe.file.empty()) throw ConfigError("recipe is not set: name a recipe, or ask for --keys");
  const config::RunPlan plan = plan_of(options.recipe);
  for (const std::string& warning : plan.warnings()) log::warning(warning);
  std::fputs(config::to_toml(plan.as_config()).c_str(), stdout);
}

}  // namespace

void add_recipe(CLI::App& program) {
  auto options = std::make_shared<RecipeCommand>();
  CLI::App* command = program.add_subcommand(
      "recipe", "Print a recipe with every default filled in, or the table of all keys (--keys), without running it");
  options->recipe.add_to(*command);
  command->get_option("recipe")->required(false);
  command->add_flag("--keys", options->keys, "Print every key: value, default, rule on --resume, meaning");
  command->callback([options] { run_recipe(*options); });
}

}  // namespace megalith::apps
