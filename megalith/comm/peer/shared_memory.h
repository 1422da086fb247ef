#pragma once
#include <cstddef>
#include <span>

#include "megalith/base/types.h"

namespace megalith::comm {

/// Memory of the calling thread's GPU that the kernels and copy engines of other GPUs of this process reach under the
/// same address, zeroed. Other allocations stay private, unless a group has announced captures (comm::Captures):
/// cudaDeviceEnablePeerAccess() shares all of a GPU's, and then whoever loads a kernel or takes memory waits for what
/// is in flight on every GPU.
class SharedMemory {
 public:
  /// `gpus`: all that reach it, the own one too. Takes whole pages of 2 MiB. Throws IoError, naming the way out, when
  /// there is no more.
  SharedMemory(Index bytes, std::span<const int> gpus);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  /// Whether the GPU that the calling thread uses and its driver can share memory so.
  static bool is_possible();

 private:
  SharedMemory() = default;  // whose destructor runs when the other constructor throws

  std::byte* data_ = nullptr;
  bool is_mapped_ = false;
  std::size_t bytes_ = 0;
};

}  // namespace megalith::comm
