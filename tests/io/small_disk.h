#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megalith/io/fs.h"

namespace megalith::io {

/// The real file system, on a disk with a set number of free bytes.
class SmallDisk final : public Fs {
 public:
  explicit SmallDisk(std::uint64_t free) : free_(free) {}

  std::unique_ptr<OutputFile> create(const Path& path) override { return disk_->create(path); }
  std::unique_ptr<OutputFile> append(const Path& path) override { return disk_->append(path); }
  MappedFile map(const Path& path) override { return disk_->map(path); }
  void rename(const Path& from, const Path& to) override { disk_->rename(from, to); }
  void sync_dir(const Path& directory) override { disk_->sync_dir(directory); }
  void make_dir(const Path& directory) override { disk_->make_dir(directory); }
  void unlink(const Path& file) override { disk_->unlink(file); }
  void remove_dir(const Path& directory) override { disk_->remove_dir(directory); }
  std::vector<std::string> list(const Path& directory) override { return disk_->list(directory); }
  bool exists(const Path& path) override { return disk_->exists(path); }
  bool is_dir(const Path& path) override { return disk_->is_dir(path); }
  bool is_link(const Path& path) override { return disk_->is_link(path); }
  std::uint64_t file_size(const Path& path) override { return disk_->file_size(path); }
  std::uint64_t free_bytes(const Path&) override { return free_; }

 private:
  std::shared_ptr<Fs> disk_ = posix_fs();
  std::uint64_t free_;
};

}  // namespace megalith::io
