#include "megalith/io/fs.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/save_protocol.h"

namespace megalith::io {

void write_file(Fs& fs, const Path& path, std::string_view contents) {
  const auto file = fs.create(path);
  file->write(contents);
  file->sync();
  file->close();
}

void publish_file(Fs& fs, const Path& path, std::string_view contents) {
  const Path folder = path.parent_path();
  Path staged = path;
  staged += temporary_suffix();
  try {
    write_file(fs, staged, contents);
    fs.rename(staged, path);
  } catch (const IoError&) {
    bool has_folder = true;
    try {
      if (fs.exists(staged)) fs.unlink(staged);
      has_folder = folder.empty() || fs.is_dir(folder);
    } catch (const IoError&) {  // the first error is the one to report
    }
    if (!has_folder)
      throw IoError(str("cannot create ", path.string(), ": there is no folder ", folder.string(),
                        looked_for_in(folder), "; make it first"));
    throw;
  }
  fs.sync_dir(folder);
}

}  // namespace megalith::io
