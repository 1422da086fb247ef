#include "megalith/io/run_lock.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/host.h"
#include "megalith/base/str.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/reader.h"
#include "megalith/io/retry.h"

namespace megalith::io {
namespace {

/// "host node7, pid 4711, started 2024-05-01 10:00:00 UTC"
std::string describe_self() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 40> date{};
  std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M:%S UTC", &utc);
  return str("host ", host_name(), ", pid ", ::getpid(), ", started ", date.data());
}

/// What the holder wrote. It may be empty: the holder takes the lock first and writes then.
std::string describe_holder(int fd) {
  std::array<char, 512> text{};
  const ::ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  std::string_view shown(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  shown = shown.substr(0, shown.find('\n'));
  return shown.empty() ? "another job that is just starting" : printable(shown, 400);
}

/// The descriptor of the lock's file, which is made where it is not there.
int open_lock(const Path& folder, const Path& path) {
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) throw SystemError(system_problem("make_dir", folder.string(), error.value()), error.value());
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd >= 0) return fd;
  const int number = errno;
  if (number == ELOOP) throw IoError(str("[", path.string(), "] is a link: remove it"));
  throw SystemError(system_problem("open", path.string(), number), number);
}

/// Locks an open file and writes into it who holds it.
void lock_file(int fd, const Path& path) {
  struct stat info {};
  if (::fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
    throw IoError(str("[", path.string(), "] is no regular file: remove it"));

  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &whole) < 0) {
    if (errno == EAGAIN || errno == EACCES) {
      throw IoError(str("[", path.string(), "] the folder is in use by ", describe_holder(fd),
                        ": stop that job, or choose another folder"));
    }
    throw IoError(str("[", path.string(), "] lock: ", std::generic_category().message(errno),
                      ": the file system must support locks (on Lustre: mount with -o flock)"));
  }
  const std::string self = describe_self() + "\n";
  if (::ftruncate(fd, 0) < 0 || ::pwrite(fd, self.data(), self.size(), 0) != static_cast<::ssize_t>(self.size())) {
    throw IoError(system_problem("write", path.string(), errno));
  }
}

}  // namespace

RunLock RunLock::take(const Path& folder, const std::string& name) {
  const Path path = folder / name;
  constexpr int kMaxTries = 100;  // its file may be removed, by the job that held it, after it was opened
  for (int tries = 1;; ++tries) {
    RunLock lock(retrying([&] { return open_lock(folder, path); }), folder, name);
    lock_file(lock.fd_, path);
    if (lock.is_in_place()) return lock;
    if (tries == kMaxTries) lock.require_in_place();
  }
}

bool RunLock::is_in_place() const noexcept {
  struct stat held {
  }, there{};
  return ::fstat(fd_, &held) == 0 && ::lstat(path().c_str(), &there) == 0 && held.st_dev == there.st_dev &&
         held.st_ino == there.st_ino;
}

void RunLock::require_in_place() const {
  if (!is_in_place())
    throw IoError(
        str("[", path().string(), "] was removed or replaced while this job held it: the folder is no longer its own"));
}

void RunLock::remove() noexcept {
  if (fd_ < 0) return;
  if (is_in_place()) ::unlink(path().c_str());
  ::close(std::exchange(fd_, -1));
}

bool RunLock::covers(const Path& path) const {
  const Path own = std::filesystem::weakly_canonical(folder_), other = std::filesystem::weakly_canonical(path);
  return std::mismatch(own.begin(), own.end(), other.begin(), other.end()).first == own.end();
}

RunLock::RunLock(RunLock&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), folder_(std::move(other.folder_)), name_(std::move(other.name_)) {}
RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(folder_, other.folder_);
  std::swap(name_, other.name_);
  return *this;
}
RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace megalith::io
