#include "megalith/comm/mpi/shared_memory.h"

#include <filesystem>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith::comm {
namespace {

constexpr const char* kFolder = "/dev/shm";

std::string prefix() { return str("megalith-shared-", ::getuid(), "-"); }
std::string path_of(std::uint64_t word) { return str(kFolder, '/', prefix(), hex64(word)); }

/// Takes the lock of a file that has a name, which its maker holds as long as the name exists.
bool lock(int fd, int operation) { return ::flock(fd, operation) == 0; }

bool has_name(int fd) {
  struct stat file {};
  return ::fstat(fd, &file) == 0 && file.st_nlink > 0;
}

/// Names without a lock: their makers have been killed.
void remove_leftovers() {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(kFolder, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(prefix())) continue;
    const int fd = ::open(entry->path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (lock(fd, LOCK_EX | LOCK_NB) && has_name(fd)) ::unlink(entry->path().c_str());
    ::close(fd);
  }
}

}  // namespace

bool SharedMemory::map(std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) return false;
  memory_ = {static_cast<std::byte*>(at), [bytes](std::byte* memory) { ::munmap(memory, bytes); }};
  return true;
}

std::unique_ptr<SharedMemory> SharedMemory::create(std::uint64_t word, std::size_t bytes) {
  constexpr int kAttempts = 100;
  remove_leftovers();
  std::unique_ptr<SharedMemory> made(new SharedMemory());
  // A process that cleans may take the name before it is locked.
  for (int attempt = 0; made->named_ == 0; ++attempt) {
    if (made->fd_ >= 0) ::close(made->fd_);
    made->fd_ = ::open(path_of(word).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (made->fd_ < 0 || attempt == kAttempts) return nullptr;
    if (lock(made->fd_, LOCK_EX) && has_name(made->fd_)) made->named_ = word;
  }
  // The pages are taken now: where /dev/shm is full, a first access to them would end the process (SIGBUS).
  const bool is_ready = ::posix_fallocate(made->fd_, 0, static_cast<off_t>(bytes)) == 0 && made->map(bytes);
  return is_ready ? std::move(made) : nullptr;
}

std::unique_ptr<SharedMemory> SharedMemory::open(std::uint64_t word, std::size_t bytes) {
  std::unique_ptr<SharedMemory> made(new SharedMemory());
  made->fd_ = ::open(path_of(word).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  struct stat file {};
  const bool fits = made->fd_ >= 0 && ::fstat(made->fd_, &file) == 0 && file.st_uid == ::getuid() &&
                    static_cast<std::size_t>(file.st_size) == bytes;
  return fits && made->map(bytes) ? std::move(made) : nullptr;
}

void SharedMemory::remove_name() noexcept {
  if (named_ != 0) ::unlink(path_of(named_).c_str());
  named_ = 0;
}

SharedMemory::~SharedMemory() {
  remove_name();
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace megalith::comm
