#pragma once
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/io/fs.h"

namespace megalith::fuzz {

/// A file system of one file. What is mapped has a block of its own and of the file's exact size, so that the address
/// sanitizer sees every read past its end.
class OneFile final : public io::Fs {
 public:
  OneFile(io::Path path, std::string_view contents) : path_(std::move(path)), contents_(contents) {}

  io::MappedFile map(const io::Path& path) override {
    if (path != path_) throw InputError("no such file");
    if (contents_.empty()) return {};
    const std::shared_ptr<std::byte> bytes(new std::byte[contents_.size()], std::default_delete<std::byte[]>());
    std::memcpy(bytes.get(), contents_.data(), contents_.size());
    return {bytes, contents_.size()};
  }
  bool exists(const io::Path& path) override { return path == path_ || is_dir(path); }
  bool is_dir(const io::Path& path) override { return path == path_.parent_path(); }
  bool is_link(const io::Path&) override { return false; }
  std::uint64_t file_size(const io::Path&) override { return contents_.size(); }
  std::uint64_t free_bytes(const io::Path&) override { return kUnknownBytes; }
  std::vector<std::string> list(const io::Path&) override { return {path_.filename().string()}; }

  std::unique_ptr<io::OutputFile> create(const io::Path&) override { refuse(); }
  std::unique_ptr<io::OutputFile> append(const io::Path&) override { refuse(); }
  void rename(const io::Path&, const io::Path&) override { refuse(); }
  void sync_dir(const io::Path&) override { refuse(); }
  void make_dir(const io::Path&) override { refuse(); }
  void unlink(const io::Path&) override { refuse(); }
  void remove_dir(const io::Path&) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw IoError("a reader must not write"); }

  io::Path path_;
  std::string_view contents_;
};

}  // namespace megalith::fuzz
