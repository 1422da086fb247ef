#include "apps/program/recipe_options.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/fs.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/retrying_fs.h"

#include "apps/program/command.h"

namespace megalith::apps {

void RecipeOptions::add_to(CLI::App& command) {
  command.add_option("recipe", file, "Recipe (TOML)")->required();
  command.add_option("--set", settings, "Override a key: section.key=value (may be repeated)")
      ->take_all()
      ->allow_extra_args(false);
  command.add_option("--ranks", ranks, "Ranks (default: the recipe's)")->check(at_least(1));
}

config::RunConfig RecipeOptions::parse() const {
  const std::shared_ptr<io::Fs> fs = io::retrying_fs(io::posix_fs());
  if (!fs->exists(file)) throw ConfigError(str("recipe = ", file, ": no such file", io::looked_for_in(file)));
  if (fs->is_dir(file)) throw ConfigError(str("recipe = ", file, ": is a folder; name a recipe in it"));
  const io::MappedFile text = fs->map(file);
  return config::read_recipe(text.text(), file, settings);
}

}  // namespace megalith::apps
