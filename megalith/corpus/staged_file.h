#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/io/fs.h"
#include "megalith/io/remove_if_there.h"

namespace megalith::corpus {

/// A file of a command's output folder that appears whole or not at all. It is written as .NAME.tmp, which replaces the
/// file of an earlier attempt. Buffers 1 MiB.
class StagedFile {
 public:
  StagedFile(io::Fs& fs, io::Path path) : fs_(fs), path_(std::move(path)) {
    staged_ = path_.parent_path() / ("." + path_.filename().string() + ".tmp");
    if (fs_.exists(staged_)) fs_.unlink(staged_);
    file_ = fs_.create(staged_);
  }
  /// Removes the file unless it was published.
  ~StagedFile() {
    file_.reset();
    if (!is_published_) io::remove_if_there(fs_, staged_);
  }
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  void write(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() >= kBuffered) flush();
  }
  /// Makes the contents durable and frees the buffer. Nothing is written afterwards.
  void finish() {
    if (!file_) return;
    flush();
    std::string().swap(buffer_);
    file_->sync();
    file_->close();
    file_.reset();
  }
  void publish() {
    finish();
    fs_.rename(staged_, path_);
    is_published_ = true;
    fs_.sync_dir(path_.parent_path());
  }
  /// Withdraws published files, as far as the file system allows.
  void withdraw() {
    if (is_published_) io::remove_if_there(fs_, path_);
  }
  /// Publishes several files of one folder, the last one after the others. Nothing has its final name before all are
  /// durable. After an error none has it.
  static void publish_all(const std::vector<StagedFile*>& files) {
    for (StagedFile* file : files) file->finish();
    try {
      for (StagedFile* file : files) file->publish();
    } catch (const Error&) {
      for (StagedFile* file : files) file->withdraw();
      throw;
    }
  }

 private:
  static constexpr std::size_t kBuffered = std::size_t{1} << 20;
  void flush() {
    if (!buffer_.empty()) file_->write(std::string_view(buffer_));
    buffer_.clear();
  }

  io::Fs& fs_;
  io::Path path_, staged_;
  std::unique_ptr<io::OutputFile> file_;
  std::string buffer_;
  bool is_published_ = false;
};

/// Writes a small file, whole or not at all. The next attempt replaces the leftovers of a killed one.
inline void publish_small(io::Fs& fs, const io::Path& path, std::string_view contents) {
  StagedFile file(fs, path);
  file.write(contents);
  file.publish();
}

}  // namespace megalith::corpus
