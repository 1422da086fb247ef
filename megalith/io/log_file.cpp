#include "megalith/io/log_file.h"

#include <utility>

#include "megalith/base/error.h"

namespace megalith::io {

LogFile::LogFile(Fs& fs, Path path) : fs_(fs), path_(std::move(path)) {
  size_ = fs_.exists(path_) ? fs_.file_size(path_) : 0;
  file_ = fs_.append(path_);
}

void LogFile::open() {
  file_ = fs_.append(path_);
  const std::uint64_t size = fs_.file_size(path_);
  // The write that failed may have brought a part of what it was given.
  if (size > size_ && size - size_ <= kept_.size()) kept_.erase(0, size - size_);
  size_ = size;
}

void LogFile::write_kept() {
  if (!file_) open();
  try {
    if (!kept_.empty()) file_->write(kept_);
  } catch (const IoError&) {
    file_.reset();
    throw;
  }
  size_ += kept_.size();
  kept_.clear();
}

void LogFile::write(std::string_view text) {
  kept_ += text;
  write_kept();
}

void LogFile::sync() {
  write_kept();
  try {
    file_->sync();
  } catch (const IoError&) {
    file_.reset();
    throw;
  }
}

}  // namespace megalith::io
