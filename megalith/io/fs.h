#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::io {

using Path = std::filesystem::path;

/// An IoError with the system's number of the reason (errno).
class SystemError : public IoError {
 public:
  SystemError(const std::string& text, int number) : IoError(text), number_(number) {}
  int number() const { return number_; }

 private:
  int number_;
};

/// A file being written. Appends only; nothing is durable before sync(). Closing without sync() promises nothing.
/// Every member throws IoError naming the path, the operation and the system's reason.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  virtual void sync() = 0;
  virtual void close() = 0;
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
};

/// A read-only view of a whole file, mapped. Unmapped when the last copy goes.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(std::shared_ptr<const std::byte> owner, std::size_t size) : owner_(std::move(owner)), size_(size) {}
  std::span<const std::byte> bytes() const { return {owner_.get(), size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(owner_.get()), size_}; }

 private:
  std::shared_ptr<const std::byte> owner_;
  std::size_t size_ = 0;
};

/// Everything that persists goes through one Fs, so that faults can be injected and crash points enumerated.
/// Operations have stable names ("create", "write", "sync", "rename", ...; see operation_name in fault_fs.h).
/// All members throw IoError (disk, permission; a SystemError where the system gave a reason) except where stated; none
/// retries; retrying_fs() does.
/// Source of the rules: docs/reliability.md, rules 1 and 2.
class Fs {
 public:
  virtual ~Fs() = default;
  /// A new file; fails when the path exists.
  virtual std::unique_ptr<OutputFile> create(const Path& path) = 0;
  /// Opens for appending, creating it when absent. For logs (metrics), never for state.
  virtual std::unique_ptr<OutputFile> append(const Path& path) = 0;
  virtual MappedFile map(const Path& path) = 0;  ///< InputError when it does not exist
  virtual void rename(const Path& from, const Path& to) = 0;
  virtual void sync_dir(const Path& directory) = 0;
  virtual void make_dir(const Path& directory) = 0;  ///< parents too; no error when it exists
  virtual void unlink(const Path& file) = 0;
  virtual void remove_dir(const Path& directory) = 0;                ///< must be empty
  virtual std::vector<std::string> list(const Path& directory) = 0;  ///< names, sorted; empty when absent
  virtual bool exists(const Path& path) = 0;
  virtual bool is_dir(const Path& path) = 0;
  virtual bool is_link(const Path& path) = 0;  ///< a symbolic link, whatever it points to
  virtual std::uint64_t file_size(const Path& path) = 0;
  /// That this user may still write below a folder, as its file system says, which may not be right; kUnknownBytes
  /// where it does not say.
  virtual std::uint64_t free_bytes(const Path& directory) = 0;
  static constexpr std::uint64_t kUnknownBytes = ~std::uint64_t{0};
};

/// The real file system: POSIX calls, EINTR and short writes handled.
std::shared_ptr<Fs> posix_fs();

/// A new file with these contents, synced and closed; its name is durable when its folder is synced. Fails when the
/// path exists.
void write_file(Fs& fs, const Path& path, std::string_view contents);

/// Publishes a small file whole or not at all: PATH.tmp-<unique>, write, sync, rename over PATH, sync_dir.
void publish_file(Fs& fs, const Path& path, std::string_view contents);

}  // namespace megalith::io
