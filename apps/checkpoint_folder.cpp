#include "apps/checkpoint_folder.h"

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/io/save_protocol.h"

namespace megalith::apps {

io::Path checkpoint_folder(io::Fs& fs, const io::Path& given, checkpoint::OnCorrupt on_corrupt) {
  if (!fs.is_dir(given)) throw InputError(str("[", given.string(), "] there is no such folder"));
  const bool named = io::parse_step_folder(given.filename().string()).has_value();
  if (named || fs.exists(given / io::kManifestName)) return given;
  const io::Path root = fs.is_dir(given / "checkpoints") ? given / "checkpoints" : given;
  const auto folders = io::published(fs, root);
  if (folders.empty()) {
    throw CheckpointError(CheckpointError::Kind::none_valid,
                          str("[", given.string(), "] holds no MANIFEST and no step_* folder: it is no checkpoint"));
  }
  if (on_corrupt == checkpoint::OnCorrupt::fail) return root / folders.front().name();
  const checkpoint::Choice choice = checkpoint::find_newest_valid(fs, root, on_corrupt);
  for (const checkpoint::Rejected& one : choice.rejected) {
    log::warning(str(one.folder.name(), " cannot be used: ", one.reason));
  }
  return root / choice.folder.name();
}

}  // namespace megalith::apps
