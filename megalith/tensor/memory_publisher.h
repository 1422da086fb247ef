#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "megalith/base/types.h"

namespace megalith {

/// Makes memory of a GPU that one process takes accessible to other processes, under the same address in all of them.
/// So an address means the same in each, as for threads of one process. Thread-safe.
class MemoryPublisher {
 public:
  virtual ~MemoryPublisher() = default;
  /// The same number in all these processes, and in no others.
  virtual std::uint64_t space() const = 0;
  /// Addresses, free in all processes, for `bytes` of this process's memory. Throws BackendError if there are none.
  virtual std::byte* take_addresses(Index bytes) = 0;
  /// The memory behind the file descriptor is at `address` in this process. Returns when it is there in all others.
  /// Throws HangError if one does not answer in time, BackendError if one cannot map it.
  virtual void publish(std::byte* address, Index bytes, int descriptor) = 0;
  /// Returns when the memory is gone from the others, which do not access it any more, and gives the addresses back.
  /// `published`: whether publish() has returned for it.
  enum class Published : std::uint8_t { no, yes };
  virtual void withdraw(std::byte* address, Index bytes, Published published) noexcept = 0;
  /// Keeps memory as long as work of other processes may access it: until the sharing ends.
  virtual void keep(std::shared_ptr<const void> memory) = 0;
};

}  // namespace megalith
