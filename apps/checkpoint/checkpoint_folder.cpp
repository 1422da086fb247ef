#include "apps/checkpoint/checkpoint_folder.h"

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/config/run_config.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/save_protocol.h"

namespace megalith::apps {
namespace {

/// The folder of a run's steps, or `given` itself if it is no OUT of a run.
io::Path folder_of_steps(io::Fs& fs, const io::Path& given) {
  if (fs.is_dir(given / "checkpoints")) return given / "checkpoints";
  const io::Path recipe = given / "recipe.toml";
  if (!fs.exists(recipe)) return given;
  const io::MappedFile text = fs.map(recipe);
  return config::parse_recipe(text.text(), recipe.string()).checkpoint.dir.value_or(given.string());
}

void require_folder(io::Fs& fs, const io::Path& given) {
  if (!fs.is_dir(given) && fs.exists(given))
    throw InputError(str("[", given.string(), "] is a file: must be a folder, of a checkpoint or with checkpoints"));
  if (!fs.is_dir(given))
    throw InputError(str("[", given.string(), "] there is no such folder", io::looked_for_in(given)));
}

}  // namespace

io::Path steps_folder(io::Fs& fs, const io::Path& given) {
  require_folder(fs, given);
  const io::Path root = folder_of_steps(fs, given);
  if (!io::published(fs, root).empty()) return root;
  throw CheckpointError(CheckpointError::Kind::none_valid,
                        str("[", given.string(), "] holds no MANIFEST and no step_* folder: it is no checkpoint"));
}

bool names_one_checkpoint(io::Fs& fs, const io::Path& given) {
  return io::parse_step_folder(given.filename().string()).has_value() || fs.exists(given / io::kManifestName);
}

io::Path checkpoint_folder(io::Fs& fs, const io::Path& given, checkpoint::OnCorrupt on_corrupt,
                           std::span<const checkpoint::Rejected> unusable) {
  require_folder(fs, given);
  if (names_one_checkpoint(fs, given)) return given;
  const io::Path root = steps_folder(fs, given);
  if (on_corrupt == checkpoint::OnCorrupt::fail) return root / io::published(fs, root).front().name();
  const checkpoint::Choice choice = checkpoint::find_newest_valid(fs, root, on_corrupt, unusable);
  for (const checkpoint::Rejected& one : choice.rejected) {
    log::warning(str(one.folder.name(), " cannot be used: ", one.reason));
  }
  return root / choice.folder.name();
}

}  // namespace megalith::apps
