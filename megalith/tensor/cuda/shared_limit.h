#pragma once
#include <map>
#include <mutex>
#include <utility>

namespace megalith::cuda {

/// The shared memory that kernels may use beyond the 48 KiB that all may have, by GPU. A limit only rises, because a
/// graph that was captured with a kernel needs the limit of that time. Any number of threads may call at once.
class SharedLimits {
 public:
  /// Calls set(bytes) where the limit must rise to `bytes`. If set() fails, the limit stays.
  template <class Set>
  void raise(int gpu, const void* kernel, int bytes, const Set& set) {
    const std::lock_guard lock(mutex_);
    int& limit = limits_[{gpu, kernel}];
    if (limit >= bytes) return;
    set(bytes);
    limit = bytes;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, const void*>, int> limits_;
};

/// How much of an SM's memory is for a kernel's blocks. It is CUDA's choice, or as much as there is, so that two blocks
/// fit that each take a block's maximum.
enum class Carveout { chosen, max };

/// Allows a kernel this many bytes of dynamic shared memory per block on the GPU that the calling thread uses. Call it
/// before the first step. Repeated calls cost a look-up in a table.
void allow_shared_memory(const void* kernel, int bytes, Carveout carveout = Carveout::chosen);
template <class... Params>
void allow_shared_memory(void (*kernel)(Params...), int bytes, Carveout carveout = Carveout::chosen) {
  allow_shared_memory(reinterpret_cast<const void*>(kernel), bytes, carveout);
}

}  // namespace megalith::cuda
