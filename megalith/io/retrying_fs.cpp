#include "megalith/io/retrying_fs.h"

#include <utility>

#include "megalith/io/retry.h"

namespace megalith::io {
namespace {

class RetryingFs final : public Fs {
 public:
  explicit RetryingFs(std::shared_ptr<Fs> inner) : inner_(std::move(inner)) {}

  std::unique_ptr<OutputFile> create(const Path& path) override { return inner_->create(path); }
  std::unique_ptr<OutputFile> append(const Path& path) override { return inner_->append(path); }
  void rename(const Path& from, const Path& to) override { inner_->rename(from, to); }
  void sync_dir(const Path& directory) override { inner_->sync_dir(directory); }
  void make_dir(const Path& directory) override { inner_->make_dir(directory); }
  void unlink(const Path& file) override { inner_->unlink(file); }
  void remove_dir(const Path& directory) override { inner_->remove_dir(directory); }

  MappedFile map(const Path& path) override {
    return retrying([&] { return inner_->map(path); });
  }
  std::vector<std::string> list(const Path& directory) override {
    return retrying([&] { return inner_->list(directory); });
  }
  bool exists(const Path& path) override {
    return retrying([&] { return inner_->exists(path); });
  }
  bool is_dir(const Path& path) override {
    return retrying([&] { return inner_->is_dir(path); });
  }
  bool is_link(const Path& path) override {
    return retrying([&] { return inner_->is_link(path); });
  }
  std::uint64_t file_size(const Path& path) override {
    return retrying([&] { return inner_->file_size(path); });
  }
  std::uint64_t free_bytes(const Path& directory) override {
    return retrying([&] { return inner_->free_bytes(directory); });
  }

 private:
  std::shared_ptr<Fs> inner_;
};

}  // namespace

std::shared_ptr<Fs> retrying_fs(std::shared_ptr<Fs> inner) { return std::make_shared<RetryingFs>(std::move(inner)); }

}  // namespace megalith::io
