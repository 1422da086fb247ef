#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace megalith::comm {

/// Memory that the processes of one user on one host share while they live. It has a name, below /dev/shm, only until
/// remove_name(): what a killed process leaves behind is a name without a lock, which the next create() removes.
class SharedMemory {
 public:
  /// `bytes` of zeros under the name that `word`, a random number, gives. Null where the system gives none.
  static std::unique_ptr<SharedMemory> create(std::uint64_t word, std::size_t bytes);
  /// What another process has made. Null where it cannot be opened.
  static std::unique_ptr<SharedMemory> open(std::uint64_t word, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Nobody opens it from here on. Of the process that has made it.
  void remove_name() noexcept;
  /// The memory; it stays as long as a copy of this.
  const std::shared_ptr<std::byte>& memory() const { return memory_; }

 private:
  SharedMemory() = default;
  bool map(std::size_t bytes);

  int fd_ = -1;
  std::uint64_t named_ = 0;  ///< 0: has no name that this process must remove
  std::shared_ptr<std::byte> memory_;
};

}  // namespace megalith::comm
