#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/fs.h"
#include "megalith/io/mapped_files.h"
#include "megalith/io/problem_text.h"

namespace megalith::io {
namespace {

[[noreturn]] void throw_system(std::string_view operation, const Path& path, int error) {
  const char* fix = "";
  if (error == ENOSPC || error == EDQUOT) fix = ": free some space, or write elsewhere";
  if (error == EFBIG) fix = ": raise the limit on the size of files (ulimit -f)";
  throw SystemError(system_problem(operation, path.string(), error) + fix, error);
}

/// Calls again while a signal interrupts.
template <class Call>
auto restart(Call&& call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

Descriptor open_file(std::string_view operation, const Path& path, int flags) {
  const int fd = restart([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0644); });
  if (fd < 0) throw_system(operation, path, errno);
  return Descriptor(fd);
}

class PosixFile final : public OutputFile {
 public:
  PosixFile(Descriptor fd, Path path) : fd_(std::move(fd)), path_(std::move(path)) {}

  void write(std::span<const std::byte> bytes) override {
    check_usable("write");
    while (!bytes.empty()) {
      const ::ssize_t written = restart([&] { return ::write(fd_.get(), bytes.data(), bytes.size()); });
      if (written < 0) fail("write");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void sync() override {
    check_usable("sync");
    if (restart([&] { return ::fsync(fd_.get()); }) < 0) fail("sync");
  }
  void close() override {
    const int fd = fd_.release();
    // Linux frees the descriptor even when close is interrupted, so EINTR is no failure and there is no second try.
    if (fd >= 0 && ::close(fd) < 0 && errno != EINTR) throw_system("close", path_, errno);
  }

 private:
  /// After a failed fsync the kernel may drop the dirty pages, and a second fsync would then report success for data
  /// that is gone (Rebello et al. 2020, "Can applications recover from fsync failures?"). So the first error is final.
  void check_usable(std::string_view operation) const {
    if (failed_)
      throw IoError(str("cannot ", operation, " ", path_.string(), ": an earlier write or sync of it failed"));
    if (fd_.get() < 0) throw InternalError(str("[", path_.string(), "] ", operation, ": the file is closed"));
  }
  [[noreturn]] void fail(std::string_view operation) {
    failed_ = true;
    throw_system(operation, path_, errno);
  }

  Descriptor fd_;
  Path path_;
  bool failed_ = false;
};

/// Pages of a file in memory. What reads them after the file was cut gets SIGBUS, whose handler asks which file it was.
class Mapping {
 public:
  Mapping(void* data, std::size_t size, const Path& path)
      : data_(data), size_(size), noted_(static_cast<const std::byte*>(data), size, path.string()) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(data_, size_); }

 private:
  void* data_;
  std::size_t size_;
  NotedMapping noted_;
};

class PosixFs final : public Fs {
 public:
  std::unique_ptr<OutputFile> create(const Path& path) override {
    return std::make_unique<PosixFile>(open_file("create", path, O_WRONLY | O_CREAT | O_EXCL), path);
  }
  std::unique_ptr<OutputFile> append(const Path& path) override {
    return std::make_unique<PosixFile>(open_file("append", path, O_WRONLY | O_CREAT | O_APPEND), path);
  }

  MappedFile map(const Path& path) override {
    // O_NONBLOCK: opening a FIFO that has no writer must not hang.
    const int fd = restart([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
    if (fd < 0) {
      if (errno == ENOENT || errno == ENOTDIR)
        throw InputError(str("[", path.string(), "] there is no such file", looked_for_in(path)));
      throw_system("map", path, errno);
    }
    const Descriptor file(fd);
    struct stat info {};
    if (::fstat(fd, &info) < 0) throw_system("map", path, errno);
    if (!S_ISREG(info.st_mode)) throw InputError(str("[", path.string(), "] is not a regular file"));
    const auto size = static_cast<std::size_t>(info.st_size);
    if (size == 0) return {};
    void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) throw_system("map", path, errno);
    const auto mapping = std::make_shared<Mapping>(data, size, path);
    return {std::shared_ptr<const std::byte>(mapping, static_cast<const std::byte*>(data)), size};
  }

  void rename(const Path& from, const Path& to) override {
    // A device, a pipe or a socket is somebody else's; root could replace it.
    struct stat replaced {};
    if (::lstat(to.c_str(), &replaced) == 0 && !S_ISREG(replaced.st_mode) && !S_ISDIR(replaced.st_mode) &&
        !S_ISLNK(replaced.st_mode))
      throw IoError(str("cannot replace ", to.string(), ": it is no regular file; name another"));
    if (::rename(from.c_str(), to.c_str()) < 0) throw_system("rename", str(from.string(), " to ", to.string()), errno);
  }
  void sync_dir(const Path& directory) override {
    const Descriptor fd = open_file("sync_dir", directory.empty() ? Path(".") : directory, O_RDONLY | O_DIRECTORY);
    if (restart([&] { return ::fsync(fd.get()); }) < 0) throw_system("sync_dir", directory, errno);
  }
  void make_dir(const Path& directory) override {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) throw_system("make_dir", directory, error.value());
  }
  void unlink(const Path& file) override {
    if (::unlink(file.c_str()) < 0) throw_system("unlink", file, errno);
  }
  void remove_dir(const Path& directory) override {
    if (::rmdir(directory.c_str()) < 0) throw_system("remove_dir", directory, errno);
  }

  std::vector<std::string> list(const Path& directory) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), ::closedir);
    if (stream == nullptr) {
      if (errno == ENOENT) return {};
      throw_system("list", directory, errno);
    }
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* const entry = ::readdir(stream.get());
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    if (errno != 0) throw_system("list", directory, errno);
    std::sort(names.begin(), names.end());
    return names;
  }

  bool exists(const Path& path) override {
    struct stat info {};
    return find("exists", path, info);
  }
  bool is_dir(const Path& path) override {
    struct stat info {};
    return find("is_dir", path, info) && S_ISDIR(info.st_mode);
  }
  bool is_link(const Path& path) override {
    std::error_code ignored;  // what cannot be looked at is no link that we may follow
    return std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored));
  }
  std::uint64_t file_size(const Path& path) override {
    struct stat info {};
    if (!find("file_size", path, info)) throw_system("look at", path, ENOENT);
    return static_cast<std::uint64_t>(info.st_size);
  }
  std::uint64_t free_bytes(const Path& directory) override {
    struct statvfs info {};
    if (restart([&] { return ::statvfs(directory.c_str(), &info); }) < 0) throw_system("free_bytes", directory, errno);
    return info.f_blocks == 0 ? kUnknownBytes : std::uint64_t{info.f_bavail} * info.f_frsize;
  }

 private:
  /// False when there is nothing of that name.
  static bool find(std::string_view operation, const Path& path, struct stat& info) {
    if (::stat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    throw_system(operation, path, errno);
  }
};

}  // namespace

std::shared_ptr<Fs> posix_fs() { return std::make_shared<PosixFs>(); }

}  // namespace megalith::io
