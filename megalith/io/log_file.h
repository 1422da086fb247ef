#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "megalith/io/fs.h"

namespace megalith::io {

/// A log that loses nothing to a disk that is full for a while: what a write does not bring to the file is kept and
/// goes in front of the next. Appended without sync. For one thread and one writer.
class LogFile {
 public:
  /// Goes on at the end of `path`, which is made when absent. Throws IoError.
  LogFile(Fs& fs, Path path);
  /// Throws IoError; the text is kept then.
  void write(std::string_view text);
  /// Returns when all that was written, and what was kept, is durable. Throws IoError.
  void sync();

 private:
  void open();
  void write_kept();

  Fs& fs_;
  Path path_;
  std::unique_ptr<OutputFile> file_;  // none after a failure, which is final for an OutputFile
  std::string kept_;
  std::uint64_t size_ = 0;  // of the file, as far as it is known to be right
};

}  // namespace megalith::io
