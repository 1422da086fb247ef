#include "megalith/io/fs.h"

#include "megalith/base/error.h"
#include "megalith/io/save_protocol.h"

namespace megalith::io {

void publish_file(Fs& fs, const Path& path, std::string_view contents) {
  Path staged = path;
  staged += temporary_suffix();
  try {
    const auto file = fs.create(staged);
    file->write(contents);
    file->sync();
    file->close();
    fs.rename(staged, path);
  } catch (const IoError&) {
    try {
      if (fs.exists(staged)) fs.unlink(staged);
    } catch (const IoError&) {  // the first error is the one to report
    }
    throw;
  }
  fs.sync_dir(path.parent_path());
}

}  // namespace megalith::io
