#include "megalith/io/fs.h"

#include "megalith/base/error.h"
#include "megalith/io/save_protocol.h"

namespace megalith::io {

void write_file(Fs& fs, const Path& path, std::string_view contents) {
  const auto file = fs.create(path);
  file->write(contents);
  file->sync();
  file->close();
}

void publish_file(Fs& fs, const Path& path, std::string_view contents) {
  Path staged = path;
  staged += temporary_suffix();
  try {
    write_file(fs, staged, contents);
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
